# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions are made, moved, switched and removed in several regions at once (R12-R17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_process import RegionsProcess
from region_clients import (
    EARLIEST,
    LATEST,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    subscribe,
    take_numbers,
    wait_for_backlog,
)

EAST, WEST = REGIONS = ("us-east", "us-west")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("lives") / "data") as up:
        yield up


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
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription/placed?replicated=true"
    assert regions.http(EAST, "PUT", path, place).status == 204
    wait_for_backlog(regions, WEST, topic, 5, "latest")
    wait_for_backlog(regions, WEST, topic, 3, "placed")
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic, "latest"), range(20, 25))
        take_numbers(subscribe(west, topic, "placed"), range(22, 25))


def test_r15_of_two_creations_the_earlier_one_counts(regions: RegionsProcess) -> None:
    """Neither region hears of the other: what lies between the two places is not lost, and what was acked stays so."""
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
