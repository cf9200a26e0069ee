# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin``: consumers in all regions at once get each message once; another region takes over a dead
region's stream, which returns with the region (R26)."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pulsar
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    PATIENCE_MS,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    subscribe,
    wait_for_backlog,
)
from support.protocol.admin_paths import subscription_path

REGIONS = (EAST, WEST, CENTRAL)


class Listener:
    """A consumer that records what it receives, and acknowledges it unless ``holding``."""

    def __init__(self, to: pulsar.Client, topic: str) -> None:
        self.numbers: list[int] = []
        self.holding = False
        self._lock = threading.Lock()
        self.consumer = subscribe(to, topic, message_listener=self._heard)

    def _heard(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        with self._lock:
            self.numbers.append(int(message.data()))
        if not self.holding:
            consumer.acknowledge(message)

    def clear(self) -> None:
        with self._lock:
            self.numbers.clear()


def scope_of(regions: RegionsProcess, region: str, topic: str) -> dict[str, Any]:
    answer = regions.http(region, "GET", f"{subscription_path(topic)}/scope")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def dispatchers(regions: RegionsProcess, region: str, topic: str) -> dict[str, str]:
    """Origin -> the region that dispatches it, as ``region`` sees it."""
    return {one["origin"]: one["dispatched_by"] for one in scope_of(regions, region, topic).get("shares", ())}


def set_scope(regions: RegionsProcess, region: str, topic: str, body: dict[str, Any]) -> None:
    path = f"{subscription_path(topic)}/scope"
    answer = regions.http(region, "POST", path, body)
    assert answer.status == 204, answer.text


def test_each_message_once_and_a_dead_regions_share_goes_on_elsewhere(regions: RegionsProcess) -> None:
    topic = new_topic("scope")
    own = {region: region for region in REGIONS}
    with client(regions, EAST) as east, client(regions, WEST) as west, client(regions, CENTRAL) as central:
        clients = {EAST: east, WEST: west, CENTRAL: central}
        listening = {region: Listener(one, topic) for region, one in clients.items()}

        def everything() -> Counter[int]:
            return Counter(number for one in listening.values() for number in tuple(one.numbers))

        set_scope(regions, EAST, topic, {"dispatchScope": "origin"})
        wait_until(
            lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS),
            "each stream to be with its preferred holder",
        )
        published = {region: range(1000 * i, 1000 * i + 300) for i, region in enumerate(REGIONS)}
        for region, numbers in published.items():
            publish(clients[region], topic, numbered(numbers))
        wait_until(lambda: len(everything()) == 900, "all messages to arrive")
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 0)
            assert listening[region].numbers == list(published[region])

        for one in listening.values():
            one.clear()
        listening[EAST].holding = True
        publish(east, topic, numbered(range(5000, 5200)))
        wait_until(lambda: len(listening[EAST].numbers) == 200, "all messages to arrive at the preferred holder")
        wait_for_backlog(regions, WEST, topic, 200)
        wait_for_backlog(regions, CENTRAL, topic, 200)
        regions.kill_region(EAST)
        survivors = [listening[WEST], listening[CENTRAL]]
        wait_until(
            lambda: sum(len(one.numbers) for one in survivors) >= 200,
            "another region to take over the dead region's stream",
        )
        assert sorted(survivors[0].numbers + survivors[1].numbers) == list(range(5000, 5200))
        assert not (survivors[0].numbers and survivors[1].numbers), "only one region takes it over"
        publish(west, topic, numbered(range(6000, 6100)))
        wait_until(lambda: len(listening[WEST].numbers) >= 100, "the west's own stream to continue")

        listening[EAST].holding = False
        listening[EAST].clear()
        regions.bring_back(EAST)
        wait_until(
            lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS),
            "each stream to be back with its preferred holder",
        )
        for one in listening.values():
            one.clear()
        publish(east, topic, numbered(range(7000, 7100)))
        wait_until(lambda: len(everything()) == 100, "the east's messages to arrive")
        assert listening[EAST].numbers == list(range(7000, 7100))
        assert sum(everything().values()) == 100, "and no other message anywhere"


def test_of_two_regions_one_takes_over_by_itself_when_a_third_one_votes(regions: RegionsProcess) -> None:
    """The topic is in the east and the west alone; the witness votes, but has none of its messages."""
    namespace = "public/two"
    for region in REGIONS:
        assert regions.http(region, "PUT", f"/admin/v2/namespaces/{namespace}").status in (204, 409)
        clusters = [EAST, WEST] if region != CENTRAL else [CENTRAL]
        assert regions.http(region, "POST", f"/admin/v2/namespaces/{namespace}/replication", clusters).status == 204
    topic = f"persistent://{namespace}/witnessed"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        listening = {EAST: Listener(east, topic), WEST: Listener(west, topic)}
        scope = f"{subscription_path(topic)}/scope"
        answer = regions.http(EAST, "POST", scope, {"witness": CENTRAL})
        assert answer.status == 412
        assert "scope local" in answer.text
        answer = regions.http(EAST, "POST", scope, {"dispatchScope": "origin", "witness": "mars"})
        assert answer.status == 412
        assert "mars cannot be a witness" in answer.text and "no region of that name" in answer.text
        set_scope(regions, EAST, topic, {"dispatchScope": "origin", "witness": CENTRAL})

        def is_agreed(region: str) -> bool:
            found = scope_of(regions, region, topic)
            return found.get("voters") == [sorted(REGIONS)] and bool(found["voters_agreed"])

        wait_until(lambda: is_agreed(EAST) and is_agreed(WEST), "the witness to vote")
        own = {EAST: EAST, WEST: WEST}
        wait_until(lambda: dispatchers(regions, WEST, topic) == own, "each stream to be with its preferred holder")
        listening[EAST].holding = True
        publish(east, topic, numbered(range(100)))
        wait_until(lambda: len(listening[EAST].numbers) == 100, "all messages to arrive at the preferred holder")
        wait_for_backlog(regions, WEST, topic, 100)
        regions.kill_region(CENTRAL)
        regions.bring_back(CENTRAL)
        regions.kill_region(EAST)
        wait_until(
            lambda: len(listening[WEST].numbers) == 100,
            "the west to take over the dead region's stream, without a command",
        )
        assert sorted(listening[WEST].numbers) == list(range(100))
        topics = regions.http(CENTRAL, "GET", f"/admin/v2/persistent/{namespace}").json
        assert topics == [], "the witness does not have the topic"
        regions.bring_back(EAST)
        wait_until(lambda: dispatchers(regions, WEST, topic) == own, "each stream to be back with its preferred holder")


def test_a_region_that_was_stopped_for_longer_than_its_lease_sends_nothing_late(regions: RegionsProcess) -> None:
    topic = new_topic("stopped")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        held = subscribe(east, topic, receiver_queue_size=10)
        elsewhere = Listener(west, topic)
        set_scope(regions, WEST, topic, {"dispatchScope": "origin"})
        wait_until(
            lambda: dispatchers(regions, EAST, topic).get(EAST) == EAST,
            "the east's stream to be with its preferred holder",
        )
        publish(east, topic, numbered(range(100)))
        first = [int(held.receive(PATIENCE_MS).data()) for _ in range(5)]
        wait_for_backlog(regions, WEST, topic, 100)
        regions.pause_region(EAST)
        try:
            wait_until(lambda: len(elsewhere.numbers) == 100, "the west to get all messages")
        finally:
            regions.resume_region(EAST)
        wait_for_backlog(regions, EAST, topic, 0)
        both = (EAST, WEST)
        wait_until(
            lambda: {dispatchers(regions, one, topic).get(EAST) for one in both} == {EAST},
            "the east's stream to be back with its preferred holder",
        )
        publish(east, topic, numbered([100]))
        # Only what was in flight before the pause (the queue has room for 10), and then what is new.
        late: list[int] = []
        while 100 not in late:
            late.append(int(held.receive(PATIENCE_MS).data()))
        assert set(late[:-1]) <= set(range(5, 20)), (first, late)
        assert sorted(elsewhere.numbers) == list(range(100))
