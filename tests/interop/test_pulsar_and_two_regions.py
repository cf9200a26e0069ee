# SPDX-License-Identifier: Apache-2.0
"""A real Apache Pulsar and two regions of Meridian, the second of which joins late; and what the verifier reads there.

It needs Java 17 and the jars that `scripts/pulsar` fetches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from meridian_verifier.align.findings import Reason
from meridian_verifier.align.verdicts import State, Verdict
from support.brokers.broker_process import HttpAnswer, RegionsProcess, http, wait_until
from support.brokers.pulsar_process import PulsarProcess
from support.brokers.region_clients import connected
from support.brokers.two_kinds import numbered
from support.verifier.verifier_live import live_verdict

SECONDS = 600
APACHE = "apache"
EAST, WEST = REGIONS = ("east", "west")
SPACE, JUDGED, UNGUARDED = "joined/all", "joined/judged", "joined/unguarded"
SUBSCRIPTION = "mover"
MARKERS = 40
"""The most markers that Pulsar counts as backlog until there is a consumer: those of some snapshots."""
ROUNDS = 3
"""Updates to wait for: if anything is passed by mistake, the first one does it."""


class Cluster:
    """One of the three, by its addresses."""

    def __init__(self, name: str, service_url: str, admin_url: str) -> None:
        self.name, self.service_url, self.admin_url = name, service_url, admin_url

    def http(self, method: str, path: str, body: Any = ...) -> HttpAnswer:
        return http(method, self.admin_url + path, body)

    def put(self, path: str, body: Any, *, verb: str = "PUT") -> None:
        """Create something that may exist already: Meridian's regions tell each other."""
        answer = self.http(verb, f"/admin/v2/{path}", body)
        assert answer.status in (200, 204, 409), (self.name, path, answer)

    def stats(self, topic: str) -> Any:
        answer = self.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
        return answer.json if answer.status == 200 else {}

    def backlog(self, topic: str) -> int | None:
        """The subscription's backlog; None: it does not exist, or is not replicated."""
        found = self.stats(topic).get("subscriptions", {}).get(SUBSCRIPTION)
        return int(found["msgBacklog"]) if found and found["replicated"] else None

    def snapshots(self, topic: str) -> Any:
        return self.http("GET", f"/meridian/v1/topics/{topic.replace('://', '/')}/snapshots").json

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        with connected(self.service_url) as client:
            yield client

    @contextlib.contextmanager
    def consumer(self, topic: str) -> Iterator[Any]:
        with self.client() as client:
            yield client.subscribe(
                topic,
                SUBSCRIPTION,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                replicate_subscription_state_enabled=True,
            )

    def publish(self, topic: str, messages: list[bytes]) -> None:
        with self.client() as client:
            producer = client.create_producer(topic, batching_enabled=False)
            for message in messages:
                producer.send(message)

    def take(self, topic: str, expected: list[bytes]) -> None:
        """A consumer gets and acknowledges these messages, and no others within a second."""
        with self.consumer(topic) as consumer:
            found: set[bytes] = set()
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(60_000 if set(expected) - found else 1000)
                    found.add(message.data())
                    consumer.acknowledge(message)
            assert found == set(expected), f"{len(found)} of {len(expected)} messages in {self.name}"


@pytest.fixture(scope="module")
def clusters(apache: PulsarProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Linked to each other; the namespace is replicated between apache and east."""
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("two") / "data") as two:
        found = {name: Cluster(name, two.service_url(name), two.admin_url(name)) for name in REGIONS}
        found[APACHE] = there = Cluster(APACHE, apache.service_url, apache.admin_url)
        addresses = {"serviceUrl": apache.admin_url, "brokerServiceUrl": apache.service_url, "kind": "pulsar"}
        for name in REGIONS:
            there.put(
                f"clusters/{name}", {"serviceUrl": two.admin_url(name), "brokerServiceUrl": two.service_url(name)}
            )
            found[name].put(f"clusters/{APACHE}", addresses)
        for one in found.values():
            one.put("tenants/joined", {"allowedClusters": [APACHE, *REGIONS]})
        for space in (SPACE, JUDGED, UNGUARDED):
            regions = [APACHE, *REGIONS] if space == JUDGED else [APACHE, EAST]
            for name in REGIONS:
                found[name].put(f"namespaces/{space}", {"replication_clusters": regions})
            there.put(f"namespaces/{space}", {})
            there.put(f"namespaces/{space}/deduplication", space != UNGUARDED, verb="POST")
            there.put(f"namespaces/{space}/replication", regions, verb="POST")
        try:
            yield found
        finally:
            for name in REGIONS:
                print(name, two.log(name)[-4000:])


@pytest.mark.timeout(SECONDS)
def test_a_region_that_joins_late_has_pulsar_pass_nothing(clusters: dict[str, Cluster]) -> None:
    apache, east, west = (clusters[name] for name in (APACHE, EAST, WEST))
    topic = f"persistent://{SPACE}/late"
    before, after, own = numbered("before", 20), numbered("after", 5), numbered("own", 1)
    east.take(topic, [])
    apache.publish(topic, before)
    wait_until(lambda: east.backlog(topic) == len(before), "east to have the first messages", 60.0)
    wait_until(lambda: apache.backlog(topic) is not None, "Pulsar to know the subscription", 60.0)

    for one in (west, east, apache):
        one.put(f"namespaces/{SPACE}/replication", [APACHE, *REGIONS], verb="POST")
    wait_until(lambda: apache.stats(topic)["replication"].get(WEST, {}).get("connected"), "Pulsar to reach west", 60.0)
    apache.publish(topic, after)
    wait_until(lambda: west.backlog(topic) == len(after), "west to have the new messages", 60.0)
    west.publish(topic, own)
    west.take(topic, after + own)

    def is_held() -> bool:
        shown = west.snapshots(topic)
        return bool(shown.get("updates", 0) >= ROUNDS and shown["heldBack"] == 1)

    for number in range(30):
        west.publish(topic, numbered(f"more{number}", 1))
        west.take(topic, numbered(f"more{number}", 1))
        if is_held():
            break
    assert is_held(), west.snapshots(topic)
    (why,) = west.snapshots(topic)["heldBackFirst"][SUBSCRIPTION].values()
    assert "east may still owe it" in why
    assert east.backlog(topic) == len(before), "no message that nobody read is passed"
    assert (apache.backlog(topic) or 0) >= len(before)

    east.take(topic, before)
    east.publish(topic, numbered("wake", 1))
    west.take(topic, numbered("wake", 1))
    wait_until(lambda: (apache.backlog(topic) or 0) <= MARKERS, "Pulsar to hear of the acknowledgements", 60.0)
    wait_until(lambda: not west.snapshots(topic)["heldBack"], "west to hold nothing back", 60.0)
    apache.take(topic, [])


def told_within(seconds: float, cluster: Cluster, topic: str) -> bool:
    """Whether nothing is owed there by then."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: cluster.backlog(topic) == 0, f"{cluster.name} to owe nothing", seconds)
    return cluster.backlog(topic) == 0


@pytest.mark.timeout(SECONDS)
def test_the_verifier_judges_what_pulsar_shows(clusters: dict[str, Cluster]) -> None:
    """Pulsar's positions, from its admin API; the rest is unknown."""
    apache, east, west = (clusters[name] for name in (APACHE, EAST, WEST))
    topic = f"persistent://{JUDGED}/positions"
    for name in REGIONS:  # only in this mode is what it told Pulsar on record
        clusters[name].put(f"namespaces/{JUDGED}/subscriptionSync", "snapshot", verb="POST")
    east.take(topic, [])
    here, there = numbered("east", 10), numbered("apache", 10)
    apache.publish(topic, there)
    east.publish(topic, here)
    wait_until(lambda: east.backlog(topic) == 20, "east to have all messages", 60.0)
    east.take(topic, here + there)

    def verdict() -> Verdict:
        urls = {name: clusters[name].admin_url for name in REGIONS}
        return live_verdict(urls, topic, pulsar_urls={APACHE: apache.admin_url})

    def pairs() -> dict[tuple[str, str, str], tuple[Reason, ...]]:
        found = verdict()
        assert not found.findings, found.summary
        return {
            (one.subscription, pair.source, pair.target): pair.reasons for one in found.subjects for pair in one.pairs
        }

    wait_until(
        lambda: (apache.backlog(topic) or MARKERS) < MARKERS - 20, "Pulsar to hear of the acknowledgements", 60.0
    )
    with apache.consumer(topic) as consumer:  # it passes markers, so Pulsar tells west
        while not told_within(5.0, west, topic):  # Pulsar takes the next snapshot after the next message
            apache.publish(topic, numbered(f"more{len(there)}", 1))
            message = consumer.receive(60_000)
            consumer.acknowledge(message)
            there.append(message.data())

        def aligned() -> dict[tuple[str, str, str], tuple[Reason, ...]] | None:
            found = pairs()
            both = found[SUBSCRIPTION, EAST, APACHE], found[SUBSCRIPTION, APACHE, EAST]
            return found if both == ((), ()) else None

        found = wait_until(aligned, "the verifier to find Pulsar aligned with east", 60.0)
        assert found["", EAST, APACHE] == found["", APACHE, EAST] == (Reason.NOT_COMPARABLE,), "its ids are its own"
        assert verdict().state is State.UNKNOWN

    back = f"/admin/v2/{topic.replace('://', '/')}/subscription/{SUBSCRIPTION}/resetcursor/1"
    assert apache.http("POST", back).status == 204
    found_back = verdict()
    assert found_back.state is State.MISALIGNED
    assert {(one.reason, one.subscription, one.target, one.entries) for one in found_back.findings} == {
        (Reason.MISSING_ACK, SUBSCRIPTION, APACHE, len(there))
    }


@pytest.mark.timeout(SECONDS)
def test_where_pulsar_stores_repeats_status_says_so(clusters: dict[str, Cluster]) -> None:
    def warning(space: str) -> str | None:
        shown = clusters[EAST].stats(f"persistent://{space}/warned")["replication"].get(APACHE, {})
        return str(shown["warning"]) if shown.get("connected") else None

    for space in (UNGUARDED, JUDGED):
        clusters[EAST].publish(f"persistent://{space}/warned", numbered("one", 1))
        wait_until(lambda space=space: warning(space) is not None, "the link to Pulsar to be up", 60.0)
    wait_until(lambda: warning(UNGUARDED), "the link to warn about deduplication", 60.0)
    assert "set-deduplication --enable" in (warning(UNGUARDED) or "")
    assert warning(JUDGED) == ""
