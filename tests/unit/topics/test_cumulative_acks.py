# SPDX-License-Identifier: Apache-2.0
"""What a cumulative acknowledgement claims, by whole ledgers or entry by entry, and that other work runs meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers.chapters import CacheBudget, Chapter, Span
from meridian_broker.ledgers.entry import FOREIGN, MARKER, EntryHeader
from meridian_broker.ledgers.index import LedgerIndex, RegionCodes
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import EARLIEST, ZERO, Cause, Dropped, Position, Progress, Stamp
from meridian_broker.topics.cursors import log_walks, seeking
from meridian_broker.topics.cursors.log_walks import Exceptions
from meridian_broker.topics.cursors.resent import Resent
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.subscriptions.administration import NoClient
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region

OWN, OTHER, MARK, BACK, GAP = "own", "other", "mark", "back", "gap"
"""An own entry; one of another region; a marker; an own one that came back late; one of another region whose
predecessor is not stored here."""
KINDS = st.sampled_from([OWN, OWN, OWN, OTHER, MARK, BACK, GAP])
LEDGERS = st.lists(st.lists(KINDS, max_size=7) | st.integers(0, 7).map(lambda count: [OWN] * count), max_size=4)
FIRST = 100


class Entries(ReadableLog):
    """A log that consists only of its indexes."""

    def __init__(self, ledgers: list[list[str]], packed: bool) -> None:
        super().__init__("here", None, CacheBudget(0), None)  # type: ignore[arg-type]
        codes, own, other, back = RegionCodes("here"), EARLIEST, EARLIEST, Position(5, -1)
        self.loaded: dict[int, LedgerIndex] = {}
        self.places: list[Position] = []
        for ledger, kinds in enumerate(ledgers, FIRST):
            index = LedgerIndex(ledger, codes, own)
            for entry, kind in enumerate(kinds):
                self.places.append(Position(ledger, entry))
                header = EntryHeader(0, 0, 1, 0, 0, 1, 1, EARLIEST, None, None, None, None)
                if kind == MARK:
                    header = header._replace(flags=MARKER)
                elif kind == BACK:
                    prev, back = back, Position(5, back.entry + 1)
                    header = header._replace(flags=FOREIGN, region="here", origin=back, prev=prev)
                elif kind in (OTHER, GAP):
                    prev = other if kind == OTHER else Position(7, other.entry + 1)
                    other = Position(7, prev.entry + 1)
                    header = header._replace(flags=FOREIGN, region="there", origin=other, prev=prev)
                else:
                    own = Position(ledger, entry)
                index.add(header)
            if packed:
                index.pack()
            self.loaded[ledger] = index
            self._ids.append(ledger)
            self._chapters.append(Chapter(Span(ledger, entries=len(kinds))))
        self.last_confirmed = self.places[-1] if self.places else EARLIEST

    def load(self, ledger: int) -> None:
        self._chapters[self._ids.index(ledger)].index = self.loaded[ledger]

    def forget(self) -> None:
        """As ``cool_indexes`` does, at any time."""
        for chapter in self._chapters:
            chapter.index = None

    def entry_by_entry(
        self, delta: Progress, epoch: Stamp, after: Position, upto: Position, exceptions: Exceptions
    ) -> int:
        """The expected result, computed in the simplest way."""
        claimed = 0
        for position in self.places:
            place = self.loaded[position.ledger].place(position.entry)
            if place is None or not after < position <= upto or position in exceptions.withheld:
                continue
            if exceptions.only is not None and place.region not in exceptions.only:
                continue
            if exceptions.dropped is None or not exceptions.dropped.contains(place.region, place.origin):
                delta.ack(exceptions.counted(position, epoch), place.region, place.prev, place.origin)
                claimed += 1
        return claimed


@st.composite
def claims(draw: st.DrawFn) -> tuple[Entries, Position, Position, Exceptions]:
    log = Entries(draw(LEDGERS), draw(st.booleans()))
    places = [EARLIEST, *log.places, Position(FIRST + 9, 0)]
    after, upto = draw(st.sampled_from(places)), draw(st.sampled_from(places))
    dropped, resent = None, None
    if dropping := draw(st.lists(st.sampled_from(log.places), max_size=3)) if log.places else []:
        dropped = Dropped()
        for position in dropping:
            if (place := log.loaded[position.ledger].place(position.entry)) is not None:
                dropped.add(Cause.TTL, place.region, place.prev, place.origin)
    if draw(st.booleans()):
        resent = Resent(draw(st.sampled_from(places)))
        for position in draw(st.lists(st.sampled_from(places), max_size=4)):
            if position.entry >= 0:
                resent.note(position)
    only = draw(st.sampled_from([None, None, frozenset({"here"}), frozenset({"there"})]))
    withheld = frozenset(draw(st.lists(st.sampled_from(places), max_size=2)))
    return log, after, upto, Exceptions(dropped, resent, only, withheld)


@given(claims(), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.data())
def test_by_runs_it_claims_the_same_as_entry_by_entry(
    claim: tuple[Entries, Position, Position, Exceptions], slice_: int, costs: int, rewound: bool, data: st.DataObject
) -> None:
    log, after, upto, exceptions = claim
    by_runs, plain = Progress(), Progress()
    epoch = ZERO
    if rewound:
        epoch = Stamp(9, 0, "here")
        rules = {"here": (Position(5, 0), Position(FIRST + 1, 1)), "there": (EARLIEST, Position(7, 2))}
        for progress in (by_runs, plain):
            progress.rewind(Stamp(8, 0, "here"), {}, publish_time_ms=500)
            progress.rewind(epoch, rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_walks, "SLICE", slice_)
        patch.setattr(log_walks, "LEDGER_COSTS", costs)
        steps = log_walks.claim_between(log, by_runs, epoch, after, upto, exceptions)
        while True:
            try:
                wanted = next(steps)
            except StopIteration as done:
                claimed = done.value
                break
            if wanted is not None:
                log.load(wanted)
            elif data.draw(st.booleans()):
                log.forget()
    assert claimed == log.entry_by_entry(plain, epoch, after, upto, exceptions)
    if not rewound:
        assert by_runs == plain
    for index in log.loaded.values():
        for _, name, origin in index.origins(0, len(index) - 1):
            for time_ms in (0, 400, 600):
                assert by_runs.is_acked(name, origin, time_ms) == plain.is_acked(name, origin, time_ms)


@pytest.mark.parametrize(("kinds", "most"), [([OWN] * 50, 1), ([OWN, OTHER] * 25, 5)])
def test_no_step_examines_more_than_a_slice(kinds: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ledgers of own entries only the first and last are examined, in others each entry."""
    monkeypatch.setattr(log_walks, "SLICE", 5)
    log = Entries([kinds] * 3, packed=True)
    looked = 0
    place = LedgerIndex.place

    def counted(index: LedgerIndex, entry: int) -> Any:
        nonlocal looked
        looked += 1
        return place(index, entry)

    monkeypatch.setattr(LedgerIndex, "place", counted)
    for ledger in log.loaded:
        log.load(ledger)
    steps = log_walks.claim_between(log, Progress(), ZERO, EARLIEST, log.last_confirmed, Exceptions())
    turns = 0
    for _ in steps:
        assert looked <= 2 * most
        looked, turns = 0, turns + 1
    assert looked <= 2 * most
    assert turns >= 3


def consumer_of(one: Region) -> Consumer:
    subscription = one.topic.subscriptions["s"]
    return Consumer(subscription, NoClient(), 0, "", 0, BEGAN_MS, None, None, subscription.cursor.progress.epoch)


async def test_other_work_runs_meanwhile_and_it_becomes_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_walks, "SLICE", 2)
    monkeypatch.setattr(log_walks, "LEDGER_COSTS", 2)
    one = await region(s=True)
    await one.start()
    subscription, log = one.topic.subscriptions["s"], one.topic.log
    assert all(log.index(position.ledger) is None for position in one.stored[:-2])
    turns, answers = 0, list[LedgerError | None]()
    subscription.acknowledge_cumulative(consumer_of(one), one.stored[-1], None, answers.append)
    while not answers:
        is_begun = any(subscription.cursor.progress.is_acked("us", place) for place in one.stored)
        assert is_begun == all(subscription.cursor.progress.is_acked("us", place) for place in one.stored), (
            "all or nothing"
        )
        await asyncio.sleep(0)
        turns += 1
    assert answers == [None]
    assert turns > len({position.ledger for position in one.stored})
    assert all(subscription.cursor.progress.is_acked("us", place) for place in one.stored)
    await one.start()
    assert [change.kind for change in one.changes].count(Kind.ACKED) == 1


async def test_what_is_sent_while_it_is_computed_is_not_covered_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: acknowledging what was sent before a rewind does not count, even if it is sent again meanwhile."""
    monkeypatch.setattr(log_walks, "SLICE", 2)
    one = await region(s=True)
    await one.ack("s", range(12), 100)
    subscription = one.topic.subscriptions["s"]
    await seeking.seek(subscription.cursor, one.stored[0])
    await one.settle()
    resent = subscription.cursor.resent
    assert resent is not None
    for position in one.stored[:3]:
        resent.note(position)
    answers: list[LedgerError | None] = []
    subscription.acknowledge_cumulative(consumer_of(one), one.stored[-1], None, answers.append)
    for position in one.stored:
        resent.note(position)
    await one.settle()
    assert answers == [None]
    acked = [number for number, place in enumerate(one.stored) if subscription.cursor.progress.is_acked("us", place)]
    assert acked == [0, 1, 2]


async def test_an_unreadable_ledger_is_reported_as_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await region(s=True)
    await one.start()
    subscription, error = one.topic.subscriptions["s"], LedgerError("the disk is broken")

    async def broken(_: int) -> LedgerIndex:
        raise error

    monkeypatch.setattr(one.topic.log, "load_index", broken)
    answers: list[LedgerError | None] = []
    subscription.acknowledge_cumulative(consumer_of(one), one.stored[-1], None, answers.append)
    await one.settle()
    assert answers == [error]
    assert not any(subscription.cursor.progress.is_acked("us", place) for place in one.stored)
