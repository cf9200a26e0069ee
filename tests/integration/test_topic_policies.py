# SPDX-License-Identifier: Apache-2.0
"""Topic policies over real HTTP, and their effect on real clients within a second."""

from __future__ import annotations

import contextlib
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "retentionCheckIntervalInSeconds": "1"}

NS = "/admin/v2/namespaces/public/default"
TOPICS = "/admin/v2/persistent/public/default"


@pytest.mark.parametrize(
    ("policy", "value", "wrong", "default"),
    [
        (
            "retention",
            {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
            {"retentionTimeInMinutes": 5},
            {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        ),
        ("messageTTL", 3600, -1, 0),
        ("deduplicationEnabled", True, "perhaps", False),
        ("maxProducers", 3, -1, 0),
        ("compactionThreshold", 1 << 20, -1, 0),
        (
            "publishRate",
            {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
            5,
            {"publishThrottlingRateInMsg": 0, "publishThrottlingRateInByte": 0},
        ),
        (
            "delayedDelivery",
            {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 60000},
            {"tickTime": -1},
            {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0},
        ),
        (
            "inactiveTopicPolicies",
            {
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                "maxInactiveDurationSeconds": 9,
                "deleteWhileInactive": True,
            },
            {"inactiveTopicDeleteMode": "sometimes"},
            None,
        ),
    ],
)
def test_a_policy_is_set_read_and_removed(
    broker: BrokerProcess, policy: str, value: Any, wrong: Any, default: Any
) -> None:
    broker.http("PUT", f"{TOPICS}/many/partitions", 2)
    path = f"{TOPICS}/many/{policy}"
    assert broker.http("GET", path).status == 204
    if default is not None:
        assert broker.http("GET", f"{path}?applied=true").json == default
    assert broker.http("POST", path, value).status == 204
    assert broker.http("GET", path).json == value
    assert broker.http("GET", f"{path}?applied=true").json == value
    assert broker.http("POST", path, wrong).status == 412
    assert broker.http("GET", path).json == value
    assert broker.http("DELETE", path).status == 204
    assert broker.http("GET", path).status == 204
    assert broker.http("GET", f"{TOPICS}/nowhere/{policy}").status == 404
    assert broker.http("POST", f"{TOPICS}/nowhere/{policy}", value).status == 404
    assert broker.http("POST", f"{TOPICS}/many-partition-0/{policy}", value).status == 412


def test_a_topics_policy_overrides_its_namespaces_only_where_it_is_set(broker: BrokerProcess) -> None:
    broker.http("PUT", f"{TOPICS}/levels")
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    age = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    assert broker.http("POST", f"{NS}/backlogQuota?backlogQuotaType=destination_storage", quota).status == 204
    assert broker.http("POST", f"{TOPICS}/levels/backlogQuota?backlogQuotaType=message_age", age).status == 204
    assert broker.http("POST", f"{TOPICS}/levels/backlogQuota?backlogQuotaType=wrong", age).status == 412
    assert broker.http("GET", f"{TOPICS}/levels/backlogQuotaMap").json == {"message_age": age}
    applied = broker.http("GET", f"{TOPICS}/levels/backlogQuotaMap?applied=true").json
    assert applied == {"destination_storage": quota, "message_age": age}
    assert broker.http("DELETE", f"{TOPICS}/levels/backlogQuota?backlogQuotaType=message_age").status == 204
    assert broker.http("DELETE", f"{NS}/backlogQuota").status == 204
    assert broker.http("GET", f"{TOPICS}/levels/backlogQuotaMap?applied=true").json == {}
    assert broker.http("POST", f"{NS}/messageTTL", 50).status == 204
    assert broker.http("GET", f"{TOPICS}/levels/messageTTL?applied=true").json == 50
    assert broker.http("POST", f"{TOPICS}/levels/messageTTL?messageTTL=70").status == 204
    assert broker.http("GET", f"{TOPICS}/levels/messageTTL?applied=true").json == 70
    assert broker.http("DELETE", f"{NS}/messageTTL").status == 204
    # Policies are deleted with the topic: the next one of that name begins without them.
    assert broker.http("DELETE", f"{TOPICS}/levels").status == 204
    assert broker.http("PUT", f"{TOPICS}/levels").status == 204
    assert broker.http("GET", f"{TOPICS}/levels/messageTTL").status == 204


def test_the_topics_limit_of_producers_overrides_the_namespaces(broker: BrokerProcess, client: pulsar.Client) -> None:
    kept = [client.create_producer("crowded")]
    assert broker.http("POST", f"{NS}/maxProducersPerTopic", 1).status == 204
    assert broker.http("POST", f"{TOPICS}/crowded/maxProducers", 2).status == 204

    def busy() -> bool:
        try:
            kept.append(client.create_producer("crowded"))
        except pulsar.ProducerBusy:
            return True
        return False

    wait_until(busy, "the limit to be in force")
    assert len(kept) >= 2
    kept.pop().close()
    assert broker.http("DELETE", f"{TOPICS}/crowded/maxProducers").status == 204
    assert broker.http("DELETE", f"{NS}/maxProducersPerTopic").status == 204

    def many() -> bool:
        with contextlib.suppress(pulsar.ProducerBusy):
            kept.append(client.create_producer("crowded"))
        return len(kept) >= 4

    wait_until(many, "the limit to be lifted")


def test_a_topic_deduplicates_although_its_namespace_does_not(broker: BrokerProcess, client: pulsar.Client) -> None:
    """It is switched on and off under a connected producer, and stays on across a restart."""
    producer = client.create_producer("once", producer_name="p")
    assert broker.http("POST", f"{TOPICS}/once/deduplicationEnabled", True).status == 204

    def status() -> Any:
        return broker.http("GET", f"{TOPICS}/once/stats").json["deduplicationStatus"]

    wait_until(lambda: status() == "Enabled", "the topic to deduplicate")
    producer.send(b"a", sequence_id=5)
    producer.send(b"a", sequence_id=5)
    assert broker.http("GET", f"{TOPICS}/once/internalStats").json["entriesAddedCounter"] == 1
    producer.close()
    assert broker.http("PUT", f"{TOPICS}/once/unload").status == 204
    again = client.create_producer("once", producer_name="p")
    assert status() == "Enabled"
    assert again.last_sequence_id() == 5
    assert broker.http("POST", f"{NS}/deduplication", True).status == 204
    assert broker.http("POST", f"{TOPICS}/once/deduplicationEnabled", False).status == 204
    wait_until(lambda: status() == "Disabled", "the topic to stop deduplicating")
    assert broker.http("DELETE", f"{TOPICS}/once/deduplicationEnabled").status == 204
    wait_until(lambda: status() == "Enabled", "the namespace's policy to be in force")
    assert broker.http("DELETE", f"{NS}/deduplication").status == 204
    again.close()


def test_a_topics_retention_keeps_what_its_namespaces_would_delete(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    def ledgers(topic: str) -> int:
        return len(broker.http("GET", f"{TOPICS}/{topic}/internalStats").json["ledgers"])

    for topic in ("kept-part", "given-part"):
        assert broker.http("PUT", f"{TOPICS}/{topic}/partitions", 1).status == 204
    policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert broker.http("POST", f"{TOPICS}/kept-part/retention", policy).status == 204
    for topic in ("kept-part", "given-part"):
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(40):
            producer.send_async(b"%d" % number, lambda _result, _place: None)
        producer.flush()
        producer.close()
    wait_until(lambda: ledgers("given-part-partition-0") <= 1, "the space to be freed")
    assert ledgers("kept-part-partition-0") >= 4
    assert broker.http("DELETE", f"{TOPICS}/kept-part/retention").status == 204
    wait_until(lambda: ledgers("kept-part-partition-0") <= 1, "the space to be freed here as well")
