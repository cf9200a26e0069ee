# SPDX-License-Identifier: Apache-2.0
"""Costs of the leases of three idle regions: bytes, processor time, records on disk (R26).

Subscriptions with dispatch scope ``origin`` are consumed in all three regions: each region holds its own stream of each
and renews it, by digests, or by name as with regions of an older version. The real cores in one process, without
sockets and disks: every message is encoded, counted and decoded, and simulated time advances from deadline to deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from meridian_broker.replication.leases.manager import Greeted, LeaseManager
from meridian_broker.replication.leases.messages import LeaseMessage, Stream
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.progress import codec
from meridian_broker.topics.journal.subscription_record import ORIGIN, SubscriptionRecord
from meridian_broker.topics.ports import EveryTopic
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.wire.pulsar.frames import FrameDecoder

REGIONS = ("eu-central", "us-east", "us-west")
EVERYWHERE = frozenset(REGIONS)
SUBSCRIPTIONS = (1_000, 10_000)
IDLE_SECONDS = 60
BYTES_PER_SECOND = 50_000
"""All regions together, as for the progress exchange."""
CPU_MS_PER_SECOND = 50
"""Per region."""


class Log:
    """The progress log of a topic, and the witness's store: everything is durable at once, and counted."""

    is_open = True

    def __init__(self) -> None:
        self.records = 0

    def append(self, kind: object, name: str, payload: bytes, done: Callable[[None], None]) -> None:  # noqa: ARG002
        self.records += 1
        done(None)

    def confirm(self, confirmed: Callable[[], None]) -> None:
        self.records += 1
        confirmed()


class Streams:
    """The held streams of one subscription."""

    def __init__(self, held: set[Stream], stream: Stream) -> None:
        self._held, self._stream = held, stream

    def won(self, origin: str, lease: object) -> None:  # noqa: ARG002
        self._held.add((*self._stream[:2], origin))

    def lost(self, origin: str) -> None:
        self._held.discard((*self._stream[:2], origin))


class Copy:
    """The part of a topic that leases use."""

    leasing = True
    subscription_registry = SimpleNamespace(lost_records=SimpleNamespace(votes_from_ms=0))

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.failure = None
        self.followed = EVERYWHERE
        self.progress_log = log
        self.votes: dict[str, dict[str, tuple[str, int, int]]] = {}
        self.subscriptions: dict[str, Subscription] = {}

    def regions(self) -> frozenset[str]:
        return self.followed


class Subscription:
    """The part of a subscription that leases use."""

    is_there = True

    def __init__(self, topic: Copy, name: str, record: SubscriptionRecord, streams: Streams) -> None:
        self.topic = topic
        self.name = name
        self.record = record
        self.streams = streams


class Turn:
    """The scheduler of a region that is greeted before it has topics: its jobs end at once."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:  # noqa: ARG002
        with suppress(StopIteration):
            work.send(None)
            raise AssertionError("it waits")


class Region:
    """The topics of a region, its links, and its clock."""

    def __init__(self, world: World, region: str) -> None:
        self.world = world
        self.region = region
        self.agreed = VoterSets.of(*REGIONS)
        self.held: set[Stream] = set()
        self.log = Log()
        self.spent = 0.0
        self.topics: dict[str, Copy] = {}
        service: Any = SimpleNamespace(
            parts=SimpleNamespace(region=region, ownership=EveryTopic(1), scheduler=Turn()),
            topics=self.topics,
            closing=True,
        )
        topics: Any = LeasedTopics(service)
        topics.witness = self.log
        self.manager = LeaseManager(topics, f"{region}#1", lambda: world.now_ms)
        self.manager.links = self

    def consume(self, name: str, subscription: str) -> None:
        """A topic with one subscription, which has consumers here."""
        record = SubscriptionRecord(subscription, replicated=True, scope=ORIGIN, voter_sets=self.agreed)
        topic = self.topics[name] = Copy(name, self.log)
        stream = (name, subscription, self.region)
        streams = Streams(self.held, stream)
        topic.subscriptions[subscription] = Subscription(topic, subscription, record, streams)
        self.manager.want(stream, self.agreed, self.region)

    def peer_of(self, region: str, topic: str) -> str:  # noqa: ARG002
        return region

    def is_up(self, region: str) -> bool:  # noqa: ARG002
        return True

    def send_lease(self, region: str, message: LeaseMessage) -> None:
        def back(answer: LeaseMessage) -> None:
            self.world.carry(answer, self, lambda got: self.manager.received(region, got, lambda _: None))

        target = self.world.regions[region]
        self.world.carry(message, target, lambda got: target.manager.received(self.region, got, back))

    def timed(self, work: Callable[[], None]) -> None:
        begin = time.process_time()
        work()
        spent = time.process_time() - begin
        self.spent += spent
        self.world.longest = max(self.world.longest, spent)


class World:
    """Three regions, with links that deliver at once."""

    def __init__(self, subscriptions: int, *, by_name: bool) -> None:
        self.now_ms = 1000
        self.bytes = self.messages = 0
        self.longest = 0.0
        self._due: deque[Callable[[], None]] = deque()
        self.regions = {region: Region(self, region) for region in REGIONS}
        for name, region in self.regions.items():
            for other in REGIONS:
                if other != name:
                    region.manager.greeted(other, Greeted(leases=True, renewals=not by_name))
            for number in range(subscriptions):
                region.consume(f"persistent://public/default/orders-of-a-shop-{number}", "billing")

    def carry(self, message: LeaseMessage, target: Region, take: Callable[[Any], None]) -> None:
        data = codec.encode(message)
        self.bytes += len(data)
        self.messages += 1

        def arrive() -> None:
            for kind, decoded in ((one[0], one[1]) for one in FrameDecoder().feed(data)):
                target.timed(lambda k=kind, d=decoded: take(codec.decode(k, d)))  # type: ignore[misc]

        self._due.append(arrive)

    def run(self, seconds: float) -> None:
        until = self.now_ms + round(seconds * 1000)
        while True:
            deadlines = [at for one in self.regions.values() if (at := one.manager.next_deadline()) is not None]
            self.now_ms = min(max(self.now_ms, min(deadlines)), until)
            for region in self.regions.values():
                region.timed(region.manager.tick)
            while self._due:
                self._due.popleft()()
            if self.now_ms >= until:
                return

    def count_anew(self) -> None:
        self.bytes = self.messages = 0
        self.longest = 0.0
        for region in self.regions.values():
            region.spent, region.log.records = 0.0, 0


def measure(subscriptions: int, *, by_name: bool) -> dict[str, Any]:
    """:param by_name: the peers understand nothing else, as before version 4 of the peer protocol."""
    world = World(subscriptions, by_name=by_name)
    world.run(20)
    world.count_anew()
    world.run(IDLE_SECONDS)
    assert all(len(one.held) == subscriptions for one in world.regions.values()), (
        "a stream is not with its preferred holder"
    )
    return {
        "subscriptions": subscriptions,
        "by_name": by_name,
        "bytes_per_second": round(world.bytes / IDLE_SECONDS),
        "messages_per_second": round(world.messages / IDLE_SECONDS, 2),
        "cpu_ms_per_second": round(1000 * max(one.spent for one in world.regions.values()) / IDLE_SECONDS, 2),
        "records_per_second": round(max(one.log.records for one in world.regions.values()) / IDLE_SECONDS, 2),
        "longest_step_ms": round(1000 * world.longest, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the smaller number of subscriptions")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    rows, targets = [], {}
    print(
        f"{'scoped':>10}  {'renewed by':<10}{'B/s':>12}{'target':>11}{'msg/s':>8}{'CPU ms/s':>10}{'target':>8}"
        f"{'records/s':>11}{'longest ms':>12}"
    )
    for subscriptions in SUBSCRIPTIONS[:1] if options.quick else SUBSCRIPTIONS:
        for by_name in (True, False):
            row = measure(subscriptions, by_name=by_name)
            rows.append(row)
            print(
                f"{subscriptions:>10,}  {'name' if by_name else 'digest':<10}"
                f"{row['bytes_per_second']:>12,}{f'<= {BYTES_PER_SECOND:,}':>11}"
                f"{row['messages_per_second']:>8}{row['cpu_ms_per_second']:>10}{f'<= {CPU_MS_PER_SECOND}':>8}"
                f"{row['records_per_second']:>11}{row['longest_step_ms']:>12}",
                flush=True,
            )
        for figure, most in (("bytes_per_second", BYTES_PER_SECOND), ("cpu_ms_per_second", CPU_MS_PER_SECOND)):
            name = f"{subscriptions:,} subscriptions with scope origin, 3 regions, at rest, {figure}"
            targets[name] = {"target": most, "measured": row[figure], "met": row[figure] <= most}
    if options.json:
        machine = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"targets": targets, "figures": rows, "machine": machine}))
    sys.exit(0 if all(target["met"] for target in targets.values()) else 1)


if __name__ == "__main__":
    main()
