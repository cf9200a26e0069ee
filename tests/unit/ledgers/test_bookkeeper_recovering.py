# SPDX-License-Identifier: Apache-2.0
"""Writers and recoveries against scripted metadata and bookies: cases that random runs seldom meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meridian_broker.engines.bookkeeper.ledger_metadata import FENCE, LedgerMetadata, LedgerState, Segment
from meridian_broker.engines.bookkeeper.packets import LAST_ENTRY, Code, Flags
from meridian_broker.engines.bookkeeper.ports import AddLimits
from meridian_broker.engines.bookkeeper.recovering import ASKED_MAX, Recovering
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.ledgers.store import LedgerError, LedgerFenced, LedgerUnreadable, LedgerWriteFailed
from meridian_broker.wire.proto.bookkeeper_pb2 import LedgerMetadataFormat
from support.worlds.bookie_stand_ins import LEDGER, Asked, Link, Store, stored

OPEN = LedgerMetadata(3, 2, (Segment(0, ("a", "b", "c")),), custom=((FENCE, b"1"),))

Outcomes = list[LedgerMetadata | LedgerError]


class Stage:
    """One recovery and its surroundings."""

    def __init__(self, metadata: LedgerMetadata = OPEN, fence: int = 2, *spares: str) -> None:
        self.link, self.ask, self.store = Link(*spares), Asked(), Store(metadata)
        self.told: Outcomes = []
        self.recovering = Recovering(
            *(LEDGER, fence, self.link, self.ask, self.store, AddLimits(), self.told.append), now_ms=0
        )
        self.recovering.start()
        self.store.answer()

    def fence(self, **said: bytes | None) -> None:
        """These bookies answer with their last entry; None: they have none."""
        for bookie, body in said.items():
            self.ask.say(bookie, LAST_ENTRY, *([body] if body else []))

    def add(self, *bookies: str) -> None:
        """They acknowledge everything that was sent."""
        adding = self.recovering.adding
        assert adding is not None
        for bookie, entry in self.link.taken():
            if bookie in bookies:
                adding.answered(bookie, entry, Code.OK)

    @property
    def closed(self) -> LedgerMetadata:
        self.store.answer()
        (outcome,) = self.told
        assert isinstance(outcome, LedgerMetadata), outcome
        assert outcome == self.store.now.metadata and outcome.state is LedgerState.CLOSED
        return outcome

    @property
    def error(self) -> LedgerError:
        self.store.answer()
        (outcome,) = self.told
        assert isinstance(outcome, LedgerError), outcome
        return outcome


def test_an_empty_ledger_is_closed_without_entries() -> None:
    stage = Stage()
    assert stage.store.now.metadata.state is LedgerState.IN_RECOVERY
    stage.fence(a=None, b=None)
    for bookie in "ab":
        stage.ask.say(bookie, 0)
    assert (stage.closed.last_entry, stage.closed.length, stage.closed.fence) == (-1, 0, 2)
    assert all(flags & Flags.FENCE for flags in stage.ask.flags.values())


def test_what_any_bookie_has_is_added_again_and_counts_in_the_length() -> None:
    stage = Stage()
    stage.fence(a=stored(3, 1), b=stored(2, 0))
    assert stage.ask.told.keys() - {("c", LAST_ENTRY)} == {("a", 1), ("a", 4), ("b", 4), ("c", 4)}
    stage.ask.say("a", 1, stored(1))
    assert sorted(stage.link.sent) == [(bookie, entry) for bookie in "abc" for entry in (2, 3)]
    stage.ask.say("b", 4)
    stage.ask.say("c", 4)
    assert stage.told == []
    stage.add("a", "c")
    assert (stage.closed.last_entry, stage.closed.length) == (3, 4)


@pytest.mark.parametrize("said", ["absent", "damaged", "nothing"])
def test_a_bookie_that_lacks_what_it_should_have_is_made_up_for_by_the_others(said: str) -> None:
    stage = Stage()
    stage.fence(a=stored(2, -1), b=None)
    assert {bookie for bookie, entry in stage.ask.told if entry == 0} == {"a"}
    if said == "nothing":
        stage.ask.pass_time()
    else:
        stage.ask.say("a", 0, *([stored(0)[:-1] + b"?"] if said == "damaged" else []))
    assert {bookie for bookie, entry in stage.ask.told if entry == 0} >= {"b", "c"}
    stage.ask.say("c", 0, stored(0))
    stage.ask.say("a", 1, stored(1))
    stage.add("a", "c")
    for bookie in "bc":
        stage.ask.say(bookie, 3)
    assert (stage.closed.last_entry, stage.closed.length) == (2, 3)


def test_a_single_bookies_last_entry_is_added_even_if_no_other_has_anything() -> None:
    """Entries after it are asked for too, as long as any is found: nobody knows how far the third bookie got."""
    stage = Stage()
    stage.fence(a=stored(0, -1), b=None)
    assert stage.link.taken() == [("a", 0), ("b", 0), ("c", 0)]
    assert {entry for _, entry in stage.ask.told} == {LAST_ENTRY, 1}
    stage.ask.say("c", 1, stored(1))
    assert {entry for _, entry in stage.ask.told} == {LAST_ENTRY, 1, 2, 3}


def test_nothing_is_added_after_an_entry_that_too_few_bookies_can_have() -> None:
    stage = Stage()
    stage.fence(a=stored(3, -1), b=None)
    stage.ask.say("a", 0, stored(0))
    for bookie in "ab":
        stage.ask.say(bookie, 1)
    stage.ask.say("a", 2, stored(2))
    assert {entry for _, entry in stage.link.sent} == {0}
    stage.add("a", "b")
    assert stage.closed.last_entry == 0


def test_a_late_refusal_for_the_earlier_writer_does_not_end_the_recovery() -> None:
    """Both are in one process, and answers name only the ledger."""
    stage = Stage()
    stage.fence(a=stored(1, 0), b=stored(1, 0))
    stage.ask.say("a", 0, stored(0))
    stage.recovering.answered("c", 1, Code.FENCED)
    assert stage.told == []
    stage.add("a", "b")
    for bookie in "ab":
        stage.ask.say(bookie, 2)
    assert stage.closed.last_entry == 1


def test_one_fenced_bookie_of_three_is_not_enough() -> None:
    stage = Stage()
    stage.fence(a=None)
    assert ("a", 0) not in stage.ask.told
    stage.ask.say("b", LAST_ENTRY, code=Code.NO_ANSWER)
    stage.ask.pass_time()
    assert ("b", LAST_ENTRY) in stage.ask.told and ("a", LAST_ENTRY) not in stage.ask.told
    stage.fence(b=None)
    assert ("a", 0) in stage.ask.told


def test_an_undecided_entry_is_asked_for_again_and_never_guessed() -> None:
    stage = Stage()
    stage.fence(a=None, b=None)
    stage.ask.say("a", 0)
    stage.ask.say("b", 0, code=Code.UNKNOWN_LEDGER_STATE)
    stage.ask.say("c", 0, stored(0)[:-1] + b"?")  # damaged: it was stored there
    for _ in range(ASKED_MAX):
        assert stage.told == []
        stage.ask.pass_time()
    assert isinstance(stage.error, LedgerUnreadable) and "b, c gave no clear answer" in str(stage.error)
    assert stage.store.now.metadata.state is LedgerState.IN_RECOVERY


def test_bookies_that_never_answer_end_a_recovery() -> None:
    stage = Stage()
    for _ in range(ASKED_MAX):
        stage.ask.pass_time()
    assert isinstance(stage.error, LedgerUnreadable) and "a, b, c did not answer when fenced" in str(stage.error)


def test_a_bookie_added_during_the_recovery_is_not_asked_for_what_it_never_got() -> None:
    stage = Stage(OPEN, 2, "d")
    stage.fence(a=None, b=None)
    stage.ask.say("a", 0, stored(0))
    assert stage.recovering.adding is not None
    stage.recovering.adding.lost("b", "gone")
    stage.ask.say("a", 1, stored(1))
    assert {bookie for bookie, entry in stage.ask.told if entry > 2} == {"a", "b", "c"}
    stage.add("a", "d")
    for bookie in "ac":
        stage.ask.say(bookie, 2)
    assert stage.closed.segments == (Segment(0, ("a", "d", "c")),) and stage.closed.last_entry == 1


def test_an_empty_segment_is_not_written() -> None:
    stage = Stage(OPEN, 2, "d")
    stage.fence(a=stored(0, -1), b=None)
    stage.add("a", "b")
    assert stage.recovering.adding is not None
    stage.recovering.adding.lost("b", "gone")
    stage.ask.say("a", 1)
    stage.ask.say("c", 1)
    assert stage.closed.segments == OPEN.segments


def test_a_confirmed_entry_that_nobody_has_stops_the_recovery() -> None:
    stage = Stage()
    stage.fence(a=stored(5, 4), b=None)
    for bookie in "abc":
        stage.ask.say(bookie, 4)
    assert "was confirmed, and none of its bookies has it" in str(stage.error)


def test_a_closed_ledger_stays_as_it_is_and_an_older_owner_is_refused() -> None:
    closed = OPEN.closed(4, 5)
    assert Stage(closed, 2).told == [closed]
    assert isinstance(Stage(closed, 0).error, LedgerFenced)
    assert isinstance(Stage(OPEN, 0).error, LedgerFenced)
    foreign = LedgerMetadata(3, 2, OPEN.segments)
    assert "not created by Meridian" in str(Stage(foreign).error)
    striped = LedgerMetadata(2, 2, OPEN.segments, custom=OPEN.custom)
    assert "striped" in str(Stage(striped).error)
    other_digest = replace(OPEN, digest=LedgerMetadataFormat.HMAC)
    assert "does not use CRC32C" in str(Stage(other_digest).error)


def test_a_newer_owner_wins_over_a_recovery_in_progress() -> None:
    stage = Stage()
    stage.fence(a=None, b=None)
    stage.store.put(stage.store.now.metadata.in_recovery(3))
    for bookie in "ab":
        stage.ask.say(bookie, 0)
    assert isinstance(stage.error, LedgerFenced) and stage.store.now.metadata.state is LedgerState.IN_RECOVERY


def test_a_recovery_by_a_tool_is_accepted() -> None:
    stage = Stage()
    stage.fence(a=None, b=None)
    stage.store.put(stage.store.now.metadata.closed(8, 9))
    for bookie in "ab":
        stage.ask.say(bookie, 0)
    assert stage.closed.last_entry == 8


def test_segments_changed_meanwhile_restart_the_recovery() -> None:
    stage = Stage()
    stage.fence(a=None, b=None)
    moved = LedgerMetadata(3, 2, (Segment(0, ("a", "b", "e")),), LedgerState.IN_RECOVERY, custom=((FENCE, b"2"),))
    stage.store.put(moved)
    for bookie in "ab":
        stage.ask.say(bookie, 0)
    stage.store.answer()
    assert stage.told == []
    stage.fence(e=None, b=None)
    for bookie in "be":
        stage.ask.say(bookie, 0)
    assert stage.closed.segments == moved.segments


@pytest.mark.parametrize("kind", ["silent", "unheard"])
def test_a_write_of_metadata_without_an_answer_is_looked_up(kind: str) -> None:
    stage = Stage()
    stage.fence(a=None, b=None)
    setattr(stage.store, kind, 2)
    for bookie in "ab":
        stage.ask.say(bookie, 0)
    assert stage.closed.last_entry == -1


# -- writers ---------------------------------------------------------------------------------------------------------


class WriterStage:
    def __init__(self, *spares: str) -> None:
        self.link, self.store = Link(*spares), Store(OPEN)
        self.writing = Writing(
            *(LEDGER, self.store.now, self.link, self.store, AddLimits()), data_bytes_max=100, now_ms=0
        )
        self.heard: list[int | LedgerError] = []
        self.sealed: Outcomes = []

    def append(self, count: int, *bookies: str) -> None:
        for _ in range(count):
            self.writing.append(b"ab", self.heard.append)
        if bookies:
            self.acknowledge(*bookies)

    def acknowledge(self, *bookies: str) -> None:
        for bookie, entry in self.link.taken():
            if bookie in bookies:
                self.writing.adding.answered(bookie, entry, Code.OK)

    def seal(self) -> LedgerMetadata | LedgerError:
        self.writing.seal(self.sealed.append)
        self.store.answer()
        return self.sealed[-1]


def test_seal_closes_after_the_last_confirmed_entry() -> None:
    stage = WriterStage()
    stage.append(3, "a", "b")
    assert stage.seal() == OPEN.closed(2, 6) == stage.store.now.metadata
    assert stage.seal() == OPEN.closed(2, 6)
    stage.append(1)
    stage.link.deferred.pop()()
    assert isinstance(stage.heard[-1], LedgerError) and stage.heard[:3] == [0, 1, 2]


def test_seal_waits_for_entries_in_flight() -> None:
    stage = WriterStage()
    stage.append(2)
    stage.writing.seal(stage.sealed.append)
    stage.store.answer()
    assert stage.sealed == [] and stage.store.now.metadata == OPEN
    stage.acknowledge("a", "b")
    stage.store.answer()
    assert stage.sealed == [OPEN.closed(1, 4)]


def test_a_failed_writer_seals_what_it_confirmed() -> None:
    stage = WriterStage()
    stage.append(2, "a", "b")
    stage.append(3, "a")
    stage.writing.adding.fail(LedgerWriteFailed("no bookies"))
    assert stage.seal() == OPEN.closed(1, 4)


def test_a_writer_that_finds_its_ledger_taken_is_fenced() -> None:
    for taken in (OPEN.in_recovery(2), OPEN.closed(7, 8)):
        stage = WriterStage("d")
        stage.append(1, "a", "b")
        stage.store.put(taken)
        assert isinstance(stage.seal(), LedgerFenced) and stage.store.now.metadata == taken
        stage = WriterStage("d")
        stage.append(1)
        stage.store.put(taken)
        stage.writing.adding.lost("c", "gone")
        stage.store.answer()
        assert isinstance(stage.heard[0], LedgerFenced) and isinstance(stage.seal(), LedgerFenced)


def test_segments_replaced_by_autorecovery_are_kept() -> None:
    stage = WriterStage("d")
    stage.append(2, "a", "b")
    stage.writing.adding.lost("c", "gone")
    stage.store.answer()
    assert stage.store.now.metadata.segments[1:] == (Segment(2, ("a", "b", "d")),)
    healed = (Segment(0, ("a", "b", "e")), Segment(2, ("a", "b", "d")))
    stage.store.put(LedgerMetadata(3, 2, healed, custom=OPEN.custom))
    stage.link.taken()
    stage.append(1, "a", "b", "d")
    assert stage.heard == [0, 1, 2]
    outcome = stage.seal()
    assert isinstance(outcome, LedgerMetadata) and outcome.segments == healed and outcome.last_entry == 2


def test_an_ensemble_change_without_an_answer_is_looked_up() -> None:
    stage = WriterStage("d")
    stage.append(1, "a", "b")
    stage.store.unheard = 5
    stage.writing.adding.lost("c", "gone")
    stage.store.answer()
    assert stage.store.now.metadata == OPEN
    stage.writing.adding.tick(2_000)
    stage.store.answer()
    assert stage.store.now.metadata.segments[-1] == Segment(1, ("a", "b", "d"))


def test_an_entry_that_no_bookie_accepts_fails_the_writer() -> None:
    stage = WriterStage()
    stage.append(1)
    stage.writing.append(bytes(101), stage.heard.append)
    stage.writing.append(b"behind", stage.heard.append)
    assert stage.heard == []
    stage.acknowledge("a", "b")
    assert stage.heard[0] == 0
    assert [type(one) for one in stage.heard[1:]] == [LedgerWriteFailed] * 2
