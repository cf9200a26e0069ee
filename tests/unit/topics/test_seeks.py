# SPDX-License-Identifier: Apache-2.0
"""Seeks by time on a real topic (R12): each entry is judged by its own publish time, however disordered the times are,
and only what is necessary is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.admin.figures import backlogs
from meridian_broker.engines.memory.ledgers import MemoryReader
from meridian_broker.ledgers import block_times, times
from meridian_broker.ledgers.block_times import BLOCK, BlockTimes
from meridian_broker.ledgers.chapters import LogLimits
from meridian_broker.ledgers.entry import publish_time_ms
from meridian_broker.ledgers.pending import OwnEntry
from meridian_broker.ledgers.times import PublishTimes, first_since
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import drops, floors, log_walks, seeking
from meridian_broker.topics.subscriptions.subscription import Subscription
from support.worlds.topic_of_one_region import load_indexes
from support.worlds.topic_world import NAMES, START_MS, STEPS, TopicWorld

steps = st.lists(
    st.tuples(
        st.sampled_from((*STEPS, "foreign", "own", "own", "seek_to_time", "seek_to_time", "give_back")),
        st.integers(0, 60),
    ),
    min_size=8,
    max_size=40,
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """So that ledgers of five entries have several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (block_times, times, drops):
            patch.setattr(module, "BLOCK", 2)
        patch.setattr(times, "BLOCKS_MAX", 3)
        yield


class TimedWorld(TopicWorld):
    """Trimmed entries stay acknowledged, whatever is sought: regions that store them do not owe them again."""

    async def open(self) -> None:
        self.taken_back: dict[str, set[Position]] = {name: set() for name in NAMES}
        """Acked before a seek by time ruled it: without its time nobody can tell that it is not acked."""
        await super().open()

    async def seek_to_time(self, number: int) -> None:
        stored = [entry for entry in self.entries if entry.place not in self.trimmed]
        if not self.entries:
            return
        since_ms = self.entries[number // 2 % len(self.entries)].published_ms + number % 3 - 1
        subscription = self.subscription(number)
        name, log = subscription.name, self.topic.log
        found = next((entry.place for entry in stored if entry.published_ms >= since_ms), None)
        assert await first_since(log, since_ms) == found
        target = found or Position(log.last_confirmed.ledger, log.last_confirmed.entry + 1)
        before = {entry.place for entry in stored if entry.place < target}
        behind, done = {entry.place for entry in stored} - before, self.acked[name] | self.dropped[name]
        epoch = subscription.cursor.progress.epoch
        await seeking.seek_to_time(subscription.cursor, since_ms)
        if subscription.cursor.progress.epoch == epoch:
            assert not behind & done
        else:
            assert behind & (done | self.taken_back[name])
            ruled = {entry.place for entry in stored if entry.published_ms >= since_ms}
            self.taken_back[name] |= self.acked[name] & ruled
            self.acked[name] -= ruled
            self.dropped[name] = set()
        self.acked[name] |= before

    async def give_back(self, number: int) -> None:
        """Both subscriptions have acknowledged most entries, and ledgers are deleted."""
        for which in (0, 1):
            await self.cumulative(2 * number + which)
        await self.settle()
        await self.trim(number)

    async def seek(self, number: int) -> None:
        entry, subscription = self._choose(number), self.subscription(number)
        if entry is not None:
            trimmed = self.acked[subscription.name] & self.trimmed
            await super().seek(number)
            self.acked[subscription.name] |= trimmed

    def _note_trimmed(self) -> None:
        self.trimmed = {entry.place for entry in self.entries if not self.topic.log.holds(entry.place)}

    def owed(self, name: str) -> list[Position]:
        return [place for place in super().owed(name) if place not in self.trimmed]

    async def check(self) -> None:
        for name in NAMES:
            subscription, owed = self.topic.subscriptions[name], self.owed(name)
            assert self.topic.log.after(subscription.cursor.mark_delete) == (owed[0] if owed else None)
            await load_indexes(self.topic.log)
            await self.check_reports(subscription, owed)
            await self.check_backlog(subscription, owed)
            for entry in self.entries:
                acked = (entry.region, entry.origin, entry.published_ms)
                may_be = self.may_be_acked(name, entry.place)
                assert subscription.cursor.progress.is_acked(*acked) in may_be
                assert self.told.progress[name].is_acked(*acked) in may_be
                if entry.place not in self.trimmed:
                    if subscription.cursor.times is not None:
                        await subscription.cursor.times.load(entry.place)
                    is_owed = subscription.cursor.is_owed(entry.region, entry.origin, entry.place)
                    assert is_owed == (entry.place in owed)

    async def owed_nothing_upto(self, subscription: Subscription) -> dict[str, Position]:
        steps = floors.owed_nothing_upto(subscription.cursor)
        return await log_walks.carry_out(self.topic.log, self.topic.scheduler, steps)

    async def check_backlog(self, subscription: Subscription, owed: list[Position]) -> None:
        """However many entries are examined together, up to a block of times, the backlog and its holes are exact."""
        assert backlogs.CHUNK <= BLOCK, "so that a chunk lies in at most two blocks, both in memory"
        for chunk in (1, block_times.BLOCK):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backlogs, "CHUNK", chunk)
                found = await backlogs.backlog_of(subscription)
            assert found.backlog == len(owed)
            for entry in self.entries:
                if entry.place > found.mark_delete and entry.place not in self.trimmed:
                    assert any(after < entry.place <= upto for after, upto in found.holes) == (entry.place not in owed)

    async def check_reports(self, subscription: Subscription, owed: list[Position]) -> None:
        """However few entries are examined singly: nothing owed is reported as owed nowhere (R11)."""
        most = await self.owed_nothing_upto(subscription)
        for walk in (0, 2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(floors, "WALK", walk)
                upto = await self.owed_nothing_upto(subscription)
            assert all(end <= most[region] for region, end in upto.items())
            for entry in self.entries:
                assert entry.place not in owed or entry.origin > upto.get(entry.region, EARLIEST)
            if len(owed) == 0:
                continue
            behind = self.entries[[entry.place for entry in self.entries].index(owed[0]) :]
            if all(entry.place in owed for entry in behind):
                assert upto == most, "searching further would have found nothing"


class Reads:
    """Counts the entries that are read from the store."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entries = 0
        read = MemoryReader.read

        async def counted(reader: MemoryReader, *what: int) -> list[bytes]:
            found = await read(reader, *what)
            self.entries += len(found)
            return found

        patch.setattr(MemoryReader, "read", counted)


class LongWorld(TopicWorld):
    """Six ledgers; in every second thousand entries the times go back and forth."""

    LEDGER, LEDGERS = 2000, 6

    def limits(self) -> LogLimits:
        return LogLimits(max_entries=self.LEDGER, tail_bytes=0)

    async def fill(self) -> None:
        for first in range(0, self.LEDGER * self.LEDGERS, 250):
            moves = 300 * (first // 1000 % 2)
            numbers = range(first, first + 250)
            entries: list[OwnEntry] = [(0, 1, 0, 0, START_MS + n + moves * (n % 2), b"", b"x") for n in numbers]
            self.topic.log.append_own(entries, lambda *_: None, [0] * 250)
            await self.settle()
        self.topic.log.drop_tail()

    def cool(self) -> None:
        for _ in range(2):
            self.topic.log.cool_indexes(self.topic.needed_from().ledger)


@pytest.mark.parametrize("is_opened_anew", [False, True])
async def test_a_seek_by_time_reads_no_more_than_necessary(
    monkeypatch: pytest.MonkeyPatch, is_opened_anew: bool
) -> None:
    """One block to find the position; the one ledger consumed from there on; and if nothing is known since a
    restart, the ledger of the position."""
    for module in (block_times, times):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    world = LongWorld()
    await world.open()
    await world.fill()
    for name in NAMES:
        await seeking.seek(world.topic.subscriptions[name].cursor, Position(1 << 40, 0))
    if is_opened_anew:
        await world.topic.close("test")
        await world._open_topic()
    subscription, log = world.topic.subscriptions["one"], world.topic.log
    assert log.after(subscription.cursor.mark_delete) is None
    for back in (10_700, 7_100, 3_300, 9_900):  # the last seek goes forward
        world.cool()
        reads = Reads(monkeypatch)
        before = subscription.cursor.mark_delete
        await seeking.seek_to_time(subscription.cursor, START_MS + back)
        await world.settle()
        following = log.after(subscription.cursor.mark_delete)
        assert following is not None
        limit = 2 * BLOCK + world.LEDGER
        if subscription.cursor.mark_delete > before:
            limit += log.distance(before, log.last_confirmed)
        assert reads.entries <= limit + world.LEDGER * is_opened_anew
        entries = [one for ledger, _, _ in log.counts() for one in world.disk.ledgers[ledger].entries]
        earlier = entries[: log.distance(EARLIEST, following) - 1]
        assert max(map(publish_time_ms, earlier)) < START_MS + back
        assert publish_time_ms(await log.read_one(following)) >= START_MS + back


def test_a_group_in_two_blocks_counts_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_times, "BLOCK", BLOCK)
    known = BlockTimes()
    known.note(0, BLOCK + 3, 5, 9)
    known.note(BLOCK + 3, 1, 7, (1 << 64) - 1)
    assert known.latest_ms == (1 << 64) - 1
    between = [known.between(entry) for entry in (0, BLOCK - 1, BLOCK, 2 * BLOCK)]
    assert between == [(5, 9), (5, 9), (5, known.latest_ms), None]


@given(steps)
def test_a_seek_by_time_judges_each_entry_by_its_own_time(story: list[tuple[str, int]]) -> None:
    asyncio.run(TimedWorld().live(story))


async def test_a_backlog_is_exact_if_not_all_times_of_a_ledger_are_in_memory() -> None:
    sought = [("own", 0), ("own", 1), ("foreign", 0), *[("own", 0)] * 5, ("own", 1), ("ack", 6), *[("own", 0)] * 2]
    await TimedWorld().live([*sought, ("own", 1), ("seek_to_time", 8)])


async def test_a_seek_by_time_to_the_cursors_position_undoes_nothing() -> None:
    """Even if the log begins with an empty ledger: trimmed entries stay acknowledged everywhere."""
    given_back = [("own", 0), ("own", 0), ("ack", 0), ("truncate", 0)]
    await TimedWorld().live([*given_back, ("seek_to_time", 0), ("seek_to_time", 0)])


async def test_times_used_again_stay_longer() -> None:
    """Dropping a page of entries loads all their times first, some of which are in memory."""
    world = TimedWorld()
    await world.open()
    for number in (0, 5) * 5:
        await world.own(number)
        await world.settle()
    times, places = PublishTimes(world.topic.log, [START_MS]), [world.entries[n].place for n in (0, 2, 5, 7)]
    for which in (0, 1, 2, 0, 3):
        await times.load(places[which])
    assert [bool(times.of(place)) for place in places] == [True, False, True, True]
