# SPDX-License-Identifier: Apache-2.0
"""What clients do beside the plain case, on subscriptions that two regions share: each told once, with a switch to the
other region while something is held. The plain cases, three regions and their failures are in ``tests/scenarios``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest
from broker_process import RegionsProcess
from region_clients import KEY_SHARED, client, new_topic, rest, subscribe, take, wait_for_backlog

EAST, WEST = REGIONS = ("us-east", "us-west")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("combinations") / "data") as up:
        yield up


@pytest.fixture(scope="module")
def clients(regions: RegionsProcess) -> Iterator[dict[str, pulsar.Client]]:
    with client(regions, EAST) as east, client(regions, WEST) as west:
        yield {EAST: east, WEST: west}


def sticky(low: int, high: int) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(low, high)])


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return sorted(int(message.data()) for message in messages)


def test_r13_what_was_not_sent_again_is_not_acknowledged(
    regions: RegionsProcess, clients: dict[str, pulsar.Client]
) -> None:
    """Two consumers share the keys. After a rewind one comes back; the messages of the other wait, and copies that it
    got before the rewind are acknowledged."""
    topic = new_topic("r13")
    east, west = clients[EAST], clients[WEST]
    producer = east.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"key-{number % 20}")
    low = subscribe(east, topic, kind=KEY_SHARED, key_shared_policy=sticky(0, 32767), start_message_id_inclusive=True)
    high = subscribe(east, topic, kind=KEY_SHARED, key_shared_policy=sticky(32768, 65535))
    first = low.receive(10_000)
    low.acknowledge(first)
    wait_for_backlog(regions, EAST, topic, 59)
    of_low = numbers([first]) + rest(low, acknowledge=False)
    held = take(high, 60 - len(of_low))
    high.close()
    low.seek(pulsar.MessageId.earliest)
    wait_for_backlog(regions, EAST, topic, 60)
    again = take(low, len(of_low))
    assert numbers(again) == sorted(of_low)
    for message in [*held, *again]:
        low.acknowledge(message.message_id())
    wait_for_backlog(regions, WEST, topic, len(held))
    low.close()
    there = subscribe(west, topic)
    assert sorted(rest(there)) == numbers(held)
    there.close()
