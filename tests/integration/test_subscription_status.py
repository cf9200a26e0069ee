# SPDX-License-Identifier: Apache-2.0
"""What administrators see of replicated subscriptions, and the policies that create them, with two real regions."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.region_clients import (
    KEY_SHARED,
    PATIENCE_MS,
    SHARED,
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

SETTINGS = {"exposeSubscriptionSyncMetricsInPrometheus": "true", "maxUnackedMessagesPerConsumer": "20"}

EAST, WEST = REGIONS = ("east", "west")


def command(regions: RegionsProcess, region: str, *line: str) -> subprocess.CompletedProcess[str]:
    """Run ``meridian LINE`` against a region."""
    return meridian_text(*line, "--url", regions.admin_url(region))


def status(regions: RegionsProcess, region: str, topic: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of ``meridian subscriptions status``."""
    told = command(regions, region, "subscriptions", "status", topic, "s", "--json")
    return told.returncode, json.loads(told.stdout) if told.stdout else {}


def stats(regions: RegionsProcess, region: str, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = regions.http(region, "GET", f"{topic_path(topic)}/stats").json
    return found


def metric(regions: RegionsProcess, region: str, name: str, topic: str) -> float | None:
    for family in text_string_to_metric_families(regions.http(region, "GET", "/metrics").text):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("topic") == topic:
                return float(sample.value)
    return None


def test_a_region_that_is_down_is_named_and_its_lag_grows(regions: RegionsProcess) -> None:
    topic = new_topic("watched")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(10)))
        stored(regions, WEST, topic, 10)
        consumer = subscribe(east, topic)
        messages = [consumer.receive(PATIENCE_MS) for _ in range(10)]
        consumer.acknowledge(messages[0])
        wait_for_backlog(regions, WEST, topic, 9)
        wait_until(lambda: status(regions, EAST, topic)[0] == 0, "both regions to be in step")
        code, found = status(regions, EAST, topic)
        assert (code, found["in_step"], found["problems"]) == (0, True, [])
        seen = command(regions, EAST, "subscriptions", "status", topic, "s")
        assert (seen.returncode, seen.stderr) == (0, "")
        assert "all regions are in step" in seen.stdout
        (there,) = found["regions"][WEST]["peers"]
        assert there["last_applied_at"] > 0 and there["reason"] == ""
        regions.kill_region(WEST)
        for number in (2, 3, 5):
            consumer.acknowledge(messages[number])

        def lag() -> dict[str, Any]:
            one: dict[str, Any] = stats(regions, EAST, topic)["subscriptions"]["s"]["meridian"]["regions"][WEST]
            return one

        wait_until(lambda: lag()["lagEntries"] == 3, "west to lack three acknowledgements")
        before = lag()["lagMs"]
        wait_until(lambda: lag()["lagMs"] > before, "the lag to grow")
        assert lag()["reason"] == "LinkDown"
        code, found = status(regions, EAST, topic)
        assert code == 1
        assert "problem" in found["regions"][WEST]
        seen = command(regions, EAST, "subscriptions", "status", topic, "s")
        assert seen.returncode == 1
        assert "west cannot be reached from east since 20" in seen.stdout
        assert metric(regions, EAST, "meridian_progress_lag_entries", topic) == 3
        assert (metric(regions, EAST, "meridian_progress_lag_seconds", topic) or 0) > 0
        assert metric(regions, EAST, "meridian_subscription_progress_lag_entries", topic) == 3
        assert metric(regions, EAST, "meridian_subscription_in_sync", topic) == 0
        publish(east, topic, numbered(range(10, 14)))
        wait_until(
            lambda: metric(regions, EAST, "meridian_unreplicated_tail_entries", topic) == 4,
            "the unreplicated tail to be counted",
        )
        assert (metric(regions, EAST, "meridian_unreplicated_tail_bytes", topic) or 0) > 4
        shown = command(regions, EAST, "topics", "status", topic)
        assert shown.returncode == 1 and "west" in shown.stdout
        assert command(regions, WEST, "topics", "status", topic).returncode == 2
        assert status(regions, WEST, topic)[0] == 2
        regions.bring_back(WEST)
        wait_until(lambda: status(regions, EAST, topic)[0] == 0, "west to catch up")
        wait_until(lambda: status(regions, WEST, topic)[0] == 0, "west to report that it caught up")
        wait_until(
            lambda: metric(regions, EAST, "meridian_unreplicated_tail_entries", topic) == 0,
            "the unreplicated tail to become empty",
        )
        take_numbers(consumer, range(10, 14))


def test_how_far_a_region_is_behind_is_stated_as_of_the_answer(regions: RegionsProcess) -> None:
    """The answer waits for a region that hangs, and what that region lacks grows older meanwhile."""
    topic = new_topic("hangs")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(3)))
        consumer = subscribe(east, topic)
        wait_for_backlog(regions, WEST, topic, 3)
        regions.pause_region(WEST)
        try:
            take_numbers(consumer, range(3))
            _, found = status(regions, EAST, topic)
        finally:
            regions.resume_region(WEST)
        (behind,) = found["regions"][EAST]["peers"]
        assert found["regions"][WEST]["problem"] == "west does not answer"
        assert behind["lag_entries"] == 3 and behind["lag_ms"] >= 5000
        wait_until(lambda: status(regions, EAST, topic)[0] == 0, "west to catch up")


def test_a_region_that_left_the_topic_silently_is_not_in_sync(regions: RegionsProcess) -> None:
    """Only one of the two counts the other among the topic's regions: the status says so even while it is idle."""
    topic = new_topic("left")
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(3)))
        subscribe(east, topic)
        wait_for_backlog(regions, WEST, topic, 3)
        wait_until(lambda: status(regions, WEST, topic)[0] == 0, "both regions to be in step")
        assert regions.http(EAST, "POST", f"{topic_path(topic)}/replication", [EAST]).status == 204
        wait_until(lambda: status(regions, WEST, topic)[0] == 1, "west to be told that east left")
        _, found = status(regions, WEST, topic)
        (left,) = found["regions"][WEST]["peers"]
        assert (left["region"], left["reason"]) == (EAST, "NotARegionOfTheTopic")
        assert f"east does not count west among the regions of {topic}" in left["detail"]
        assert regions.http(WEST, "POST", f"{topic_path(topic)}/replication", [WEST]).status == 204
        for region in REGIONS:
            wait_until(lambda region=region: status(regions, region, topic)[0] == 0, f"{region} to be alone")


def test_the_lag_of_a_region_that_is_down_survives_a_restart(regions: RegionsProcess) -> None:
    """That is when it is looked at: neither the number nor the age starts over with this broker."""
    topic = new_topic("watched-over-a-restart")

    def lag() -> dict[str, Any]:
        one: dict[str, Any] = stats(regions, EAST, topic)["subscriptions"]["s"]["meridian"]["regions"][WEST]
        return one

    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(10)))
        consumer = subscribe(east, topic)
        messages = [consumer.receive(PATIENCE_MS) for _ in range(10)]
        consumer.acknowledge(messages[0])
        wait_for_backlog(regions, WEST, topic, 9)
        wait_until(lambda: status(regions, EAST, topic)[0] == 0, "both regions to be in step")
        regions.kill_region(WEST)
        for number in (2, 3, 5):
            consumer.acknowledge(messages[number])
        wait_until(lambda: lag()["lagMs"] > 3000, "west to lack three acknowledgements for more than three seconds")
    before = lag()["lagMs"]
    regions.kill_region(EAST)
    regions.bring_back(EAST)
    wait_until(lambda: lag()["lagEntries"] == 3, "west to lack the same three acknowledgements after the restart")
    assert lag()["lagMs"] > before
    wait_until(lambda: lag()["reason"] == "LinkDown", "the link to be reported down")
    assert metric(regions, EAST, "meridian_progress_lag_entries", topic) == 3
    seen = command(regions, EAST, "subscriptions", "status", topic, "s")
    assert "west cannot be reached from east since 20" in seen.stdout, "since it went down, not since this start"
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        consumer.acknowledge(consumer.receive(PATIENCE_MS))
        wait_until(lambda: lag()["lagEntries"] == 4, "west to lack four acknowledgements")
    regions.bring_back(WEST)
    wait_until(lambda: status(regions, EAST, topic)[0] == 0, "west to catch up")
    assert (lag()["lagEntries"], lag()["lagMs"]) == (0, 0)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
def test_messages_acknowledged_elsewhere_do_not_block_a_consumer(
    regions: RegionsProcess, kind: pulsar.ConsumerType
) -> None:
    """R10: the consumer here never acknowledges those messages; they must not count against its limit forever."""
    topic = new_topic("unacked")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(30)))
        stored(regions, WEST, topic, 30)
        here = subscribe(east, topic, kind=kind, receiver_queue_size=100)
        first = [int(here.receive(PATIENCE_MS).data()) for _ in range(20)]

        def unacked() -> tuple[int, bool]:
            (one,) = stats(regions, EAST, topic)["subscriptions"]["s"]["consumers"]
            return one["unackedMessages"], one["blockedConsumerOnUnackedMsgs"]

        wait_until(lambda: unacked() == (20, True), "the limit to be reached")
        there = subscribe(west, topic, kind=kind, receiver_queue_size=100)
        for _ in range(20):
            message = there.receive(PATIENCE_MS)
            if int(message.data()) in first[:15]:
                there.acknowledge(message)
        rest = [int(here.receive(PATIENCE_MS).data()) for _ in range(10)]
        assert sorted(first + rest) == list(range(30))
        wait_until(lambda: unacked() == (15, False), "the west's acknowledgements to be counted")
        assert stats(regions, EAST, topic)["subscriptions"]["s"]["unackedMessages"] == 15


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_policies_say_which_new_subscriptions_are_replicated(regions: RegionsProcess, level: str) -> None:
    """PIP-398: the consumer's choice, else the topic's policy, else the namespace's; all regions learn of it."""
    topic = new_topic("policy")
    base = topic_path(topic)
    path = f"{base}/replicateSubscriptionState"
    namespace = "/admin/v2/namespaces/public/default/replicateSubscriptionState"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(3)))
        stored(regions, WEST, topic, 3)
        east.subscribe(topic, "before", consumer_type=SHARED).close()
        where = namespace if level == "namespace" else path
        assert regions.http(EAST, "POST", where, True).status == 204
        for region in REGIONS:
            assert regions.http(region, "GET", where).json is True
            applied = f"{path}?applied=true"
            wait_until(
                lambda one=region, of=applied: regions.http(one, "GET", of).json is True, "the policy to be in force"
            )
        west.subscribe(topic, "s", consumer_type=SHARED, initial_position=pulsar.InitialPosition.Earliest).close()
        wait_for_backlog(regions, EAST, topic, 3)
        assert not stats(regions, EAST, topic)["subscriptions"]["before"]["isReplicated"], "existing ones stay"
        # One region alone, and the topic before its namespace.
        assert regions.http(EAST, "POST", f"{path}?region={WEST}", False).status == 412
        assert regions.http(EAST, "POST", f"{path}?region={EAST}", False).status == 204
        assert regions.http(WEST, "GET", path).text == ("" if level == "namespace" else "true")
        wait_until(
            lambda: regions.http(EAST, "GET", f"{path}?applied=true").json is False,
            "the topic's own policy to be in force",
        )
        east.subscribe(topic, "mine", consumer_type=SHARED).close()
        assert not stats(regions, EAST, topic)["subscriptions"]["mine"]["isReplicated"]
        assert backlog(regions, WEST, topic, "mine") is None
        for one in {where, path}:
            assert regions.http(EAST, "DELETE", one).status == 204
            assert {regions.http(region, "GET", one).text for region in REGIONS} == {""}


def test_a_subscription_can_be_unreplicated_where_the_policy_says_replicated(regions: RegionsProcess) -> None:
    topic = new_topic("no")
    base = topic_path(topic)
    assert regions.http(EAST, "PUT", base).status == 204
    assert regions.http(EAST, "POST", f"{base}/replicateSubscriptionState", True).status == 204
    wait_until(
        lambda: regions.http(EAST, "GET", f"{base}/replicateSubscriptionState?applied=true").json,
        "the policy to be in force",
    )
    for name, query, wanted in (("a", "", True), ("b", "?replicated=false", False), ("c", "?replicated=true", True)):
        assert regions.http(EAST, "PUT", f"{base}/subscription/{name}{query}", "earliest").status == 204
        assert stats(regions, EAST, topic)["subscriptions"][name]["isReplicated"] is wanted, name
