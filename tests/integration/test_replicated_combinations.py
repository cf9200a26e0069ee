# SPDX-License-Identifier: Apache-2.0
"""Less common client behaviour on subscriptions that two regions share: each case once, with a switch to the
other region while messages are held. Plain cases, three regions and their failures are in ``tests/scenarios``.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Any

import pulsar
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    EAST,
    FAILOVER,
    KEY_SHARED,
    LATEST,
    PATIENCE_MS,
    QUIET_MS,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import topic_path

REGIONS = (EAST, WEST)
DELAY_SECONDS = 10.0
"""Long enough for a switch before delayed messages are due, unless the machine is very busy."""


def sticky(low: int, high: int) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(low, high)])


def admin(regions: RegionsProcess, region: str, topic: str, what: str, method: str = "POST", body: Any = ...) -> None:
    """One admin request about a topic."""
    answer = regions.http(region, method, f"{topic_path(topic)}/{what}", body)
    assert answer.status == 204, answer.text


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return sorted(int(message.data()) for message in messages)


def test_r13_messages_not_redelivered_after_a_rewind_are_not_acknowledged(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    """Two consumers share the keys. After a rewind one comes back; the other's messages wait, and copies that it
    got before the rewind are acknowledged."""
    topic = new_topic("r13")
    east, west = clients[EAST], clients[WEST]
    producer = east.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"key-{number % 20}")
    low = subscribe(east, topic, kind=KEY_SHARED, key_shared_policy=sticky(0, 32767), start_message_id_inclusive=True)
    high = subscribe(east, topic, kind=KEY_SHARED, key_shared_policy=sticky(32768, 65535))
    of_low = [low.receive(PATIENCE_MS)]
    held: list[pulsar.Message] = []
    low.acknowledge(of_low[0])
    wait_for_backlog(regions, EAST, topic, 59)

    def all_came() -> bool:
        for consumer, found in ((low, of_low), (high, held)):
            with contextlib.suppress(pulsar.Timeout):
                found.append(consumer.receive(QUIET_MS))
        return len(of_low) + len(held) == 60

    wait_until(all_came, "each message to reach one of the two consumers")
    high.close()
    low.seek(pulsar.MessageId.earliest)
    wait_for_backlog(regions, EAST, topic, 60)
    again = take(low, len(of_low))
    assert numbers(again) == numbers(of_low)
    for message in [*held, *again]:
        low.acknowledge(message.message_id())
    wait_for_backlog(regions, WEST, topic, len(held))
    low.close()
    there = subscribe(west, topic)
    take_numbers(there, numbers(held))
    there.close()


def test_r12_a_seek_by_time_goes_by_publish_time_everywhere(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    """Over REST in one region, and by a client in the other: what was published since then comes again in both."""
    topic = new_topic("r12-time")
    east, west = clients[EAST], clients[WEST]
    here = subscribe(east, topic)
    publish(west, topic, numbered(range(10)))
    stored(regions, EAST, topic, 10)
    since = now_ms()
    wait_until(lambda: now_ms() > since, "the clock to reach the next millisecond")
    begun = now_ms()
    publish(east, topic, numbered(range(10, 20)))
    publish(west, topic, numbered(range(20, 30)))
    take_numbers(here, range(30))
    wait_for_backlog(regions, WEST, topic, 0)
    admin(regions, WEST, topic, f"subscription/s/resetcursor/{begun}")
    take_numbers(here, range(10, 30))
    wait_for_backlog(regions, WEST, topic, 0)
    here.seek(begun)
    here.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 20)
    there = subscribe(west, topic)
    take_numbers(there, range(10, 30))
    there.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_r12_a_seek_by_time_applies_to_messages_the_region_has_never_seen(regions: RegionsProcess) -> None:
    """The west publishes and acknowledges while the east is down, and dies before it can tell. Then the east seeks back
    to before that: when the west returns, what it acknowledged is owed again in both."""
    topic = new_topic("r12-unseen")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        here = subscribe(east, topic)
        publish(east, topic, numbered(range(5)))
        take_numbers(here, range(5))
        since = now_ms()
        wait_until(lambda: now_ms() > since, "the clock to reach the next millisecond")
        begun = now_ms()
        publish(east, topic, numbered(range(5, 7)))
        take_numbers(here, range(5, 7))
        here.close()
        wait_for_backlog(regions, WEST, topic, 0)
        regions.kill_region(EAST)
        publish(west, topic, numbered(range(7, 15)))
        there = subscribe(west, topic)
        take_numbers(there, range(7, 15))
        there.close()
        regions.kill_region(WEST)
    regions.bring_back(EAST)
    admin(regions, EAST, topic, f"subscription/s/resetcursor/{begun}")
    wait_for_backlog(regions, EAST, topic, 2)
    regions.bring_back(WEST)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 10)
    with client(regions, EAST) as east:
        take_numbers(subscribe(east, topic), range(5, 15))


def test_r12_skipping_and_clearing_the_backlog_are_acknowledgements(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    topic = new_topic("r12-skip")
    east, west = clients[EAST], clients[WEST]
    here = subscribe(east, topic)
    publish(east, topic, numbered(range(20)))
    assert stored(regions, WEST, topic, 20) == list(range(20))
    messages = take(here, 20)
    here.acknowledge(messages[1])
    wait_for_backlog(regions, WEST, topic, 19)
    admin(regions, WEST, topic, "subscription/s/skip/5")
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 14)
    here.close()
    there = subscribe(west, topic)
    assert numbers(take(there, 14)) == list(range(6, 20))
    there.close()
    admin(regions, EAST, topic, "subscription/s/skip_all")
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)
    publish(east, topic, numbered(range(20, 22)))
    there = subscribe(west, topic)
    take_numbers(there, range(20, 22))
    there.close()


def test_delayed_messages_keep_their_time_over_a_switch(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    topic = new_topic("delayed")
    east, west = clients[EAST], clients[WEST]
    producer = east.create_producer(topic, batching_enabled=False)
    here = subscribe(east, topic)
    due = time.monotonic() + DELAY_SECONDS
    for number in range(20):
        delay = timedelta(seconds=DELAY_SECONDS) if number % 2 else None
        producer.send_async(b"%d" % number, lambda _result, _place: None, deliver_after=delay)
    producer.flush()
    messages = take(here, 10)
    assert numbers(messages) == list(range(0, 20, 2))
    for message in messages[::2]:
        here.acknowledge(message)
    here.close()
    there = subscribe(west, topic)
    held = take(there, 5)
    assert numbers(held) == numbers(messages[1::2])
    late = take(there, 10)
    assert time.monotonic() >= due
    assert numbers(late) == list(range(1, 20, 2))
    for message in [*held, *late]:
        there.acknowledge(message)
    there.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_r18_a_cumulative_acknowledgement_into_a_batch(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    topic = new_topic("into-a-batch")
    east, west = clients[EAST], clients[WEST]
    publish(east, topic, numbered(range(30)), batching=True)
    here = subscribe(east, topic, kind=FAILOVER, batch_index_ack_enabled=True)
    messages = take(here, 30)
    here.acknowledge_cumulative(messages[16])
    here.close()
    there = subscribe(west, topic, kind=FAILOVER, batch_index_ack_enabled=True)
    take_numbers(there, range(17, 30))
    there.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_r15_new_partitions_are_owed_from_their_first_message_everywhere(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    """The topic grows in the east while nobody consumes in the west: messages published at once are not missed."""
    topic = new_topic("growing")
    admin(regions, EAST, topic, "partitions", "PUT", 2)
    here = subscribe(clients[EAST], topic, initial=LATEST)
    publish(clients[EAST], topic, numbered(range(20)))
    take_numbers(here, range(20))
    here.close()
    for index in range(2):
        wait_for_backlog(regions, WEST, f"{topic}-partition-{index}", 0)
    admin(regions, EAST, topic, "partitions", "POST", 5)
    with client(regions, EAST) as later:
        publish(later, topic, numbered(range(20, 70)))
    for index in range(2, 5):
        wait_for_backlog(regions, WEST, f"{topic}-partition-{index}", 10)
    with client(regions, WEST) as later:
        there = subscribe(later, topic, initial=LATEST)
        take_numbers(there, range(20, 70))
        there.close()


def test_dead_letters_follow_their_topic(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    """A dead letter is published and replicated like any message, even if the original came from the other region;
    redelivery counts start over there."""
    topic = new_topic("dead-letters")
    dead = f"{topic}-s-DLQ"
    east, west = clients[EAST], clients[WEST]
    publish(east, topic, numbered(range(4)))
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=dead)
    options = {"dead_letter_policy": policy, "negative_ack_redelivery_delay_ms": 100}
    here = subscribe(east, topic, **options)
    counts: list[int] = []
    seen: set[int] = set()
    while len(counts) < 3 or len(seen) < 4:
        message = here.receive(PATIENCE_MS)
        seen.add(int(message.data()))
        if int(message.data()) == 1:
            counts.append(message.redelivery_count())
            here.negative_acknowledge(message)
        elif int(message.data()) != 3:
            here.acknowledge(message)
    assert counts == [0, 1, 2]
    assert stored(regions, WEST, dead, 1) == [1]
    wait_for_backlog(regions, WEST, topic, 1)  # the client acknowledges the message once its copy is stored
    here.close()
    there = subscribe(west, topic, **options)
    counts.clear()
    while len(counts) < 3:
        message = there.receive(PATIENCE_MS)
        assert int(message.data()) == 3
        counts.append(message.redelivery_count())
        there.negative_acknowledge(message)
    assert counts == [0, 1, 2]
    assert stored(regions, EAST, dead, 2) == [1, 3]
    wait_for_backlog(regions, WEST, topic, 0)
    there.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)
