# SPDX-License-Identifier: Apache-2.0
"""Costs of the progress exchange of three regions while idle, and when links come back: bytes, time.

The real cores of three regions in one process, without sockets: every message is encoded, counted and decoded, and
simulated time advances from deadline to deadline. A hundred thousand replicated subscriptions, over many topics or few.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from functools import partial
from typing import Any
from unittest.mock import patch

from meridian_broker.positions import ZERO, Position, Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.replication.progress import codec
from meridian_broker.replication.progress import exchange as speaking
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import OLDEST_VERSION, PROTOCOL_VERSION, PeerMessage
from meridian_broker.wire.pulsar.frames import FrameDecoder

REGIONS = ("us-east", "us-west", "eu-central")
SUBSCRIPTIONS = 100_000
IDLE_SECONDS = 60
BYTES_PER_SECOND = 50_000
LACKING = 100
"""Topics of which one region lacks something, in the last case of each row."""
CONNECTING_BYTES = 200
"""Per link that comes back and missed nothing."""
LACKING_BYTES = 10_000
"""Per topic of which a region lacks something, over its two links; each topic has ten subscriptions."""
FOUND_SECONDS = 15
RECORD = b'{"name":"s","replicated":true}'


class Host:
    """A region whose subscriptions are all at the same position in all regions, and stay there."""

    def __init__(self, region: str, held: dict[str, dict[str, Progress]]) -> None:
        self.region = region
        self.held = held

    def is_served(self, topic: str) -> bool:  # noqa: ARG002
        return True

    def owns(self, topic: str) -> bool:  # noqa: ARG002
        return True

    def open_soon(self, topic: str) -> None:
        """Open all topics."""

    def progress(self, topic: str, subscription: str) -> Progress | None:
        return self.held.get(topic, {}).get(subscription)

    def record(self, topic: str, subscription: str) -> bytes | None:
        return RECORD if subscription in self.held.get(topic, {}) else None

    def incarnation(self, topic: str) -> str:  # noqa: ARG002
        return ""

    def open_topics(self) -> Collection[str]:
        return self.held.keys()

    def is_replicated(self, topic: str) -> bool:
        return topic in self.held

    def replicated_in(self, topic: str) -> Iterable[str]:
        return self.held.get(topic, {})

    def regions_of(self, topic: str) -> frozenset[str]:  # noqa: ARG002
        return frozenset(REGIONS)

    def when_durable(self, topic: str, done: Callable[[None], None]) -> None:  # noqa: ARG002
        done(None)

    def merge(
        self,
        topic: str,
        subscription: str,
        incarnation: str,  # noqa: ARG002
        delta: Progress,
        record: bytes | None,  # noqa: ARG002
        done: Callable[[str | None], None],
    ) -> None:
        self.held[topic][subscription].join(delta)
        done(None)


class World:
    """Three exchanges, with links that deliver at once."""

    def __init__(self, topics: int, subscriptions: int) -> None:
        self.now_ms = 1000
        self.bytes = self.messages = 0
        self._due: deque[Callable[[], None]] = deque()
        held: dict[str, dict[str, Progress]] = {}
        for number in range(subscriptions):
            progress = Progress()
            for region in REGIONS:
                progress.ack(ZERO, region, EARLIEST, Position(750_000_000_000_123, number))
            topic = f"persistent://public/default/orders-of-a-shop-{number % topics}"
            held.setdefault(topic, {})[f"subscription-{number}"] = progress
        self.hosts = {region: Host(region, {t: dict(names) for t, names in held.items()}) for region in REGIONS}
        self.exchanges = {region: ProgressExchange(host) for region, host in self.hosts.items()}
        self.spent = dict.fromkeys(REGIONS, 0.0)
        self.longest = 0.0

    def connect(self) -> None:
        for region, exchange in self.exchanges.items():
            for other in REGIONS:
                exchange.add_peer(other)
            for other in REGIONS:
                if other != region:
                    way = self._way(region, other)
                    self._timed(region, partial(exchange.connected, other, way, self.now_ms))
        self._deliver()

    def cut(self) -> None:
        for region, exchange in self.exchanges.items():
            for other in REGIONS:
                if other != region:
                    exchange.disconnected(other, self.now_ms)

    def forget(self, region: str, topics: int) -> None:
        """Make a region lack, without knowing, the last acknowledgement of this many topics, spread far apart."""
        held = self.hosts[region].held
        for topic in list(held)[:: max(1, len(held) // topics)][:topics]:
            name = next(iter(held[topic]))
            progress = Progress()
            for origin in REGIONS[1:]:
                progress.ack(ZERO, origin, EARLIEST, Position(750_000_000_000_123, int(name.rpartition("-")[2])))
            held[topic][name] = progress
            self.exchanges[region]._context.digests.mark(topic, name)

    def _way(self, source: str, target: str) -> Callable[[PeerMessage], None]:
        """A link from one region to another, and back for answers."""

        def back(message: PeerMessage) -> None:
            self._carry(message, lambda got: self.exchanges[source].received(target, got, send, self.now_ms), source)

        def send(message: PeerMessage) -> None:
            self._carry(message, lambda got: self.exchanges[target].received(source, got, back, self.now_ms), target)

        return send

    def _carry(self, message: PeerMessage, take: Callable[[Any], None], target: str) -> None:
        data = codec.encode(message)
        self.bytes += len(data)
        self.messages += 1

        def arrive() -> None:
            for kind, decoded in ((one[0], one[1]) for one in FrameDecoder().feed(data)):
                self._timed(target, lambda k=kind, d=decoded: take(codec.decode(k, d)))  # type: ignore[misc]

        self._due.append(arrive)

    def _timed(self, region: str, work: Callable[[], None]) -> None:
        begin = time.process_time()
        work()
        spent = time.process_time() - begin
        self.spent[region] += spent
        self.longest = max(self.longest, spent)

    def _deliver(self) -> None:
        while self._due:
            self._due.popleft()()

    def run(self, seconds: float) -> None:
        until = self.now_ms + round(seconds * 1000)
        while True:
            deadlines = {r: at for r, e in self.exchanges.items() if (at := e.next_deadline()) is not None}
            following = min(deadlines.values(), default=until + 1)
            if following > until:
                self.now_ms = until
                return
            self.now_ms = max(self.now_ms, following)
            for region, exchange in self.exchanges.items():
                if deadlines.get(region, until + 1) <= self.now_ms:
                    self._timed(region, lambda e=exchange: e.tick(self.now_ms))  # type: ignore[misc]
            self._deliver()

    def start_counting(self) -> None:
        self.bytes = self.messages = 0
        self.spent = dict.fromkeys(REGIONS, 0.0)
        self.longest = 0.0


def measure(topics: int, subscriptions: int) -> dict[str, Any]:
    listing = connecting(World(topics, subscriptions), version=OLDEST_VERSION, seconds=4.9)
    world = World(topics, subscriptions)
    row: dict[str, float] = {
        "topics": topics,
        "subscriptions": subscriptions,
        "listing_bytes": listing,
        "connecting_bytes": connecting(world),
    }
    world.start_counting()
    world.run(IDLE_SECONDS)
    row |= {
        "idle_bytes_per_second": round(world.bytes / IDLE_SECONDS),
        "idle_messages_per_second": round(world.messages / IDLE_SECONDS, 2),
        "idle_cpu_ms_per_second": round(1000 * max(world.spent.values()) / IDLE_SECONDS, 2),
        "longest_step_ms": round(1000 * world.longest, 1),
    }
    world.cut()
    row["connecting_again_bytes"] = connecting(world, seconds=4)
    world.cut()
    world.forget("us-west", LACKING)
    row["connecting_lacking_bytes"] = connecting(world, seconds=20)
    assert world.hosts["us-west"].held == world.hosts["us-east"].held, "it was healed"
    return row


class Stored:
    """How far a region has an absent region's entries: at first, for all topics, as far as the others."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.ends = dict.fromkeys(topics, Position(750_000_000_000_123, 1000))
        self.found: set[str] = set()

    def open_topics(self) -> Set[str]:
        return self.ends.keys()

    def end(self, topic: str, origin: str) -> Position:
        return self.ends[topic] if origin == "us-east" else EARLIEST

    def more_elsewhere(self, topic: str) -> None:
        self.found.add(topic)


def missing(topics: int) -> dict[str, Any]:
    """Two regions while the third is away, where one has one more of its entries, of one topic."""
    world = World(topics, topics)
    stored = {region: Stored(host.held) for region, host in world.hosts.items()}
    for region, host in world.hosts.items():
        world.exchanges[region] = speaking.ProgressExchange(host, ends=stored[region])
    world.connect()
    world.run(20)
    world.start_counting()
    for second in range(IDLE_SECONDS):
        if second == IDLE_SECONDS // 2:
            *_, topic = stored["us-west"].ends
            stored["us-west"].ends[topic] = Position(750_000_000_000_123, 1001)
        if not stored["eu-central"].found:
            took = second - IDLE_SECONDS // 2
        for region in REGIONS[1:]:
            exchange = world.exchanges[region]
            world._timed(region, lambda e=exchange: e.compare_ends({"us-east"}, world.now_ms))  # type: ignore[misc]
        world.run(1)
    assert stored["eu-central"].found == {topic}
    return {
        "topics": topics,
        "missing_found_seconds": took,
        "missing_bytes_per_second": round(world.bytes / IDLE_SECONDS),
        "missing_longest_step_ms": round(1000 * world.longest, 1),
    }


def connecting(world: World, *, version: int = PROTOCOL_VERSION, seconds: float = 20) -> int:
    """Bytes on all six links, idle rounds included, in the first ``seconds`` after they came up."""
    with patch.object(speaking, "PROTOCOL_VERSION", version):
        world.start_counting()
        world.connect()
        world.run(seconds)
    return world.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the subscriptions")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    subscriptions = SUBSCRIPTIONS // 10 if options.quick else SUBSCRIPTIONS
    rows, targets = [], {}
    print(
        f"{'topics':>8}{'subscriptions':>15}{'listing':>12}{'connecting':>12}{'again':>8}"
        f"{f'lacking {LACKING}':>13}{'idle B/s':>10}{'target':>11}"
        f"{'msg/s':>8}{'CPU ms/s':>10}{'longest ms':>12}"
    )
    for topics in (subscriptions // 1000, subscriptions // 10, subscriptions):
        row = measure(topics, subscriptions)
        rows.append(row)
        got = row["idle_bytes_per_second"]
        name = f"{subscriptions:,} idle subscriptions of {topics:,} topics, 3 regions, bytes per second in all"
        bounds = {"again": 6 * CONNECTING_BYTES}
        if subscriptions <= 10 * topics:
            bounds["lacking"] = 6 * CONNECTING_BYTES + LACKING * LACKING_BYTES
        for case, bound in bounds.items():
            took = row[f"connecting_{case}_bytes"]
            targets[f"links up again, {case}, {topics:,} topics, bytes"] = {
                "target": bound,
                "measured": took,
                "met": took <= bound,
            }
        targets[name] = {"target": BYTES_PER_SECOND, "measured": got, "met": got <= BYTES_PER_SECOND}
        print(
            f"{topics:>8,}{subscriptions:>15,}{row['listing_bytes']:>12,}{row['connecting_bytes']:>12,}"
            f"{row['connecting_again_bytes']:>8,}{row['connecting_lacking_bytes']:>13,}"
            f"{got:>10,}{f'<= {BYTES_PER_SECOND:,}':>11}"
            f"{row['idle_messages_per_second']:>8}{row['idle_cpu_ms_per_second']:>10}{row['longest_step_ms']:>12}",
            flush=True,
        )
    absent = missing(subscriptions // 10)
    rows.append(absent)
    name = f"an entry of a region that is away, of one of {absent['topics']:,} topics, found, seconds"
    got = absent["missing_found_seconds"]
    targets[name] = {"target": FOUND_SECONDS, "measured": got, "met": got <= FOUND_SECONDS}
    print(
        f"\n{name}: {got} (<= {FOUND_SECONDS}); comparing costs {absent['missing_bytes_per_second']:,} B/s in all, "
        f"a step at most {absent['missing_longest_step_ms']} ms"
    )
    if options.json:
        machine = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"targets": targets, "figures": rows, "machine": machine}))
    sys.exit(0 if all(target["met"] for target in targets.values()) else 1)


if __name__ == "__main__":
    main()
