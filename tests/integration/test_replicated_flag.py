# SPDX-License-Identifier: Apache-2.0
"""R17: a subscription's replication is switched on and off, and the answer says what each region will skip.
Three real regions; the same through the command line."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from meridian_broker.cli.rest import TIMEOUT_SECONDS
from support.brokers.broker_process import HttpAnswer, RegionsProcess, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.region_clients import (
    EARLIEST,
    PATIENCE_MS,
    SHARED,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import subscription_path, topic_path

US, EU, AP = REGIONS = ("us", "eu", "ap")


def mode(regions: RegionsProcess, region: str, topic: str, **wanted: Any) -> HttpAnswer:
    path = f"{subscription_path(topic)}/mode"
    return regions.http(region, "POST", path, wanted)


def alone(regions: RegionsProcess, name: str, acked: dict[str, tuple[int, ...]]) -> str:
    """A topic of ten messages with a separate, unreplicated subscription in each region."""
    topic = new_topic(name)
    with client(regions, US) as us:
        publish(us, topic, numbered(range(10)))
    for region in REGIONS:
        stored(regions, region, topic, 10)
        with client(regions, region) as one:
            consumer = one.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
            for message in [consumer.receive(PATIENCE_MS) for _ in range(10)]:
                if int(message.data()) in acked[region]:
                    consumer.acknowledge(message)
            consumer.close()
        wait_for_backlog(regions, region, topic, 10 - len(acked[region]))
    return topic


def owed(regions: RegionsProcess, topic: str, numbers: range | set[int]) -> None:
    """Exactly these messages are left in every region."""
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, len(numbers))
    with client(regions, AP) as ap:
        consumer = ap.subscribe(topic, "s", consumer_type=SHARED)
        got = sorted(int(consumer.receive(PATIENCE_MS).data()) for _ in numbers)
        assert got == sorted(numbers)
        consumer.close()


def test_switching_on_merges_progress_and_says_what_each_region_skips(regions: RegionsProcess) -> None:
    topic = alone(regions, "unites", {US: (0, 1, 2), EU: (2, 3), AP: ()})
    assert mode(regions, EU, topic, replicated=True, dryrun=True).status == 412, "a typo must not switch it on"
    dry = mode(regions, EU, topic, replicated=True, dryRun=True).json
    expected = {US: {"skips": 1, "again": 0}, EU: {"skips": 2, "again": 0}, AP: {"skips": 4, "again": 0}}
    assert (dry["done"], dry["regions"]) == (False, expected)
    for region, left in ((US, 7), (EU, 8), (AP, 10)):
        wait_for_backlog(regions, region, topic, left)
    line = ["subscriptions", "replicate", topic, "s", "--url", regions.admin_url(EU)]
    told = meridian_text(*line, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "ap: would skip 4 entries",
        "eu: would skip 2 entries",
        "us: would skip 1 entries",
        "nothing was changed",
    ]
    done = meridian_text(*line, "--json")
    assert json.loads(done.stdout)["regions"] == expected
    owed(regions, topic, set(range(4, 10)))
    # Off and on again: what each region did meanwhile is merged once more.
    assert mode(regions, US, topic, replicated=False).json["done"]

    def is_off(region: str) -> bool:
        path = f"{topic_path(topic)}/subscription/s/replicatedSubscriptionStatus"
        return not regions.http(region, "GET", path).json[topic]

    for region in REGIONS:
        wait_until(lambda one=region: is_off(one), f"{region} to learn that replication is off")
    with client(regions, EU) as eu:
        consumer = eu.subscribe(topic, "s", consumer_type=SHARED)
        take_numbers(consumer, range(4, 10))
        consumer.close()
    wait_for_backlog(regions, EU, topic, 0)
    assert mode(regions, AP, topic, replicated=True).json["regions"][US] == {"skips": 6, "again": 0}
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_one_regions_progress_can_be_taken_for_all(regions: RegionsProcess) -> None:
    topic = alone(regions, "taken", {US: (0, 1, 2, 8), EU: (2, 3), AP: (9,)})
    dry = mode(regions, US, topic, **{"replicated": True, "from": EU, "dryRun": True}).json
    expected = {US: {"skips": 1, "again": 3}, EU: {"skips": 0, "again": 0}, AP: {"skips": 2, "again": 1}}
    assert dry["regions"] == expected
    done = mode(regions, US, topic, **{"replicated": True, "from": EU}).json
    assert (done["done"], done["regions"]) == (True, expected)
    owed(regions, topic, {0, 1, *range(4, 10)})
    # What is acknowledged from now on counts everywhere, in the new epoch.
    with client(regions, AP) as ap:
        consumer = ap.subscribe(topic, "s", consumer_type=SHARED)
        for message in [consumer.receive(PATIENCE_MS) for _ in range(8)]:
            consumer.acknowledge(message)
        consumer.close()
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_a_region_that_is_down_is_named_and_catches_up(regions: RegionsProcess) -> None:
    topic = alone(regions, "away", {US: (0,), EU: (1,), AP: (2,)})
    regions.kill_region(AP)
    refused = mode(regions, US, topic, **{"replicated": True, "from": AP})
    assert (refused.status, refused.reason.startswith("cannot get ap's progress: ap cannot be asked")) == (
        503,
        True,
    )
    assert "follows" not in refused.reason
    told = mode(regions, US, topic, replicated=True).json["regions"]
    assert told[US] == told[EU] == {"skips": 1, "again": 0}
    assert "it will catch up when it is back" in told[AP]["problem"]
    regions.bring_back(AP)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 7)


def test_a_region_that_hangs_is_named_before_the_caller_times_out(regions: RegionsProcess) -> None:
    topic = alone(regions, "hangs", {US: (0,), EU: (1,), AP: (2,)})
    regions.pause_region(AP)
    try:
        began = time.monotonic()
        told = mode(regions, US, topic, replicated=True, dryRun=True).json["regions"]
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2
    finally:
        regions.resume_region(AP)
    assert told[US] == told[EU] == {"skips": 1, "again": 0}
    assert "ap cannot be asked" in told[AP]["problem"]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"replicated": "yes"}, {"replicated": True, "from": "nowhere"}, {"replicated": False, "from": US}],
)
def test_what_makes_no_sense_is_refused(regions: RegionsProcess, wanted: dict[str, Any]) -> None:
    topic = new_topic("refused")
    path = topic_path(topic)
    assert regions.http(US, "PUT", path).status == 204
    assert regions.http(US, "PUT", f"{path}/subscription/s", "earliest").status == 204
    assert mode(regions, US, topic, **wanted).status == 412
