# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions in snapshot mode (PIP-33), with three real regions and the real client."""

from __future__ import annotations

from typing import Any

import pulsar
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    PATIENCE_MS,
    SHARED,
    backlog,
    client,
    new_topic,
    numbered,
    publish,
    rest,
    stored,
    subscribe,
    take,
    wait_for_backlog,
)
from support.protocol.admin_paths import topic_path

SETTINGS = {
    "subscriptionSync": "snapshot",
    "replicatedSubscriptionsSnapshotFrequencyMillis": "100",
    "brokerDeduplicationEnabled": "true",
}
EAST, WEST, NORTH = REGIONS = ("east", "west", "north")


def entries(regions: RegionsProcess, region: str, topic: str) -> int:
    """All stored entries of a topic, markers included."""
    return int(regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json["numberOfEntries"])


def acknowledging(regions: RegionsProcess, east: pulsar.Client, topic: str) -> pulsar.Consumer:
    """A consumer that acknowledged all of five messages, which all regions have."""
    consumer = subscribe(east, topic)
    publish(east, topic, numbered(range(5)))
    for message in take(consumer, 5):
        consumer.acknowledge(message)
    for region in (WEST, NORTH):
        stored(regions, region, topic, 5)
    return consumer


def test_a_subscription_advances_everywhere_and_a_failover_delivers_the_rest(regions: RegionsProcess) -> None:
    topic = new_topic("moves")
    with client(regions, EAST) as east, client(regions, WEST) as west, client(regions, NORTH) as north:
        consumer = subscribe(east, topic)
        publish(east, topic, numbered(range(10)))
        publish(west, topic, numbered(range(10, 20)))
        publish(north, topic, numbered(range(20, 30)))
        for message in take(consumer, 30):
            consumer.acknowledge(message)
        for region in (WEST, NORTH):
            stored(regions, region, topic, 30)
            wait_for_backlog(regions, region, topic, 0)
        publish(north, topic, numbered(range(30, 35)))
        left = {int(message.data()) for message in take(consumer, 5)}
        consumer.close()
        stored(regions, WEST, topic, 35)
        elsewhere = subscribe(west, topic)
        assert set(rest(elsewhere, left)) == left
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 0)


def test_no_snapshot_moves_past_a_hole(regions: RegionsProcess) -> None:
    topic = new_topic("holes")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic, kind=SHARED)
        publish(east, topic, numbered(range(10)))
        messages = take(consumer, 10)
        for number, message in enumerate(messages):
            if number != 3:
                consumer.acknowledge(message)
        wait_for_backlog(regions, EAST, topic, 1)
        wait_until(lambda: backlog(regions, WEST, topic) is not None, "west to have the subscription")
        publish(east, topic, numbered(range(10, 12)))
        for message in take(consumer, 2):
            consumer.acknowledge(message)
        consumer.close()
        stored(regions, WEST, topic, 12)
        owed = {3, *range(4, 12)}
        assert set(rest(subscribe(west, topic), owed)) >= owed
        wait_for_backlog(regions, EAST, topic, 0)


def test_an_idle_topic_gets_no_markers_and_markers_are_not_messages(regions: RegionsProcess) -> None:
    topic = new_topic("rests")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic)
        local = east.subscribe(topic, "local", initial_position=pulsar.InitialPosition.Earliest)
        publish(east, topic, numbered(range(5)))
        for message in take(consumer, 5):
            consumer.acknowledge(message)
        stored(regions, WEST, topic, 5)
        wait_for_backlog(regions, WEST, topic, 0)
        counts: list[int] = []

        def is_at_rest() -> bool:
            counts.append(sum(entries(regions, region, topic) for region in REGIONS))
            return len(counts) > 20 and len(set(counts[-20:])) == 1

        wait_until(is_at_rest, "the regions to write no more markers")
        assert entries(regions, EAST, topic) > 5, "there are markers"
        assert sorted(rest(local, range(5))) == list(range(5))
        wait_for_backlog(regions, EAST, topic, 0, "local")
        reader = east.create_reader(topic, pulsar.MessageId.earliest)
        for _ in range(5):
            assert reader.has_message_available()
            reader.read_next(PATIENCE_MS)
        assert not reader.has_message_available()
        assert rest(subscribe(west, topic)) == []


def test_markers_hinder_neither_deduplication_nor_compaction_nor_deletion(regions: RegionsProcess) -> None:
    topic = new_topic("unimpeded")
    path = topic_path(topic)
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        producer = east.create_producer(topic, producer_name="p", batching_enabled=False)
        for number, key in enumerate("aba"):
            producer.send(b"%d" % number, partition_key=key, sequence_id=number)
        for message in take(consumer, 3):
            consumer.acknowledge(message)
        for region in (WEST, NORTH):
            stored(regions, region, topic, 3)
            wait_for_backlog(regions, region, topic, 0)
        assert entries(regions, EAST, topic) > 3, "there are markers"
        producer.send(b"2", partition_key="a", sequence_id=2)
        assert rest(consumer) == [], "a repeat is dropped"
        assert regions.http(EAST, "PUT", f"{path}/compaction").status == 204
        wait_until(
            lambda: regions.http(EAST, "GET", f"{path}/compaction").json["status"] == "SUCCESS", "the compaction to end"
        )
        reader = east.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        assert [reader.read_next(PATIENCE_MS).data() for _ in range(2)] == [b"1", b"2"]
        assert not reader.has_message_available()
        for one in (reader, producer, consumer):
            one.close()
    assert regions.http(WEST, "DELETE", path).status == 204, "without force: nobody uses it"

    def is_gone(region: str) -> bool:
        return topic not in regions.http(region, "GET", "/admin/v2/persistent/public/default").json

    for region in REGIONS:
        wait_until(lambda region=region: is_gone(region), f"the topic to be deleted in {region}")


def test_no_snapshots_are_taken_where_they_are_switched_off(regions: RegionsProcess) -> None:
    topic = new_topic("off")
    setting, all_settings = "enableReplicatedSubscriptions", "/admin/v2/brokers/configuration"
    path = f"/meridian/v1/topics/{topic.replace('://', '/')}/snapshots"

    def is_off(region: str) -> bool:
        return bool(regions.http(region, "GET", f"{all_settings}/runtime").json[setting] == "false")

    for region in REGIONS:
        assert regions.http(region, "POST", f"{all_settings}/{setting}/false").status == 204
        wait_until(lambda region=region: is_off(region), f"the setting to be in force in {region}")
    try:
        with client(regions, EAST) as east:
            acknowledging(regions, east, topic)
        assert setting in regions.http(EAST, "GET", path).json["problem"]
        assert entries(regions, EAST, topic) == 5
    finally:
        for region in REGIONS:
            assert regions.http(region, "DELETE", f"{all_settings}/{setting}").status == 204
    for region in (WEST, NORTH):
        wait_for_backlog(regions, region, topic, 0)


def test_a_region_that_is_killed_between_rounds_skips_nothing(regions: RegionsProcess) -> None:
    topic = new_topic("killed")
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        publish(east, topic, numbered(range(10)))
        for message in take(consumer, 10):
            consumer.acknowledge(message)
        for region in (WEST, NORTH):
            stored(regions, region, topic, 10)
            wait_for_backlog(regions, region, topic, 0)
        publish(east, topic, numbered(range(10, 20)))
        stored(regions, WEST, topic, 20)
        stored(regions, NORTH, topic, 20)
        regions.kill_region(WEST)
        for message in take(consumer, 10):
            consumer.acknowledge(message)
        assert backlog(regions, NORTH, topic) == 10, "while west is down nobody knows what it has"
        regions.bring_back(WEST)
        for region in (WEST, NORTH):
            wait_for_backlog(regions, region, topic, 0)
        publish(east, topic, numbered(range(20, 25)))
        take(consumer, 5)
        consumer.close()
        stored(regions, WEST, topic, 25)
    with client(regions, WEST) as west:
        assert sorted(rest(subscribe(west, topic), range(20, 25))) == list(range(20, 25))
    wait_for_backlog(regions, EAST, topic, 0)


def test_the_mode_is_changed_while_messages_are_acknowledged(regions: RegionsProcess) -> None:
    topic = new_topic("changes")
    mode = f"{topic_path(topic)}/subscriptionSync"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic)
        publish(east, topic, numbered(range(10)))
        messages = take(consumer, 10)
        consumer.acknowledge(messages[5])
        stored(regions, WEST, topic, 10)
        assert regions.http(EAST, "POST", mode, "neither").status == 412
        assert regions.http(EAST, "POST", mode, "exact").status == 204
        wait_for_backlog(regions, WEST, topic, 9)  # holes travel
        for message in messages[:3]:
            consumer.acknowledge(message)
        wait_for_backlog(regions, WEST, topic, 6)
        assert regions.http(EAST, "POST", mode, "snapshot").status == 204

        def applied(region: str) -> Any:
            return regions.http(region, "GET", f"{mode}?applied=true").json

        for region in REGIONS:
            wait_until(lambda region=region: applied(region) == "snapshot", f"{region} to know the mode")
        for message in (*messages[3:5], *messages[6:]):
            consumer.acknowledge(message)
        wait_for_backlog(regions, WEST, topic, 0)
        publish(east, topic, numbered(range(10, 13)))
        take(consumer, 3)
        consumer.close()
        stored(regions, WEST, topic, 13)
        assert sorted(rest(subscribe(west, topic), [10, 11, 12])) == [10, 11, 12]
        wait_for_backlog(regions, EAST, topic, 0)


def test_a_command_continues_without_a_lost_region(regions: RegionsProcess) -> None:
    topic = new_topic("partial")
    path = f"/meridian/v1/topics/{topic.replace('://', '/')}/snapshots"
    with client(regions, EAST) as east:
        consumer = acknowledging(regions, east, topic)
        for region in (WEST, NORTH):
            wait_for_backlog(regions, region, topic, 0)
        wait_until(lambda: regions.http(EAST, "GET", path).json.get("complete"), "a snapshot to be complete")
        told = regions.http(EAST, "GET", path).json
        assert (told["mode"], told["problem"], told["without"]) == ("snapshot", "", [])
        assert set(told["last"]["elsewhere"]) == {WEST, NORTH}
        measured = regions.http(EAST, "GET", "/metrics").text
        for name in ("pending_snapshots", "timedout_snapshots_total", "snapshot_ms_count", "snapshot_ms_sum"):
            assert f"pulsar_replicated_subscriptions_{name}{{" in measured
        assert regions.http(EAST, "POST", f"{path}/without", {"regions": [NORTH]}).status != 200, "it answers"
        assert regions.http(EAST, "POST", f"{path}/without", {"regions": "west"}).status == 412
        regions.kill_region(WEST)
        publish(east, topic, numbered(range(5, 10)))
        for message in take(consumer, 5):
            consumer.acknowledge(message)
        stored(regions, NORTH, topic, 10)
        wait_until(lambda: WEST in regions.http(EAST, "GET", path).json["problem"], "the problem to name west")
        assert backlog(regions, NORTH, topic) == 5
        assert regions.http(EAST, "POST", f"{path}/without", {"regions": [WEST]}).status == 200
        wait_for_backlog(regions, NORTH, topic, 0)
        regions.bring_back(WEST)
        wait_for_backlog(regions, WEST, topic, 0)
        wait_until(lambda: not regions.http(EAST, "GET", path).json["without"], "west to take part again")


def test_a_subscription_created_independently_in_another_region_skips_nothing(regions: RegionsProcess) -> None:
    """A consumer creates it at the topic's end in a region that did not know it yet."""
    topic = new_topic("apart")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(5)))
        for region in (WEST, NORTH):
            stored(regions, region, topic, 5)
        regions.kill_region(WEST)
        consumer = subscribe(east, topic)
        first = take(consumer, 5)[0]
        consumer.acknowledge(first)
        wait_for_backlog(regions, NORTH, topic, 5)
        regions.kill_region(EAST)
        regions.kill_region(NORTH)
        regions.bring_back(WEST)
    with client(regions, WEST) as west:
        subscribe(west, topic, initial=pulsar.InitialPosition.Latest).close()
        assert backlog(regions, WEST, topic) == 0
    for region in (EAST, NORTH):
        regions.bring_back(region)
    with client(regions, EAST) as east, client(regions, WEST) as west:
        wait_until(lambda: (backlog(regions, WEST, topic) or 0) >= 4, "west's subscription to begin where east's did")
        publish(west, topic, numbered(range(5, 8)))
        stored(regions, EAST, topic, 8)
        assert set(rest(subscribe(east, topic), range(1, 8))) >= set(range(1, 8))
