# SPDX-License-Identifier: Apache-2.0
"""What users of Pulsar's replicated subscriptions (PIP-33) complained of, one by one: each is a test.

Numbers are issues and pull requests of apache/pulsar. Regions of Meridian exchange no snapshots and no markers
(acknowledgements travel by origin, beside the topic), so where a complaint is about those, the test asserts what its
author wanted. Tests elsewhere already cover some:

======================================================  ==========================================================
complaint                                               test
======================================================  ==========================================================
10054: the second cluster starts over or repeats much   test_replicated_subscription_switch: a_planned_switch_with_holes
13230: out-of-order acknowledgements are not sent       the same
6464: a deleted subscription is recreated               test_subscription_lives: those of R16
8066: an expired subscription is recreated              test_topic_removal: what_may_be_used_in_other_regions_stays
8066: messages expire in one cluster only               test_drops_in_regions
11382, 25266: a removed replicator stops everything     test_regions_cut_and_changed: a_region_joins_...
22452, 26234: transactions stop snapshots               no transactions: NotAllowedError in protocol_answers.txt
26119: counted as replicated, never published           stories of R10 and R19: peers confirm what is durable
21793, 22381: no metric shows that it does not work     test_admin_regions: metrics_count_what_clients_do
23768, 23769, 23770: only clients can enable it         test_subscription_status: policies_say_which_...
23815: a consumer's flag changes what exists            test_switch_details: a_consumers_flag_is_for_new_subscriptions
seek and reset-cursor stay local                        test_replicated_subscription_switch: a_rewind_takes_effect_...
a replication backlog delays progress                   test_replicated_subscription_loss: acknowledgements_come_...
12601, 5274: each message once over all clusters        test_dispatch_scope: dispatch scope ``origin`` (R26)
======================================================  ==========================================================
"""

from __future__ import annotations

import re

import pulsar
import pytest
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    FAILOVER,
    KEY_SHARED,
    PATIENCE_MS,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    rest,
    stats,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import subscription_path, topic_path

REGIONS = (EAST, WEST, CENTRAL)
HOUR_MS = 3_600_000

pytestmark = pytest.mark.slow


def entries(regions: RegionsProcess, region: str, topic: str) -> int:
    """Number of entries a topic stores, of any kind."""
    return int(regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json["numberOfEntries"])


def digests_sent(regions: RegionsProcess, region: str) -> float:
    """Digests a region sent: regions compare every few seconds, also when nothing happens."""
    metrics = regions.http(region, "GET", "/metrics/").text
    return sum(
        float(found) for found in re.findall(r"^meridian_\w*digests_sent\w*(?:\{[^}]*\})? ([0-9.e+]+)", metrics, re.M)
    )


def test_24380_individual_acks_behind_a_delayed_message(regions: RegionsProcess) -> None:
    """Shared type, individual acknowledgements, one message with a long delay: the other cluster's position did not
    move until producing stopped."""
    topic = new_topic("delayed")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic)
        late = east.create_producer(topic)
        late.send(b"1000", deliver_at=late_ms(regions))
        publish(east, topic, numbered(range(20)))
        for message in take(consumer, 20):
            consumer.acknowledge(message)
        wait_for_backlog(regions, WEST, topic, 1)  # while the consumer and the producer are still there
        consumer.close()
        late.close()
        assert rest(subscribe(west, topic)) == [], "only the delayed one is left, and it is not due"


def late_ms(regions: RegionsProcess) -> int:
    clock: int = regions.http(EAST, "GET", "/meridian/v1/regions").json["clock_ms"]
    return clock + HOUR_MS


def test_24300_a_large_receiver_queue_and_slow_acks(regions: RegionsProcess) -> None:
    """The read position was far ahead of the acknowledgements: no snapshot ever matched."""
    topic = new_topic("queue")
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic, receiver_queue_size=1000)
        publish(east, topic, numbered(range(500)))
        messages = take(consumer, 500)
        for left in (490, 480):
            for message in messages[490 - left : 500 - left]:
                consumer.acknowledge(message)
            wait_for_backlog(regions, WEST, topic, left)
        consumer.close()


@pytest.mark.parametrize("kind", [FAILOVER, pulsar.ConsumerType.Exclusive], ids=["failover", "exclusive"])
def test_14817_16651_19551_the_last_position_when_traffic_stops(
    regions: RegionsProcess, kind: pulsar.ConsumerType
) -> None:
    """Nothing was published after the last acknowledgement, so it was never sent: the other cluster repeated all."""
    topic = new_topic("last")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(10)))
        consumer = subscribe(east, topic, kind=kind)
        consumer.acknowledge_cumulative(take(consumer, 10)[-1])
        consumer.close()
        assert rest(subscribe(west, topic, kind=kind)) == []
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_6437_22926_22572_12759_nothing_but_messages_is_stored(regions: RegionsProcess) -> None:
    """Markers stayed in the backlog, filled quotas and left holes among acknowledgements; has_message_available never
    became false behind them. 21495, 23198, 23839: and they were written although nobody wanted them."""
    topic = new_topic("markers")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(10)))
        consumer = subscribe(east, topic)
        for message in take(consumer, 10):
            consumer.acknowledge(message)
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 0)
        before = {region: digests_sent(regions, region) for region in REGIONS}
        for region in REGIONS:
            wait_until(
                lambda region=region: digests_sent(regions, region) > before[region],
                f"{region} to compare its progress",
            )
        consumer.close()
    for region in REGIONS:
        assert entries(regions, region, topic) == 10, f"an idle {region} stores only the messages"
        internal = regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json
        assert internal["cursors"]["s"]["totalNonContiguousDeletedMessagesRange"] == 0, region
        assert stats(regions, region, topic)["backlogSize"] == 0, region
        with client(regions, region) as one:
            reader = one.create_reader(topic, pulsar.MessageId.earliest)
            seen = 0
            while reader.has_message_available():
                reader.read_next(PATIENCE_MS)
                seen += 1
            assert seen == 10, region


def test_6464_an_idle_topic_can_go(regions: RegionsProcess) -> None:
    """Markers looked like traffic: a topic nobody used any more was never removed."""
    topic = new_topic("idle")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(3)))
        consumer = subscribe(east, topic)
        for message in take(consumer, 3):
            consumer.acknowledge(message)
        consumer.close()
    wait_for_backlog(regions, CENTRAL, topic, 0)
    assert regions.http(WEST, "DELETE", topic_path(topic)).status == 204, "without force: nobody uses it"
    before = digests_sent(regions, EAST)
    wait_until(lambda: digests_sent(regions, EAST) > before, "the regions to compare their progress")
    for region in REGIONS:
        assert topic not in regions.http(region, "GET", "/admin/v2/persistent/public/default").json, region


def test_9341_partitions_and_key_shared(regions: RegionsProcess) -> None:
    """Nothing of a partitioned topic with Key_Shared consumers was replicated."""
    topic = new_topic("keys")
    assert regions.http(EAST, "PUT", f"{topic_path(topic)}/partitions", 3).status == 204
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic)
        consumer = subscribe(east, topic, kind=KEY_SHARED)
        for number in range(30):
            producer.send(b"%d" % number, partition_key=f"key-{number % 7}")
        for message in take(consumer, 30):
            if int(message.data()) % 2:
                consumer.acknowledge(message)
        consumer.close()
        producer.close()
        wait_until(lambda: partitioned_backlog(regions, WEST, topic) == 15, "the even numbers to be left in the west")
        take_numbers(subscribe(west, topic, kind=KEY_SHARED), range(0, 30, 2))
    wait_until(lambda: partitioned_backlog(regions, EAST, topic) == 0, "nothing to be left in the east")


def partitioned_backlog(regions: RegionsProcess, region: str, topic: str) -> int:
    answer = regions.http(region, "GET", f"{topic_path(topic)}/partitioned-stats")
    found = answer.json.get("subscriptions", {}) if answer.status == 200 else {}
    return int(found.get("s", {"msgBacklog": -1})["msgBacklog"])


def test_16017_a_one_way_set_up_says_that_nothing_is_synced(regions: RegionsProcess) -> None:
    """Active and standby, replicated in one direction only: subscriptions were silently not replicated."""
    topic = new_topic("oneway")
    for region, lives in ((WEST, [WEST]), (EAST, [EAST, WEST])):
        assert regions.http(region, "PUT", topic_path(topic)).status in (204, 409)
        assert regions.http(region, "POST", f"{topic_path(topic)}/replication", lives).status == 204
    with client(regions, EAST) as east:
        subscribe(east, topic).close()
        publish(east, topic, numbered(range(5)))
    assert stored(regions, WEST, topic, 5) == list(range(5)), "messages go one way"
    status = f"{subscription_path(topic)}/status"

    def reason() -> str:
        (peer,) = regions.http(EAST, "GET", status).json["peers"]
        return str(peer["reason"])

    wait_until(lambda: reason() == "NotARegionOfTheTopic", "the reason to be shown")
    assert not regions.http(EAST, "GET", status).json["synced"]
    with client(regions, EAST) as east:  # and what is consumed here is trimmed, as no other region is waited for
        take_numbers(subscribe(east, topic), range(5))
    trim = f"{topic_path(topic)}/truncate"
    wait_until(
        lambda: not regions.http(EAST, "DELETE", trim).text and entries(regions, EAST, topic) == 0,
        "the log to be trimmed to nothing",
    )


def test_a_cluster_that_is_down_stops_nobody_else(regions: RegionsProcess) -> None:
    """By design, while any cluster was down there were no snapshots, hence no progress for any other."""
    topic = new_topic("down")
    regions.kill_region(CENTRAL)
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(20)))
        consumer = subscribe(east, topic)
        for message in take(consumer, 20):
            if int(message.data()) % 4:
                consumer.acknowledge(message)
        wait_for_backlog(regions, WEST, topic, 5)
        consumer.close()
        take_numbers(subscribe(west, topic), range(0, 20, 4))
    regions.bring_back(CENTRAL)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)
