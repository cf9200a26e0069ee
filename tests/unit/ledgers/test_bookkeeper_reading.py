# SPDX-License-Identifier: Apache-2.0
"""Reading from bookies that lack entries, damage them, are slow, or do not answer."""

from __future__ import annotations

from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from meridian_broker.engines.bookkeeper.packets import Code
from meridian_broker.engines.bookkeeper.reading import BATCH_BYTES, Reading
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from support.worlds.bookie_stand_ins import LEDGER, Asked, stored

CLOSED = LedgerMetadata(3, 2, (Segment(0, ("a", "b", "c")), Segment(10, ("d", "b", "c")))).closed(19, 20)
DAMAGED = stored(0)[:-1] + b"?"


class Stage:
    def __init__(self, first: int, last: int, max_bytes: int = 1000, prefer: str = "a") -> None:
        self.ask = Asked()
        self.told: list[tuple[list[bytes] | LedgerError, str]] = []
        Reading(
            *(LEDGER, CLOSED, self.ask, first, last, max_bytes, lambda *told: self.told.append(told)), prefer=prefer
        ).start()

    @property
    def entries(self) -> list[bytes]:
        (outcome, _) = self.told[0]
        assert not isinstance(outcome, LedgerError), outcome
        return outcome

    @property
    def error(self) -> LedgerError:
        (outcome, _) = self.told[0]
        assert isinstance(outcome, LedgerError), outcome
        return outcome


def test_a_read_stays_with_the_bookie_that_answers() -> None:
    stage = Stage(0, 2)
    assert list(stage.ask.told) == [("a", 0)]
    stage.ask.say("a", 0, stored(0), stored(1))
    stage.ask.say("a", 2, stored(2))
    assert stage.told == [([b"0", b"1", b"2"], "a")]


def test_a_read_keeps_within_its_bytes_and_its_last_entry() -> None:
    stage = Stage(0, 9, max_bytes=12)
    stage.ask.say("a", 0, *(stored(entry, size=5) for entry in range(4)))
    assert stage.entries == [b"0" * 5, b"1" * 5]
    stage = Stage(0, 9, max_bytes=0)
    assert stage.ask.batches[0][2] == 1
    stage.ask.say("a", 0, stored(0))
    assert stage.entries == [b"0"]
    stage = Stage(0, 1)
    stage.ask.say("a", 0, stored(0), stored(1), stored(2))
    assert stage.entries == [b"0", b"1"]
    stage = Stage(0, 1 << 40, max_bytes=1 << 40)
    assert stage.ask.batches == [("a", 0, 10, BATCH_BYTES)]


def test_a_request_ends_at_the_end_of_a_segment() -> None:
    stage = Stage(8, 11)
    assert stage.ask.batches[0][:3] == ("a", 8, 2)
    stage.ask.say("a", 8, stored(8), stored(9))
    ((bookie, first),) = stage.ask.told
    assert first == 10 and bookie in "dbc"
    stage.ask.say(bookie, 10, stored(10), stored(11))
    assert stage.entries == [b"8", b"9", b"0", b"1"]


def test_the_next_bookie_is_asked_for_entries_missing_or_damaged_on_one() -> None:
    for bodies, code in (([], Code.NO_ENTRY), ([], Code.NO_LEDGER), ([DAMAGED], None), ([], Code.DISCONNECTED)):
        stage = Stage(0, 0)
        stage.ask.say("a", 0, *bodies, code=code)
        stage.ask.say("b", 0, stored(0))
        assert stage.told == [([b"0"], "b")]


def test_intact_entries_before_a_damaged_one_are_returned() -> None:
    stage = Stage(0, 1)
    stage.ask.say("a", 0, stored(0), DAMAGED)
    stage.ask.say("a", 1, DAMAGED)
    stage.ask.say("b", 1, stored(0))  # not the requested entry
    stage.ask.say("c", 1)
    assert stage.entries == [b"0"]


def test_a_slow_bookie_is_not_waited_for() -> None:
    stage = Stage(0, 0)
    stage.ask.pass_time()
    assert list(stage.ask.told) == [("a", 0), ("b", 0)]
    stage.ask.say("b", 0, stored(0))
    assert stage.told == [([b"0"], "b")]
    stage.ask.say("a", 0, stored(0))
    stage.ask.pass_time()
    assert len(stage.told) == 1


def test_a_slow_bookie_is_waited_for_if_the_others_lack_the_entry() -> None:
    stage = Stage(0, 0)
    stage.ask.pass_time()
    stage.ask.say("b", 0)
    stage.ask.say("c", 0, code=Code.NO_ANSWER)
    assert stage.told == []
    stage.ask.say("a", 0, stored(0))
    assert stage.told == [([b"0"], "a")]


def test_damaged_everywhere_is_distinguished_from_unreadable_now() -> None:
    stage = Stage(0, 0)
    stage.ask.say("a", 0, DAMAGED)
    stage.ask.say("b", 0)
    stage.ask.say("c", 0, code=Code.NO_LEDGER)
    assert isinstance(stage.error, LedgerCorrupt) and "a: DAMAGED, b: NO_ENTRY, c: NO_LEDGER" in str(stage.error)
    stage = Stage(0, 0)
    stage.ask.say("a", 0, DAMAGED)
    stage.ask.say("b", 0, code=Code.IO_ERROR)
    stage.ask.say("c", 0)
    assert isinstance(stage.error, LedgerUnreadable)
