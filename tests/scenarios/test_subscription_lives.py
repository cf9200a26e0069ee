# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions and their topics are created, switched and deleted in several regions (R8, R15-R17)."""

from __future__ import annotations

import pulsar
import pytest
from support.brokers.broker_process import HttpAnswer, RegionsProcess, wait_until
from support.brokers.region_clients import (
    EARLIEST,
    EAST,
    LATEST,
    PATIENCE_MS,
    WEST,
    backlog,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    subscribe,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import topic_path

REGIONS = (EAST, WEST)


def publish_in(regions: RegionsProcess, region: str, topic: str, numbers: range) -> None:
    with client(regions, region) as one:
        publish(one, topic, numbered(numbers))


def test_r15_a_new_subscription_begins_at_the_same_message_everywhere(regions: RegionsProcess) -> None:
    topic = new_topic("begins")
    publish_in(regions, EAST, topic, range(10))
    publish_in(regions, WEST, topic, range(10, 20))
    for region in REGIONS:
        stored(regions, region, topic, 20)
    with client(regions, EAST) as east:
        subscribe(east, topic, "latest", initial=LATEST).close()
        ids = publish(east, topic, numbered(range(20, 25)))
    place = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()}
    path = f"{topic_path(topic)}/subscription/placed?replicated=true"
    assert regions.http(EAST, "PUT", path, place).status == 204
    wait_for_backlog(regions, WEST, topic, 5, "latest")
    wait_for_backlog(regions, WEST, topic, 3, "placed")
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic, "latest"), range(20, 25))
        take_numbers(subscribe(west, topic, "placed"), range(22, 25))


def test_r15_of_two_creations_the_earlier_one_counts(regions: RegionsProcess) -> None:
    """The regions cannot reach each other: what lies between the two places is not lost, and acks stay."""
    topic = new_topic("twice")
    publish_in(regions, EAST, topic, range(6))
    stored(regions, WEST, topic, 6)
    regions.kill_region(WEST)
    with client(regions, EAST) as east:
        subscribe(east, topic, initial=EARLIEST).close()
    regions.kill_region(EAST)
    regions.bring_back(WEST)
    with client(regions, WEST) as west:
        consumer = subscribe(west, topic, initial=LATEST)
        publish(west, topic, numbered(range(6, 9)))
        take_numbers(consumer, range(6, 9))
        consumer.close()
        regions.bring_back(EAST)
        wait_for_backlog(regions, WEST, topic, 6)
        wait_for_backlog(regions, EAST, topic, 6)
        take_numbers(subscribe(west, topic), range(6))


def delete(regions: RegionsProcess, region: str, topic: str, *, force: bool = False) -> HttpAnswer:
    query = "?force=true" if force else ""
    return regions.http(region, "DELETE", f"{topic_path(topic)}/subscription/s{query}")


def gone(regions: RegionsProcess, region: str, topic: str) -> None:
    wait_until(lambda: backlog(regions, region, topic) is None, f"the subscription to be gone in {region}")


def test_r16_what_has_consumers_elsewhere_stays_unless_forced(regions: RegionsProcess) -> None:
    topic = new_topic("stays")
    publish_in(regions, EAST, topic, range(3))
    with client(regions, EAST) as east, client(regions, WEST) as west:
        here = subscribe(east, topic)
        there = subscribe(west, topic)
        take_numbers(there, range(3))
        with pytest.raises(pulsar.PulsarException):
            here.unsubscribe()
        here.close()
        refused = delete(regions, EAST, topic)
        assert refused.status == 412
        assert "us-west has 1 consumers of it" in refused.reason
        assert delete(regions, EAST, topic, force=True).status == 204
        gone(regions, WEST, topic)
        # The consumer in the west reconnects by itself, as a program might: neither recreates the subscription.
        for one in (east, west):
            with pytest.raises(pulsar.PulsarException):
                subscribe(one, topic)
        assert backlog(regions, EAST, topic) is backlog(regions, WEST, topic) is None
        path = f"{topic_path(topic)}/subscription/s?replicated=true"
        assert regions.http(WEST, "PUT", path, {"ledgerId": -1, "entryId": -1}).status == 204
        wait_for_backlog(regions, EAST, topic, 3)
        take_numbers(subscribe(east, topic), range(3))


def test_r16_a_region_that_was_down_removes_it_too(regions: RegionsProcess) -> None:
    topic = new_topic("down")
    publish_in(regions, EAST, topic, range(3))
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), range(3))
    wait_for_backlog(regions, EAST, topic, 0)
    regions.kill_region(WEST)
    refused = delete(regions, EAST, topic)
    assert refused.status == 412
    assert "us-west cannot be asked" in refused.reason
    assert "does not accept connections: Connection refused" in refused.reason
    assert delete(regions, EAST, topic, force=True).status == 204
    regions.kill_region(EAST)
    regions.bring_back(EAST)
    regions.bring_back(WEST)
    gone(regions, WEST, topic)
    gone(regions, EAST, topic)


def test_r17_switched_off_and_on_again(regions: RegionsProcess) -> None:
    topic = new_topic("switched")
    publish_in(regions, EAST, topic, range(6))
    stored(regions, WEST, topic, 6)
    path = f"{topic_path(topic)}/subscription/s/replicatedSubscriptionStatus"

    def status(region: str) -> bool:
        return bool(regions.http(region, "GET", path).json[topic])

    with client(regions, EAST) as east, client(regions, WEST) as west:
        subscribe(east, topic).close()
        wait_for_backlog(regions, WEST, topic, 6)
        assert regions.http(EAST, "POST", path, False).status == 204
        wait_until(lambda: not status(WEST), "the west to learn that replication is off")
        for one, number in ((east, 0), (west, 5)):
            consumer = one.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            for message in [consumer.receive(PATIENCE_MS) for _ in range(6)]:
                if int(message.data()) == number:
                    consumer.acknowledge(message)
            consumer.close()
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 5)
        assert regions.http(WEST, "POST", path, True).status == 204
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 4)
        take_numbers(subscribe(east, topic), range(1, 5))


@pytest.mark.parametrize("partitions", [0, 2])
def test_r8_a_topic_is_deleted_in_all_regions_and_made_again(regions: RegionsProcess, partitions: int) -> None:
    topic = new_topic("deleted")
    rest = topic_path(topic)
    if partitions:
        assert regions.http(EAST, "PUT", f"{rest}/partitions", partitions).status == 204
        rest += "/partitions"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(4)))
        consumer = subscribe(west, topic)
        take_numbers(consumer, range(4))
        refused = regions.http(EAST, "DELETE", rest)
        assert refused.status == 412
        assert "us-west has" in refused.reason
        consumer.close()
        assert regions.http(EAST, "DELETE", rest).status == 204
        for region in REGIONS:
            assert topic not in regions.http(region, "GET", "/admin/v2/persistent/public/default").text
        # The recreated topic is another one, and replicates both ways.
        publish(west, topic, numbered(range(4, 6)))
        take_numbers(subscribe(east, topic), range(4, 6))
        publish(east, topic, numbered(range(6, 8)))
        take_numbers(subscribe(west, topic), range(6, 8))
