# SPDX-License-Identifier: Apache-2.0
"""Adding entries to an ensemble: who is told when, and what happens when bookies are slow, busy or lost."""

from __future__ import annotations

import pytest
from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.packets import Code
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet
from meridian_broker.ledgers.store import LedgerError, LedgerFenced, LedgerWriteFailed
from support.worlds.bookie_stand_ins import Link

LIMITS = AddLimits()


def add(adding: Adding, count: int, size: int = 1) -> list[int | LedgerError]:
    heard: list[int | LedgerError] = []
    for _ in range(count):
        adding.add(Packet(b"", b"x" * size), heard.append)
    return heard


def ack(adding: Adding, bookie: str, *entries: int) -> None:
    for entry in entries:
        adding.answered(bookie, entry, Code.OK)


def test_an_entry_is_confirmed_by_the_ack_quorum_and_in_order() -> None:
    link = Link()
    adding = link.adding()
    heard = add(adding, 3)
    assert sorted(link.taken()) == [(bookie, entry) for bookie in "abc" for entry in range(3)]
    ack(adding, "a", 0, 1, 2)
    assert heard == []
    ack(adding, "b", 2, 1)
    assert heard == []
    ack(adding, "b", 0)
    assert heard == [0, 1, 2] and adding.confirmed == 2
    assert adding.retained == 3  # c may still need them
    ack(adding, "c", 0, 1, 2)
    assert adding.retained == 0
    ack(adding, "c", 1, 5)
    assert adding.confirmed == 2


def test_no_more_is_sent_than_the_slowest_bookie_may_lag() -> None:
    link = Link()
    adding = link.adding(limits=AddLimits(entries=4))
    heard = add(adding, 10)
    assert max(entry for _, entry in link.taken()) == 3
    for bookie in "ab":
        ack(adding, bookie, 0, 1, 2, 3)
    assert heard == [0, 1, 2, 3] and link.taken() == []
    ack(adding, "c", 0)
    assert link.taken() == [("a", 4), ("b", 4), ("c", 4)]
    adding.tick(0)
    adding.tick(LIMITS.blocking_ms)
    assert adding.lost_bookies.keys() == {"c"}  # the others wait because of c
    assert max(entry for _, entry in link.taken()) == 7
    by_bytes = link.adding(limits=AddLimits(bytes=10))
    add(by_bytes, 10, size=4)
    assert max(entry for _, entry in link.taken()) == 2


def test_waiting_entries_are_sent_to_all_bookies_in_one_step() -> None:
    """Like new entries: sent to each bookie separately they would cost several times as much."""

    class Counting(Link):
        steps = 0

        def send_all(self, bookies: tuple[str, ...], entry: int, packet: Packet) -> bool:
            self.steps += 1
            return super().send_all(bookies, entry, packet)

    link = Counting()
    adding = link.adding(limits=AddLimits(entries=4))
    add(adding, 10)
    for bookie in "abc":
        adding.acked(bookie, [0, 1, 2])
    assert link.taken()[-9:] == [(bookie, entry) for entry in (4, 5, 6) for bookie in "abc"]
    assert link.steps == 7


def test_a_full_connection_gets_the_rest_once_there_is_room() -> None:
    link = Link()
    link.full.add("c")
    adding = link.adding()
    heard = add(adding, 2)
    assert {bookie for bookie, _ in link.taken()} == {"a", "b"}
    ack(adding, "a", 0, 1)
    ack(adding, "b", 0, 1)
    assert heard == [0, 1]
    link.full.clear()
    adding.room("c")
    assert link.taken() == [("c", 0), ("c", 1)]


def test_a_busy_bookie_is_sent_refused_entries_again_and_not_treated_as_lost() -> None:
    link = Link("d")
    adding = link.adding()
    heard = add(adding, 4)
    ack(adding, "a", 0, 1, 2, 3)
    ack(adding, "b", 0)
    adding.answered("b", 1, Code.TOO_MANY_REQUESTS)
    adding.answered("b", 2, Code.TOO_MANY_REQUESTS)
    ack(adding, "b", 3)
    link.taken()
    heard += add(adding, 1)
    assert ("b", 4) not in link.taken()  # nothing new before the refused entries
    adding.tick(200)
    assert link.taken() == [("b", 1), ("b", 2), ("b", 4)]
    ack(adding, "b", 1, 2)
    assert heard == [0, 1, 2, 3] and link.ensembles == []


def test_a_lost_bookie_is_replaced_after_the_last_confirmed_entry() -> None:
    link = Link("d")
    adding = link.adding()
    heard = add(adding, 3)
    ack(adding, "a", 0, 1)
    ack(adding, "b", 0)
    link.taken()
    adding.lost("c", "gone")
    assert link.ensembles == [(1, ("a", "b", "d"))] and link.taken() == []
    adding.ensemble_stored()
    assert link.taken() == [("d", 1), ("d", 2)]
    ack(adding, "d", 1)
    assert heard == [0, 1]


def test_answers_of_a_lost_bookie_no_longer_count() -> None:
    link = Link("d")
    adding = link.adding()
    heard = add(adding, 2)
    adding.lost("c", "gone")
    ack(adding, "c", 0, 1)
    ack(adding, "a", 0)
    assert heard == []
    adding.ensemble_stored()
    ack(adding, "c", 0, 1)
    assert heard == []
    ack(adding, "b", 0)
    assert heard == [0]


def test_the_remaining_bookies_confirm_entries_while_metadata_is_unavailable() -> None:
    link = Link("d")
    adding = link.adding()
    adding.lost("c", "gone")
    heard = add(adding, 2)
    for bookie in "ab":
        ack(adding, bookie, 0, 1)
    assert heard == [0, 1]
    adding.ensemble_stored()
    assert [entry for bookie, entry in link.taken() if bookie == "d"] == [0, 1]  # its whole segment, if kept
    small = Link("d")
    adding = small.adding(limits=AddLimits(entries=2))
    adding.lost("c", "gone")
    heard = add(adding, 6)
    for entry in range(6):
        ack(adding, "a", entry)
        ack(adding, "b", entry)
    assert heard == list(range(6)) and adding.retained <= 2


def test_a_bookie_possibly_replaced_in_the_metadata_is_never_used_again() -> None:
    link = Link("d")
    adding = link.adding()
    heard = add(adding, 1)
    adding.lost("c", "gone")
    adding.ensemble_not_stored(None)  # the metadata may or may not contain d
    link.spares, link.well = [], {"c"}
    adding.tick(LIMITS.retry_ms)
    ack(adding, "a", 0)
    ack(adding, "c", 0)
    assert heard == []


def test_without_a_spare_a_recovered_bookie_is_used_again() -> None:
    link = Link()
    adding = link.adding()
    heard = add(adding, 3)
    ack(adding, "a", 0, 1)
    ack(adding, "b", 0)
    ack(adding, "c", 0)
    adding.lost("c", "gone")
    ack(adding, "b", 1)
    assert heard == [0, 1]
    link.taken()
    link.well.add("c")
    adding.lost("b", "gone too")
    assert link.taken() == []  # not in the same turn: a bookie that fails at once would be asked forever
    adding.tick(LIMITS.retry_ms)
    assert link.taken() == [("c", 2)]
    ack(adding, "a", 2)
    ack(adding, "c", 2)
    assert heard == [0, 1, 2] and link.ensembles == []


def test_acknowledgements_of_lost_bookies_count_once_they_are_used_again() -> None:
    """Nothing more has to be sent to them then, so no later acknowledgement would confirm the entries."""
    link = Link()
    adding = link.adding(limits=AddLimits(entries=2))
    heard = add(adding, 3)
    for bookie in "abc":
        adding.lost(bookie, "silent")
    for bookie in "abc":
        ack(adding, bookie, 0, 1)
    assert heard == []
    link.well.update("abc")
    adding.tick(LIMITS.retry_ms)
    assert heard == [0, 1]
    assert [entry for _, entry in link.taken()].count(2) == 3


def test_of_bookies_that_are_all_slow_none_is_declared_lost() -> None:
    """As if the machine had paused for a second: all would be lost, and none left to confirm anything."""
    link = Link()
    adding = link.adding(limits=AddLimits(entries=4))
    add(adding, 10)
    adding.tick(0)
    adding.tick(LIMITS.blocking_ms)
    assert not adding.lost_bookies
    ack(adding, "a", 0)
    adding.tick(LIMITS.blocking_ms * 2)
    assert not adding.lost_bookies, "one bookie alone confirms nothing"
    adding.tick(LIMITS.silent_ms)
    assert adding.lost_bookies.keys() == {"b", "c"}


def test_a_silent_bookie_is_declared_lost() -> None:
    link = Link("d")
    adding = link.adding()
    add(adding, 1)
    adding.tick(60_000)  # silence is counted from the first tick that finds something in flight
    ack(adding, "a", 0)
    ack(adding, "b", 0)
    adding.tick(60_000 + LIMITS.silent_ms - 1)
    assert link.ensembles == []
    adding.tick(60_000 + LIMITS.silent_ms)
    assert link.ensembles == [(1, ("a", "b", "d"))] and link.avoided == ["c"]


def test_too_few_bookies_for_too_long_fail_everything_in_order() -> None:
    link = Link()
    adding = link.adding()
    heard = add(adding, 3, size=7)
    ack(adding, "a", 0)
    ack(adding, "b", 0)
    adding.tick(10)
    adding.lost("a", "gone")
    adding.lost("b", "gone")
    adding.tick(10 + LIMITS.patience_ms - 1)
    assert heard == [0]
    adding.tick(10 + LIMITS.patience_ms)
    assert [type(one) for one in heard[1:]] == [LedgerWriteFailed] * 2 and "a (gone)" in str(heard[1])
    assert adding.unconfirmed_bytes == 14
    late = add(adding, 1)
    assert late == []
    link.deferred.pop()()
    assert isinstance(late[0], LedgerWriteFailed)


@pytest.mark.parametrize("spare", [False, True])
def test_bookies_that_accept_connections_and_close_them_fail_everything_in_time(spare: bool) -> None:
    """Every check finds enough bookies, and none of them ever acknowledges anything."""
    link = Link(*"abcd") if spare else Link()
    link.well = set("abcd")
    adding = link.adding()
    heard = add(adding, 3)
    now_ms = 0
    while not heard and now_ms < 10 * LIMITS.waiting_ms:
        now_ms += 100
        adding.tick(now_ms)
        if now_ms % 1_000 == 0:
            for bookie in adding.ensemble:
                adding.lost(bookie, "closed at once")
            if link.ensembles:
                link.ensembles.clear()
                adding.ensemble_stored()
    assert [type(one) for one in heard] == [LedgerWriteFailed] * 3
    assert "closed at once" in str(heard[0])
    assert now_ms <= LIMITS.waiting_ms + 200


def test_entries_that_wait_for_earlier_ones_do_not_fail_while_those_are_confirmed() -> None:
    link = Link()
    adding = link.adding()
    heard: list[int | LedgerError] = []
    for number in range(20):
        heard += add(adding, 1)
        adding.tick(number * LIMITS.silent_ms // 3)
        if number >= 2:
            for bookie in "abc":
                ack(adding, bookie, number - 2)
    assert adding.failure is None and adding.confirmed == 17


def test_an_idle_ledgers_next_entry_has_the_full_timeout() -> None:
    link = Link()
    adding = link.adding()
    add(adding, 1)
    for bookie in "abc":
        ack(adding, bookie, 0)
    heard = add(adding, 1)
    adding.tick(10 * LIMITS.waiting_ms)
    adding.tick(10 * LIMITS.waiting_ms + LIMITS.silent_ms - 1)
    assert heard == []


def test_a_fenced_ledger_fails_everything_at_once() -> None:
    for code in (Code.FENCED, Code.WRONG_KEY):
        adding = Link("d").adding()
        heard = add(adding, 2)
        adding.answered("a", 1, code)
        assert [type(one) for one in heard] == [LedgerFenced] * 2
        ack(adding, "b", 0)
        ack(adding, "c", 0)
        assert adding.confirmed == -1


def test_refusals_are_reported_after_earlier_entries_and_idle_after_all() -> None:
    link = Link()
    adding = link.adding()
    heard: list[object] = []
    adding.add(Packet(b"", b""), heard.append)
    error = LedgerError("no")
    adding.refuse(heard.append, error)
    adding.when_idle(lambda: heard.append("idle"))
    assert heard == [] and link.deferred == []
    ack(adding, "a", 0)
    ack(adding, "b", 0)
    assert heard == [0, error, "idle"]
    adding.refuse(heard.append, error)
    assert len(heard) == 3
    link.deferred.pop()()
    assert len(heard) == 4


def test_acknowledgements_that_arrive_together_may_repeat_and_skip() -> None:
    adding = Link().adding()
    heard = add(adding, 6)
    adding.acked("a", [0, 1, 2, 3, 4, 5])
    adding.acked("b", [0, 0, 2])  # judged by its ends it looks like three in a row
    assert heard == [0]
    adding.acked("b", [1, 99, 4])
    assert heard == [0, 1, 2]
    adding.acked("b", [3, 5])
    assert heard == list(range(6))


def test_an_error_in_one_callback_does_not_stop_the_others() -> None:
    adding = Link().adding()

    def fail(_: object) -> None:
        raise ValueError("a mistake")

    adding.add(Packet(b"", b""), fail)
    heard = add(adding, 1)
    ack(adding, "a", 0, 1)
    ack(adding, "b", 1)
    try:
        ack(adding, "b", 0)
    except ValueError:
        pass
    assert heard == [1] and adding.confirmed == 1
