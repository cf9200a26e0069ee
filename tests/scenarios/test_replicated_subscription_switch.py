# SPDX-License-Identifier: Apache-2.0
"""Consumers move between regions: what was acknowledged in one is delivered in no other, all else is (R10-R20)."""

from __future__ import annotations

import asyncio

import pulsar
import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectionLost
from meridian_broker.gateway.roles import Consumer
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LATEST,
    PATIENCE_MS,
    SHARED,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    rest,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)

REGIONS = (EAST, WEST, CENTRAL)


def publish_everywhere(regions: RegionsProcess, topic: str, numbers: range, *, batching: bool = False) -> None:
    """Each region publishes its share, as far as the log is concerned at the same time as the others."""
    for index, region in enumerate(REGIONS):
        with client(regions, region) as one:
            publish(one, topic, numbered(numbers[index :: len(REGIONS)]), batching=batching)
    for region in REGIONS:
        assert sorted(stored(regions, region, topic, len(numbers))) == list(numbers), region


@pytest.mark.parametrize(("kind", "batching"), [(SHARED, False), (SHARED, True), (KEY_SHARED, False)])
def test_a_planned_switch_with_holes(regions: RegionsProcess, kind: pulsar.ConsumerType, batching: bool) -> None:
    topic = new_topic("holes")
    publish_everywhere(regions, topic, range(300), batching=batching)
    left = list(range(300))
    for turn, region in enumerate((EAST, WEST, CENTRAL, EAST)):
        with client(regions, region) as one:
            consumer = subscribe(one, topic, kind=kind, batch_index_ack_enabled=batching)
            messages = take(consumer, len(left))
            assert sorted(int(message.data()) for message in messages) == left, f"turn {turn} in {region}"
            # Newest first, so that every acknowledgement but the last leaves a hole before it.
            for message in reversed(messages):
                if int(message.data()) % 5 == turn:
                    consumer.acknowledge(message)
                    left.remove(int(message.data()))
            consumer.close()
    with client(regions, WEST) as one:
        take_numbers(subscribe(one, topic, kind=kind, batch_index_ack_enabled=batching), left)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_one_batch_shared_out_over_three_regions(regions: RegionsProcess) -> None:
    """R18: bits of one batch, acknowledged in different regions, make it whole."""
    topic = new_topic("one-batch")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(90)), batching=True)
    left = set(range(90))
    for turn, region in enumerate(REGIONS):
        with client(regions, region) as one:
            consumer = subscribe(one, topic, batch_index_ack_enabled=True)
            messages = take(consumer, len(left))
            assert {int(message.data()) for message in messages} == left
            for message in messages:
                if int(message.data()) % 3 == turn:
                    consumer.acknowledge(message)
                    left.discard(int(message.data()))
            consumer.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_a_planned_switch_with_cumulative_acknowledgements(regions: RegionsProcess, kind: pulsar.ConsumerType) -> None:
    """ "Everything before" means before in that region's order, which is not the order of the next region."""
    topic = new_topic("cumulative")
    publish_everywhere(regions, topic, range(150))
    left = set(range(150))
    for region, count in ((EAST, 40), (WEST, 30), (CENTRAL, 30), (EAST, 49)):
        with client(regions, region) as one:
            consumer = subscribe(one, topic, kind=kind)
            messages = take(consumer, len(left))
            assert {int(message.data()) for message in messages} == left, region
            consumer.acknowledge_cumulative(messages[count - 1])
            left -= {int(message.data()) for message in messages[:count]}
            consumer.close()
    with client(regions, CENTRAL) as one:
        take_numbers(subscribe(one, topic, kind=kind), left)


def test_the_pieces_of_large_messages_are_acknowledged_together(regions: RegionsProcess) -> None:
    """R18: a chunked message is acknowledged as a whole, in every region."""
    topic = new_topic("chunks")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic, batching_enabled=False, chunking_enabled=True)
        bodies = [bytes([number]) * (6 << 20) for number in range(3)]  # more than one message may have
        for body in bodies:
            producer.send(body)
        consumer = subscribe(east, topic)
        messages = take(consumer, 3)
        assert [message.data() for message in messages] == bodies
        consumer.acknowledge(messages[1])
        consumer.close()
        consumer = subscribe(west, topic)
        messages = take(consumer, 2)
        assert sorted(message.data()[0] for message in messages) == [0, 2]
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_a_consumer_without_the_flag_changes_nothing(regions: RegionsProcess) -> None:
    """The client says in every SUBSCRIBE whether it wants replication; only a yes has an effect."""
    topic = new_topic("flag")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        subscribe(east, topic).close()
        publish(east, topic, numbered(range(20)))
        consumer = east.subscribe(topic, "s", consumer_type=SHARED)
        for message in take(consumer, 15):
            consumer.acknowledge(message)
        consumer.close()
        take_numbers(subscribe(west, topic), range(15, 20))


def test_two_consumers_hand_over_while_messages_come(regions: RegionsProcess) -> None:
    """The switch happens amid traffic: nothing is delivered twice, nothing is missing."""
    topic = new_topic("traffic")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        seen: list[int] = []
        published = 0
        for turn in range(6):
            for _ in range(200):
                producer.send_async(b"%d" % published, lambda _result, _place: None)
                published += 1
            consumer = subscribe((east, west)[turn % 2], topic, receiver_queue_size=50)
            for _ in range(150):
                message = consumer.receive(PATIENCE_MS)
                seen.append(int(message.data()))
                consumer.acknowledge(message)
            consumer.close()
        producer.flush()
        assert len(set(seen)) == len(seen), "a message came again"
        consumer = subscribe(west, topic)
        take_numbers(consumer, set(range(published)) - set(seen))


def test_a_subscription_is_everywhere_before_anybody_subscribes_there(regions: RegionsProcess) -> None:
    """R15: the subscription appears at the same place in the other regions."""
    topic = new_topic("everywhere")
    publish_everywhere(regions, topic, range(60))
    with client(regions, EAST) as east:
        subscribe(east, topic, "from-the-start").close()
        subscribe(east, topic, "from-now", initial=LATEST).close()
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 60, "from-the-start")
            wait_for_backlog(regions, region, topic, 0, "from-now")
        publish(east, topic, numbered(range(60, 70)))
    for region in (WEST, CENTRAL):
        with client(regions, region) as one:
            consumer = subscribe(one, topic, "from-now", initial=LATEST)
            messages = take(consumer, 10)
            assert [int(message.data()) for message in messages] == list(range(60, 70)), region
            assert rest(consumer) == []
            consumer.close()


def test_a_rewind_takes_effect_in_every_region(regions: RegionsProcess) -> None:
    """R13: consumers elsewhere are disconnected and get the messages again; what they acknowledge then counts."""
    topic = new_topic("rewind")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        ids = publish(east, topic, numbered(range(100)))
        there = subscribe(west, topic)
        take_numbers(there, range(100))
        here = subscribe(east, topic)
        wait_for_backlog(regions, EAST, topic, 0)
        here.seek(ids[60])
        here.close()
        messages = take(there, 40)
        again = sorted(int(message.data()) for message in messages)
        assert again == list(range(60, 100)), "the consumer in the other region does not follow"
        for message in messages[:20]:
            there.acknowledge(message)
        done = {int(message.data()) for message in messages[:20]}
        there.close()
    with client(regions, CENTRAL) as central:
        take_numbers(subscribe(central, topic), set(again) - done)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


async def test_late_acknowledgements_count_in_the_epoch_of_their_dispatch(regions: RegionsProcess) -> None:
    """R13: a client acknowledges messages from before a rewind unknown to it: that undoes no part of the rewind."""
    topic = new_topic("late")
    with client(regions, EAST) as east:
        ids = await asyncio.to_thread(publish, east, topic, numbered(range(20)))
        connection = await PulsarClientConnection.connect(regions.service_url(WEST))
        there = await Consumer.subscribe(connection, topic, "s", replicated=True)
        messages = [await there.receive() for _ in range(20)]
        there.acknowledge(*(message.position for message in messages[10:]))
        await asyncio.to_thread(wait_for_backlog, regions, EAST, topic, 10)
        here = await asyncio.to_thread(subscribe, east, topic, start_message_id_inclusive=True)
        await asyncio.to_thread(here.seek, ids[15])
        with pytest.raises(ConnectionLost):
            await there.receive()
        there.acknowledge(*(message.position for message in messages[5:]))
        await connection.partitions(topic)  # its answer comes after the acknowledgements are read
        await connection.close()
        await asyncio.to_thread(here.close)
    with client(regions, CENTRAL) as central:
        await asyncio.to_thread(take_numbers, subscribe(central, topic), range(15, 20))


def test_a_seek_forward_acknowledges_everywhere(regions: RegionsProcess) -> None:
    topic = new_topic("forward")
    with client(regions, EAST) as east:
        ids = publish(east, topic, numbered(range(80)))
        consumer = subscribe(east, topic, start_message_id_inclusive=True)
        consumer.seek(ids[50])
        consumer.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 30)
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), range(50, 80))


def test_rewinds_in_two_regions_at_once_agree_on_one(regions: RegionsProcess) -> None:
    topic = new_topic("two-rewinds")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        ids = publish(east, topic, numbered(range(50)))
        assert stored(regions, WEST, topic, 50) == list(range(50))
        consumers = [subscribe(one, topic, start_message_id_inclusive=True) for one in (east, west)]
        messages = take(consumers[0], 50)
        for message in messages:
            consumers[0].acknowledge(message)
        wait_for_backlog(regions, WEST, topic, 0)
        consumers[0].seek(ids[40])
        seek_once_connected(consumers[1], pulsar.MessageId.earliest)
        for consumer in consumers:
            consumer.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 50)


def seek_once_connected(consumer: pulsar.Consumer, place: pulsar.MessageId) -> None:
    """A rewind elsewhere disconnects consumers: while this one reconnects, the client refuses to seek, and a seek that
    crosses that on the wire is for a consumer that no longer exists."""

    def done() -> bool:
        try:
            consumer.seek(place)
        except (pulsar.NotConnected, pulsar.BrokerMetadataError):
            return False
        return True

    wait_until(done, "the consumer to be connected")
