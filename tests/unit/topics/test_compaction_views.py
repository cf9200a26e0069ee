# SPDX-License-Identifier: Apache-2.0
"""Compaction of in-memory logs: what stays, what is removed, and that every region gets the same view (R50)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.bounds.clients import BATCH_MESSAGES
from meridian_broker.bounds.compaction import COMPACTED_METADATA_BYTES
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.compaction.compactor import MESSAGE_COST, CompactionLimits
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.batches import SOME, open_batch
from meridian_broker.wire.pulsar.compression import PIECE_BYTES, STEP_BYTES, CompressionError, compress, decompress
from meridian_broker.wire.pulsar.metadata import build_body, parse
from support.worlds.compaction_world import (
    CHUNK,
    MARKER,
    Message,
    Region,
    batch_body,
    chunk_body,
    finished,
    single_body,
)

REGIONS = ("us-east", "us-west", "eu-central")
messages = st.builds(
    Message,
    st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d"])),
    st.one_of(st.just(b""), st.binary(min_size=1, max_size=3)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 2), st.lists(messages, min_size=1, max_size=3), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("compact"), st.integers(0, 2), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Geo:
    """Three regions, and which of each other's entries they have."""

    def __init__(self) -> None:
        self.regions = [Region(name, keys=3) for name in REGIONS]
        self.published: list[list[Position]] = [[], [], []]
        self.delivered = {(one, other): 0 for one in range(3) for other in range(3) if one != other}
        self.winners: dict[str, tuple[Any, bytes]] = {}
        self.keyless: set[Any] = set()

    async def publish(self, at: int, some: list[Message], publish_ms: int) -> None:
        region = self.regions[at]
        is_single = len(some) == 1 and publish_ms % 2
        body = single_body(some[0], publish_ms) if is_single else batch_body(some, publish_ms, compression=publish_ms)
        position = await region.publish(body)
        self.published[at].append(position)
        for index, message in enumerate(some):
            of = (region.name, position, index)
            if message.key is None:
                self.keyless.add(of)
            else:
                rank = (publish_ms, *of)
                if message.key not in self.winners or rank > self.winners[message.key][0]:
                    self.winners[message.key] = (rank, message.payload)

    async def deliver(self, source: int, target: int) -> None:
        at = self.delivered[source, target]
        if at < len(self.published[source]):
            self.delivered[source, target] += 1
            await self.regions[target].receive(self.regions[source], self.published[source][at])

    async def run(self, step: tuple[str, int, Any, int]) -> None:
        match step:
            case ("publish", at, some, publish_ms):
                await self.publish(at, some, publish_ms)
            case ("deliver", source, offset, _):
                await self.deliver(source, (source + offset) % 3)
            case (_, at, _, _):
                await self.regions[at].compact()


@given(steps)
def test_every_region_compacts_to_the_same_view_in_whatever_order_messages_arrive(story: list[Any]) -> None:
    async def play() -> None:
        geo = Geo()
        for step in story:
            await geo.run(step)
        for source, target in geo.delivered:
            while geo.delivered[source, target] < len(geo.published[source]):
                await geo.deliver(source, target)
        for region in geo.regions:
            await region.compact()
            seen = await region.messages()
            assert {of for key, _, of in seen if key is None} == geo.keyless
            values = {key: (of, payload) for key, payload, of in seen if key is not None}
            assert len(values) == sum(1 for key, _, _ in seen if key is not None)
            expected = {key: (rank[1:], payload) for key, (rank, payload) in geo.winners.items() if payload}
            assert values == expected

    asyncio.run(play())


def view_of(
    bodies: list[tuple[bytes, int]], *, compact_after: tuple[int, ...] = (), **options: Any
) -> tuple[Region, list[Position]]:
    """A region with published entries, compacted at the end and after each of these numbers of entries."""

    async def play() -> tuple[Region, list[Position]]:
        region = Region("one", by_time=False, **options)
        positions = []
        for number, (body, flags) in enumerate(bodies):
            if number in compact_after:
                await region.compact()
            positions.append(await region.publish(body, flags=flags))
        await region.compact()
        region_entries.append(await region.entries())
        return region, positions

    region_entries.clear()
    return asyncio.run(play())


region_entries: list[Any] = []


def seen(bodies: list[tuple[bytes, int]], **options: Any) -> list[int]:
    """The entries that the view contains."""
    _, positions = view_of(bodies, **options)
    return [positions.index(position) for position, _, _ in region_entries[0]]


def test_in_one_region_the_later_position_wins_whatever_the_clocks_say() -> None:
    bodies = [(single_body(Message("k", b"%d" % at), 100 - at), 0) for at in range(4)]
    assert seen(bodies) == [3]
    assert seen(bodies, compact_after=(1, 2)) == [3]


def test_an_empty_message_deletes_its_key_and_a_later_one_brings_it_back() -> None:
    put, delete = (single_body(Message("k", b"v"), 1), 0), (single_body(Message("k"), 1), 0)
    assert seen([put, delete]) == []
    assert seen([put, delete, put]) == [2]
    assert seen([put, delete, put], compact_after=(1, 2)) == [2]


def test_markers_are_removed_and_messages_without_a_key_stay_unless_unwanted() -> None:
    keyless = single_body(Message(None, b"v"), 1)
    bodies = [(keyless, 0), (keyless, MARKER), (batch_body([Message(None, b"1"), Message("k", b"2")], 1), 0)]
    assert seen(bodies) == [0, 2]
    assert seen(bodies, keep_keyless=False) == [2]
    assert region_entries[0][0][1].kept == 0b10


def test_a_chunked_message_stays_or_goes_as_a_whole() -> None:
    first = [(chunk_body("k", "p-1", number, 3), CHUNK) for number in range(3)]
    second = [(chunk_body("k", "p-2", number, 2), CHUNK) for number in range(2)]
    assert seen([*first, *second]) == [3, 4]
    mixed = [first[0], second[0], first[1], second[1], first[2]]
    assert seen(mixed) == [0, 2, 4]
    assert seen(mixed, compact_after=(1, 2, 3, 4)) == [0, 2, 4]
    assert seen([*second, *first[:2]]) == [0, 1, 2, 3], "an incomplete one stays beside the one before it"


def test_entries_that_cannot_be_decoded_stay_whole() -> None:
    old = [Message("k", b"1"), Message("l", b"1")]
    encrypted = (batch_body(old, 1, encrypted=True), 0)
    damaged = (batch_body(old, 1)[:-1], 0)
    foreign = batch_body(old, 1)
    newer = (batch_body(old, 2), 0)
    assert seen([encrypted, damaged, (foreign, 0), newer]) == [0, 1, 3]


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_a_batch_is_rebuilt_with_its_indexes_and_its_codec(codec: int) -> None:
    first = [Message("a", b"1" * 100), Message("b", b"2" * 100), Message("c", b"3" * 100)]
    bodies = [(batch_body(first, 1, compression=codec), 0), (single_body(Message("b", b"9"), 1), 0)]
    region, _ = view_of(bodies, compact_after=(1,))
    (_, header, body), _ = region_entries[0]
    assert header.messages == 3
    assert header.kept == 0b101
    assert parse(body).compression == codec
    assert parse(body).num_messages_in_batch == 3
    assert region.view is not None
    assert region.view.record.entries == 2


def test_a_key_that_is_not_text_costs_the_entry_only_its_key() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
    odd = build_body(metadata + b"\x32\x02\xff\xfe", b"v")
    in_batch = batch_body([Message("kk", b"v")], 1).replace(b"kk", b"\xff\xfe")
    assert seen([(odd, 0), (in_batch, 0), (single_body(Message("k", b"v"), 1), 0)]) == [0, 1, 2]


def test_a_batch_of_too_many_messages_stays_whole() -> None:
    body = batch_body([Message("k")] * (BATCH_MESSAGES + 1), 1, compression=pb.ZSTD)
    assert finished(open_batch(body, parse(body), 1 << 30)) is None
    large = parse(body)
    large.num_messages_in_batch = 1
    assert finished(open_batch(body, large, large.uncompressed_size - 1)) is None


def test_a_batch_is_decoded_in_small_steps() -> None:
    body = batch_body([Message("k")] * 20 * SOME, 1, compression=pb.ZSTD)
    metadata = parse(body)
    steps = list(open_batch(body, metadata, 1 << 30))
    assert len(steps) > 20
    assert max(steps) <= max(2 * SOME, metadata.uncompressed_size // STEP_BYTES)


def test_a_message_of_a_batch_with_very_large_metadata_is_not_parsed() -> None:
    body = batch_body([Message("k" * COMPACTED_METADATA_BYTES, b"v")], 1)
    assert finished(open_batch(body, parse(body), 1 << 30)) is None


@pytest.mark.parametrize("codec", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_a_codec_returns_its_input_and_never_more_than_was_announced(codec: int) -> None:
    whole = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"
    packed = finished(compress(codec, whole))
    assert finished(decompress(codec, packed, len(whole), len(whole))) == whole
    for size, limit in ((len(whole), len(whole) - 1), (len(whole) - 1, 1 << 30), (len(whole) + 1, 1 << 30)):
        with pytest.raises(CompressionError):
            finished(decompress(codec, packed, size, limit))
    with pytest.raises(CompressionError):
        finished(decompress(codec, packed[:-9], len(whole), 1 << 30))


def test_a_batch_of_many_messages_is_compacted_in_turns_and_can_be_interrupted() -> None:
    class Stopped(Exception):
        pass

    class Checks:
        """Raises at the ``last`` check."""

        def __init__(self, last: int) -> None:
            self.asked = 0
            self.last = last

        def __call__(self) -> None:
            self.asked += 1
            if self.asked == self.last:
                raise Stopped

    async def play() -> None:
        region = Region("one", by_time=False)
        await region.publish(batch_body([Message("k", b"v")] * 10_000, 1, compression=pb.ZLIB))
        whole = Checks(0)
        await region.compact(whole)
        assert whole.asked > 10
        ((position, header, _),) = await region.entries()
        assert header.kept == 1 << 9_999
        await region.publish(single_body(Message("k", b"w"), 2))
        stopped = Checks(5)
        with pytest.raises(Stopped):
            await region.compact(stopped)
        assert stopped.asked == 5
        assert [place for place, *_ in await region.entries()] == [position]

    asyncio.run(play())


class Hurried(LoopScheduler):
    """Does not wait, and records how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.waits.append(seconds)
        return super().later(0, callback)


def test_an_entry_of_an_older_version_with_an_absurd_count_delays_compaction_by_seconds_at_most() -> None:
    async def play() -> None:
        region = Region("one", by_time=False)
        rate = 16 << 20
        region.limits = CompactionLimits(1000, rate, keep_keyless=True)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        metadata.num_messages_in_batch = (1 << 31) - 1
        await region.publish(build_body(metadata.SerializeToString(), b"x"))
        region.scheduler = hurried = Hurried()
        await region.compact()
        assert 0 < max(hurried.waits) <= BATCH_MESSAGES * MESSAGE_COST / rate

    asyncio.run(play())


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghij"), st.booleans()), max_size=40),
    st.integers(1, 6),
    st.sets(st.integers(0, 40), max_size=3),
)
def test_memory_for_few_keys_gives_the_same_view(
    published: list[tuple[str, bool]], keys: int, compact_after: set[int]
) -> None:
    bodies = [(single_body(Message(key, b"v" if full else b""), 1), 0) for key, full in published]
    newest = {key: at for at, (key, _) in enumerate(published)}
    expected = sorted(at for at in newest.values() if published[at][1])
    assert seen(bodies, keys=keys, compact_after=tuple(compact_after)) == expected


def test_a_view_knows_the_position_of_each_entry() -> None:
    bodies = [(single_body(Message("k" if at % 3 else None, b"v"), 1), 0) for at in range(14)]
    region, positions = view_of(bodies)
    view = region.view
    assert view is not None
    kept = [positions[at] for at in (0, 3, 6, 9, 12, 13)]
    assert view.horizon == positions[-1]
    assert view.last == kept[-1]
    for place in [EARLIEST, Position(0, 0), *positions, Position(99, 0)]:
        following = [one for one in kept if one > place]
        assert view.after(place) == (following[0] if following else None)
        assert view.holds(place) == (place in kept)
