# SPDX-License-Identifier: Apache-2.0
"""Markers from an Apache Pulsar region's replicator: what is answered, and what they move (PIP-33)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from meridian_broker.admin.figures import lagging
from meridian_broker.admin.meridian.snapshots import snapshots_json
from meridian_broker.bounds.snapshots import MARKER_BODY_BYTES, REQUESTS_PER_SECOND
from meridian_broker.ledgers.entry import MARKER, pack_extras, unpack
from meridian_broker.positions import ZERO, Progress
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.entry_metadata import unchained_header
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.snapshots.host import SnapshotSettings, TopicSnapshots
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, markers, metadata
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)
from support.worlds.from_pulsar import APACHE, entered
from support.worlds.topic_of_one_region import Region

OTHER = "other-apache"
SETTINGS = SnapshotSettings()
TO = {SnapshotResponse: (APACHE,), Snapshot: ("us",)}
"""The regions that a marker is for; others are for all."""


class Told:
    """The other Meridian regions."""

    def __init__(self) -> None:
        self.deltas: list[Progress] = []

    def local_change(self, _topic: str, _name: str, delta: Progress, *_: Any, **__: Any) -> None:
        self.deltas.append(delta)

    def send_pending(self) -> None: ...

    def barrier(self, _topic: str, _name: str, passed: Any) -> None:
        passed()


async def opened(*, pulsar: Sequence[str] = (APACHE,)) -> Region:
    one = Region()
    await one.start()
    follow(one, pulsar)
    return one


def follow(one: Region, pulsar: Sequence[str] = (APACHE,)) -> TopicSnapshots:
    made = TopicSnapshots(one.topic, lambda: SETTINGS, lambda *_: True, lambda: frozenset(pulsar), lambda _: None)
    one.topic.move_by(made)
    return made


def brought(marker: Marker, source: str | None, *, only_to: str | None = None, padding: int = 0) -> Send:
    """A marker as Pulsar's replicator sends it."""
    body = markers.marker_body(marker, 1, only_to)
    said = metadata.parse(body)
    said.replicated_from = APACHE
    if source is not None:
        said.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value=source)
    if padding:
        said.properties.add(key="padding", value="x" * padding)
    content = body[metadata.scan(body).payload_offset :]
    frame = b"".join(encode.send(1, 7, metadata.build_body(said.SerializeToString(), content)))
    (send,) = FrameDecoder().feed(frame)
    assert isinstance(send, Send)
    return send._replace(marker=True)


async def written(one: Region) -> list[Marker]:
    """The markers that this region wrote."""
    found, at = list[Marker](), EARLIEST
    while some := await one.topic.log.read_after(at, 1000, 1 << 20):
        for _, entry in some:
            if entry[1] & MARKER:
                header = unpack(entry)
                body = entry[header.body_offset :]
                marker = markers.read(body, metadata.scan(body))
                assert marker is not None
                assert header.replicate_to == TO.get(type(marker))
                found.append(marker)
        at = some[-1][0]
    return found


async def answers(one: Region) -> list[SnapshotResponse]:
    return [marker for marker in await written(one) if isinstance(marker, SnapshotResponse)]


async def bring(one: Region, producer: Producer, *sends: Send) -> None:
    for send in sends:
        one.topic.publish_foreign(producer, send)
    await one.settle()


async def test_a_request_is_answered_with_the_end_of_the_log() -> None:
    one = await opened()
    await one.publish(3)
    producer, port = await entered(one)
    await bring(one, producer, brought(SnapshotRequest("id", APACHE), "3:1"))
    assert await answers(one) == [SnapshotResponse("id", Place("us", one.stored[2]))]
    assert [kind for kind, *_ in port.answers] == ["stored"], "it is confirmed, and not stored"
    assert port.answers[0][2] == 1 << 63


@pytest.mark.parametrize("dies", [False, True])
async def test_a_repeated_request_is_not_answered_again(dies: bool) -> None:
    """Pulsar uses one id for both rounds: the answer to a repeat would count as one to the second round."""
    one = await opened()
    producer, _ = await entered(one)
    request = brought(SnapshotRequest("id", APACHE), "3:1")
    await bring(one, producer, request)
    if dies:
        await one.kill()
        await one.start()
        follow(one)
        await one.topic.pulsar.open()
    producer, port = await entered(one)
    await bring(one, producer, request)
    assert len(await answers(one)) == 1
    assert [kind for kind, *_ in port.answers] == ["stored"]
    await bring(one, producer, brought(SnapshotRequest("id", APACHE), "3:2"))
    assert len(await answers(one)) == 2, "the second round has the same id"
    await one.kill()


async def test_without_a_position_a_request_is_answered_only_if_there_are_just_two_regions() -> None:
    for pulsar, count in ([APACHE], 1), ([APACHE, OTHER], 0):
        one = await opened(pulsar=pulsar)
        producer, _ = await entered(one, names_sources=False)
        await bring(one, producer, brought(SnapshotRequest("id", APACHE), None))
        assert len(await answers(one)) == count


@pytest.mark.parametrize(
    "marker",
    [
        SnapshotRequest("id", "eu"),
        SnapshotResponse("id", Place("eu", Position(1, 1))),
        SubscriptionUpdate("s", (Place("us", Position(1 << 40, 1)),)),
    ],
)
async def test_markers_for_other_regions_or_unknown_subscriptions_have_no_effect(marker: Marker) -> None:
    one = await opened()
    await one.publish(1)
    producer, port = await entered(one)
    await bring(one, producer, brought(marker, "3:1"))
    snapshots = one.topic.snapshots
    assert isinstance(snapshots, TopicSnapshots) and snapshots.refused == 1
    assert await answers(one) == [] and not one.topic.subscriptions
    assert [kind for kind, *_ in port.answers] == ["stored"], "the replicator goes on"


async def test_floods_and_huge_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await opened()
    monkeypatch.setattr(one.scheduler, "monotonic_ms", lambda: 1000)
    producer, port = await entered(one)
    await bring(one, producer, brought(SnapshotRequest("huge", APACHE), "2:1", padding=MARKER_BODY_BYTES))
    assert await answers(one) == []
    many = [brought(SnapshotRequest("id", APACHE), f"3:{number}") for number in range(REQUESTS_PER_SECOND + 50)]
    await bring(one, producer, *many)
    assert len(await answers(one)) == REQUESTS_PER_SECOND
    assert [kind for kind, *_ in port.answers] == ["stored"] * (len(many) + 1)


async def test_an_update_moves_a_subscription_and_the_other_meridian_regions_learn_of_it() -> None:
    one = await opened()
    one.topic.exchange = told = Told()  # type: ignore[assignment]
    await one.publish(6)
    producer, _ = await entered(one)
    await bring(one, producer, brought(SubscriptionUpdate("s", (Place("us", one.stored[3]),)), "3:1"))
    found = one.topic.subscriptions["s"]
    assert found.replicated and found.cursor.mark_delete == one.stored[3]
    assert any(delta.is_acked("us", one.stored[3]) for delta in told.deltas)
    assert found.cursor.first_hand is not None and found.cursor.first_hand.is_acked("us", one.stored[3])


async def test_an_update_skips_nothing_that_its_sender_could_not_have_received() -> None:
    """R31: a message that was not for it, and one of another Pulsar region."""
    one = await opened(pulsar=[APACHE, OTHER])
    others = [pack_extras(names, None) for names in (None, ("us", OTHER), None)]
    from_pulsar = [pack_extras(("us", name), None, (name, Position(4, 4))) for name in (OTHER, APACHE)]
    for extras in others + from_pulsar:
        await one.publish(1, extras)
    producer, _ = await entered(one)
    places = (Place("us", one.stored[-1]), Place(OTHER, Position(8, 8)))
    await bring(one, producer, brought(SubscriptionUpdate("s", places), "3:1"))
    progress = one.topic.subscriptions["s"].cursor.progress
    assert [progress.is_acked("us", place) for place in one.stored] == [True, False, True, False, True]


async def test_an_update_of_one_pulsar_does_not_count_for_messages_of_another() -> None:
    """All Meridian regions know their origin, but nobody here knows how those two Pulsars are linked (R31)."""
    one = await opened(pulsar=[APACHE, OTHER])
    said = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    body = metadata.build_body(said.SerializeToString(), b"x")
    for region in (OTHER, APACHE):
        header = unchained_header(0, metadata.scan(body), body, region, Position(4, 4), 1)
        one.topic.log.append_foreign(header, body, lambda *_: None, None)
    await one.settle()
    producer, _ = await entered(one)
    places = (Place("us", one.topic.log.last_confirmed), Place(OTHER, Position(8, 8)))
    await bring(one, producer, brought(SubscriptionUpdate("s", places), "5:1"))
    progress = one.topic.subscriptions["s"].cursor.progress
    assert [progress.is_acked(region, Position(4, 4)) for region in (OTHER, APACHE)] == [False, True]


async def test_an_update_does_not_undo_a_rewind() -> None:
    """R32: its sender does not know of it."""
    one = await opened()
    await one.publish(4)
    producer, _ = await entered(one)
    update = SubscriptionUpdate("s", (Place("us", one.stored[3]),))
    await bring(one, producer, brought(update, "3:1"))
    found = one.topic.subscriptions["s"]
    await seeking.seek(found.cursor, one.stored[0])
    await one.settle()
    await bring(one, producer, brought(update, "3:2"))
    assert found.cursor.mark_delete < one.stored[0]
    assert found.cursor.progress.epoch != ZERO


async def test_a_subscription_that_is_not_replicated_here_or_was_deleted_stays_as_it_is() -> None:
    one = await opened()
    await one.publish(4)
    producer, _ = await entered(one)
    own = one.topic.subscribing.create_subscription("own", EARLIEST)
    await bring(one, producer, brought(SubscriptionUpdate("own", (Place("us", one.stored[3]),)), "3:1"))
    assert own.cursor.mark_delete < one.stored[0]


async def test_a_wait_for_a_position_between_two_ledgers_ends() -> None:
    """For a position that never existed, nothing after it is acknowledged, and nobody waits for it."""
    one = await opened()
    await one.publish(12)  # five in each ledger
    producer, _ = await entered(one)
    nowhere = Position(one.stored[4].ledger, 1000)
    async with asyncio.timeout(5):
        await bring(one, producer, brought(SubscriptionUpdate("s", (Place("us", nowhere),)), "3:1"))
    assert one.topic.subscriptions["s"].cursor.mark_delete == one.stored[4]


async def test_a_marker_counts_once_everything_brought_before_it_is_durable() -> None:
    one = await opened()
    producer, port = await entered(one)
    said = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, replicated_from=APACHE)
    said.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value="3:1")
    (message,) = FrameDecoder().feed(b"".join(encode.send(1, 1, metadata.build_body(said.SerializeToString(), b"x"))))
    assert isinstance(message, Send)
    await bring(one, producer, message, brought(SnapshotRequest("id", APACHE), "3:2"))
    assert [kind for kind, *_ in port.answers] == ["stored", "stored"]
    await one.settle()
    (answer,) = await answers(one)
    ((first, _), *_) = await one.topic.log.read_after(EARLIEST, 1, 1 << 20)
    assert answer.place.position == first


async def test_what_is_not_sent_to_pulsar_is_shown() -> None:
    """R32: holes and rewinds."""
    one = await opened()
    await one.publish(4)
    found = one.topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
    (shown,) = lagging.pulsar_json(found, 0).values()
    assert shown["syncMode"] == "snapshot" and shown["notTold"] == []
    await one.ack("s", range(4), 0)
    await seeking.seek(found.cursor, one.stored[0])
    await one.settle()
    (shown,) = lagging.pulsar_json(found, 2).values()
    assert [sentence.split(" ")[0] for sentence in shown["notTold"]] == ["2", "a"]
    assert lagging.pulsar_json(one.topic.subscribing.create_subscription("own", EARLIEST), 0) == {}


async def test_a_fully_acknowledged_subscription_moves_pulsar_and_one_behind_is_announced() -> None:
    one = await opened()
    one.topic.exchange = Told()  # type: ignore[assignment]
    snapshots = one.topic.snapshots
    assert isinstance(snapshots, TopicSnapshots)
    await one.publish(4)
    for name in ("through", "behind"):
        one.topic.subscribing.create_subscription(name, EARLIEST, replicated=True)
    snapshots.follow()
    producer, _ = await entered(one)
    for _ in range(3):
        snapshots.look()
        await one.settle()
    (request,) = await written(one)
    assert isinstance(request, SnapshotRequest)
    await bring(one, producer, brought(SnapshotResponse(request.snapshot_id, Place(APACHE, Position(3, 9))), "3:10"))
    for _ in range(3):
        snapshots.look()
        await one.settle()
    _, taken, *named = await written(one)
    assert isinstance(taken, Snapshot) and taken.places == (Place(APACHE, Position(3, 9)),)
    unknown = (Place(APACHE, EARLIEST),)
    assert set(named) == {SubscriptionUpdate("behind", unknown), SubscriptionUpdate("through", unknown)}
    await one.ack("through", range(4), 0)
    for _ in range(3):
        snapshots.look()
        await one.settle()
    assert (await written(one))[4:] == [SubscriptionUpdate("through", taken.places)]


async def test_pulsar_is_told_once_other_meridian_regions_owe_nothing_older_than_its_link() -> None:
    """R31: what Pulsar sent only to them is not here, and an update would make it skip that."""
    one = await opened()
    one.topic.exchange = Told()  # type: ignore[assignment]
    one.topic.regions = lambda: frozenset({"us", "eu"})
    snapshots = one.topic.snapshots
    assert isinstance(snapshots, TopicSnapshots)
    await one.publish(4)
    found = one.topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
    producer, _ = await entered(one)
    since = one.topic.log.last_confirmed
    snapshots.follow()

    async def looked() -> list[Marker]:
        for _ in range(3):
            snapshots.look()
            await one.settle()
        return await written(one)

    for entry in (9, 11):
        *_, request = await looked()
        assert isinstance(request, SnapshotRequest)
        there = [SnapshotResponse(request.snapshot_id, Place(name, Position(3, entry))) for name in (APACHE, "eu")]
        await bring(one, producer, brought(there[0], f"3:{entry + 1}"))
        snapshots.received(markers.marker_body(there[1], 1, "us"), "eu")
    await looked()
    await one.ack("s", range(4), 0)
    *_, held = await looked()
    places = Place(APACHE, Position(3, 9)), Place("eu", Position(3, 9))
    assert held == SubscriptionUpdate("s", (Place(APACHE, EARLIEST), places[1]))
    (shown,) = lagging.pulsar_json(found, 0).values()
    assert "eu may still owe it" in shown["reason"] and "--without" in shown["reason"]
    assert snapshots_json(one.topic)["heldBackFirst"] == {"s": {APACHE: shown["reason"]}}

    def vouch(here: Position) -> None:
        update = SubscriptionUpdate("s", (Place(APACHE, EARLIEST), Place("us", here)))
        snapshots.received(markers.marker_body(update, 1), "eu")

    vouch(since)
    assert (await looked())[-1] == held, "it may have been said before the link began"
    vouch(one.topic.log.last_confirmed)
    assert (await looked())[-1] == SubscriptionUpdate("s", places)
    (shown,) = lagging.pulsar_json(found, 0).values()
    assert not shown["reason"] and not snapshots_json(one.topic)["heldBack"]


async def test_a_links_beginning_is_known_after_a_crash_and_set_again_when_a_region_returns() -> None:
    one = await opened()
    assert one.topic.pulsar.since(APACHE) == LATEST
    one.topic.pulsar.reached(APACHE)
    assert one.topic.pulsar.since(APACHE) == LATEST, "sending it something does not count"
    await one.publish(2)
    await entered(one)
    since = one.topic.log.last_confirmed
    await one.publish(2)
    await entered(one)
    await one.kill()
    await one.start()
    await one.topic.pulsar.open()
    assert one.topic.pulsar.since(APACHE) == since
    one.topic.region_left(APACHE)
    assert one.topic.pulsar.since(APACHE) == LATEST
    await entered(one)
    assert one.topic.pulsar.since(APACHE) == one.topic.log.last_confirmed > since
