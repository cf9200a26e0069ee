# SPDX-License-Identifier: Apache-2.0
"""Random stories of regions that synchronize metadata: writes, delays, repeats, crashes, wrong clocks, restores.

One seed is one story. ``PYTHONPATH=tests python -m support.worlds.sync_seeds FIRST COUNT`` runs some.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Contended, Invalid
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, Check, Delete, MetadataUnavailable, Put
from meridian_broker.metadata.sync.stamped import BEGINNING
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import parse
from support.worlds.sync_store import Broken, StoreInMemory
from support.worlds.sync_world import SyncWorld, Task, tenant_role

PARTITIONED = keys.partitioned_topic(parse("non-persistent://t/n/p"))
NAMES = ("eu", "us", "ap", "af")
PATHS = (
    keys.tenant("t"),
    tenant_role("t", "r"),
    tenant_role("t", "s"),
    keys.namespace("t/n"),
    keys.namespace("t/n") + "/policies/x",
)
OF_TOPIC = keys.topic_policies(parse("persistent://t/n/x")) + "/message_ttl_in_seconds"
"""A path deleted with its topic; each region carries out the deletion itself when it hears of it."""
STEPS = 400
RETENTION_MS = 3_600_000


class SyncSeed:
    """One story."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        names = NAMES[: self.random.choice((2, 3, 3, 4))]
        self.world = SyncWorld(names, brokers=self.random.choice((1, 2)))
        self.copies: dict[str, StoreInMemory] = {}
        self._writes = 0
        self._most = 0
        """The greatest number of partitions that a write set successfully."""
        self._deletions: list[Stamp] = []
        """Stamps of the topic's deletions."""
        self._was_restored = False
        self._longest = self.random.choice((1000, 10_000))
        self._cuts = self.random.choice((0.0, 0.1, 0.3))
        has_wrong_clock = self.random.random() < 0.2
        has_restores = self.random.random() < 0.3
        has_absences = len(names) > 2 and not has_restores and self.random.random() < 0.4
        self._has_checks = has_restores or has_absences or self.random.random() < 0.3
        """Whether regions compare their metadata now and then. Without this, events alone must suffice."""
        self._actions: list[tuple[int, Callable[[str], None]]] = [
            (60, self._advance),
            (9, self._write),
            (9, self._deliver),
            (3, self._deliver_several),
            (5, self._publish),
            (3, self._mark),
            (2, self._repeat),
            (2, self._forget),
            (1, self._release),
            (1, self._skew),
            (1, self._restart),
            (1, self._restamp),
            (1, self._settle),
            (2, self._write_of_topic),
            (1, self._delete_topic),
            (2, self._grow),
        ]
        if has_wrong_clock:
            self._actions.append((1, self._wrong_clock))
        if self._has_checks:
            self._actions.append((1, self._catch_up))
        if has_absences:
            self.world.retention_ms = RETENTION_MS
            self._actions += [(2, self._absence)]
        if has_restores:
            self._actions += [(1, self._copy), (1, self._restore)]

    def run(self) -> None:
        """:raises Broken: a promise was broken."""
        weights = [weight for weight, _ in self._actions]
        actions = [action for _, action in self._actions]
        for action in self.random.choices(actions, weights, k=STEPS):
            if self.random.random() < 0.3:
                self.world.now_ms += self.random.choice((0, 0, 1, 1, 20, 1000, self._longest))
            action(self.random.choice(self.world.names))
        self._finish_all()
        self.world.quiet(has_checks=self._has_checks)
        self.world.check_agreement(was_restored=self._was_restored)
        if not self._was_restored:
            self.world.check_losses()
        # Partitions that a region made while no other waited for it are listed as conflicts, like all its writes then.
        is_listed = any(path == PARTITIONED for one in self.world.regions.values() for path, _ in one.store.set_aside)
        for name in self.world.names if not self._was_restored and not is_listed else ():
            has = self.world.values(name).get(PARTITIONED, {}).get("partitions", 0)
            if has < self._most:
                raise Broken(f"in the end, {name} has {has} partitions, not {self._most}")

    def _broker(self, name: str) -> int:
        return self.random.randrange(len(self.world.regions[name].brokers))

    def _advance(self, name: str) -> None:
        if self.world.tasks:
            for _ in range(self.random.choice((1, 1, 3, 10))):
                if self.world.tasks:
                    self._step(self.random.choice(self.world.tasks))

    def _step(self, task: Task) -> None:
        try:
            self.world.advance(task)
        except (Contended, Invalid, MetadataUnavailable):
            self.world.tasks.remove(task)

    def _finish_all(self) -> None:
        while self.world.tasks:
            self._step(self.random.choice(self.world.tasks))

    def _write(self, name: str) -> None:
        values: dict[str, object] = {}
        for path in self.random.sample(PATHS, self.random.choice((1, 1, 2, 3))):
            self._writes += 1
            values[path] = None if self.random.random() < 0.35 else {"n": self._writes}
        self.world.begin(name, self.world.write(name, values, self._broker(name)), "write")

    def _write_of_topic(self, name: str) -> None:
        self._writes += 1
        self.world.begin(name, self.world.write(name, {OF_TOPIC: self._writes}, self._broker(name)), "write")

    def _grow(self, name: str) -> None:
        async def grow() -> None:
            record = await catalog.get(PARTITIONED)
            before = 0 if record is None else decode(PARTITIONED, record.value)[0]["partitions"]
            check = Check(PARTITIONED, ABSENT if record is None else record.version)
            if await catalog.transact([check], [Put(PARTITIONED, encode({"partitions": before + more}))]):
                self._most = max(self._most, before + more)

        catalog = self.world.regions[name].brokers[self._broker(name)].catalog
        more = self.random.choice((1, 2, 5))
        self.world.begin(name, grow(), "grow")

    def _delete_topic(self, name: str) -> None:
        """A region deletes the topic, or hears that another region did, perhaps long ago."""
        one = self.world.regions[name].brokers[self._broker(name)]
        if not self._deletions or self.random.random() < 0.3:
            self._deletions.append(one.clock.next())
        stamp = self.random.choice(self._deletions)
        self.world.begin(name, one.catalog.transact([], [Delete(OF_TOPIC, stamp)]), "delete a topic's policies")

    def _publish(self, name: str) -> None:
        self.world.begin(name, self.world.publish(name, self._broker(name)), "publish")

    def _mark(self, name: str) -> None:
        self.world.begin(name, self.world.mark(name, self._broker(name)), "mark")

    def _deliver(self, name: str) -> None:
        source = self.random.choice(self.world.names)
        some = self.world.deliverable(name, source)
        if some:
            index = self.random.choice(some)
            self.world.begin(name, self.world.deliver(name, source, index, self._broker(name)), "deliver")

    def _deliver_several(self, name: str) -> None:
        """The next messages of some regions, in an order that keeps each region's own."""
        world, some = self.world, list[tuple[str, int]]()
        for source in self.random.sample(world.names, self.random.randint(1, len(world.names))):
            waiting = world.regions[name].readers[source].waiting(len(world.topic[source]))
            some += [(source, index) for index in waiting[: self.random.choice((1, 2, 5))]]
        if some:
            self.world.begin(name, self.world.deliver_all(name, some, self._broker(name)), "deliver several")

    def _repeat(self, name: str) -> None:
        source = self.random.choice(self.world.names)
        delivered = sorted(self.world.regions[name].readers[source].delivered)
        if delivered:
            index = self.random.choice(delivered)
            self.world.begin(name, self.world.deliver(name, source, index, self._broker(name)), "repeat")

    def _forget(self, name: str) -> None:
        self.world.begin(name, self.world.regions[name].brokers[self._broker(name)].applier.forget(), "forget")

    def _release(self, name: str) -> None:
        self.world.begin(name, self.world.regions[name].brokers[self._broker(name)].applier.release(), "release")

    def _catch_up(self, name: str) -> None:
        peer = self.random.choice([other for other in self.world.names if other != name])
        self.world.begin(name, self.world.catch_up(name, peer, self._broker(name)), "catch up")

    def _restamp(self, name: str) -> None:
        if self.random.random() < 0.3:
            path = self.random.choice(PATHS)
            self.world.begin(
                name, self.world.regions[name].brokers[self._broker(name)].catalog.restamp(path), "restamp"
            )

    def _settle(self, name: str) -> None:
        """Deliver everything twice, so that horizons advance, except over cut links."""
        world = self.world
        cut = {pair for pair in product(world.names, world.names) if self.random.random() < self._cuts}
        for _ in range(2):
            for one in world.names:
                self._finish(one, world.mark(one))
            for one, source in sorted(set(product(world.names, world.names)) - cut):
                for index in world.regions[one].readers[source].waiting(len(world.topic[source])):
                    self._finish(one, world.deliver(one, source, index))
        for one in self.random.sample(world.names, self.random.randint(1, len(world.names))):
            self._finish(one, world.regions[one].brokers[0].applier.forget())

    def _finish(self, name: str, running: Coroutine[Any, Any, Any]) -> None:
        with suppress(Contended):
            self.world.finish(name, running)

    def _absence(self, name: str) -> None:
        """One region and the others do not hear each other, for less or more time than tombstones wait for it."""
        rest = [one for one in self.world.names if one != name]
        ms = self.random.choice((RETENTION_MS // 4, RETENTION_MS, 3 * RETENTION_MS))
        with suppress(Contended):
            self.world.stay(ms, rest, *self.random.choice(([], [[name]])), compares=True)
        for one in rest:
            self._finish(one, self.world.regions[one].brokers[0].applier.forget())

    def _skew(self, name: str) -> None:
        self.world.regions[name].skew_ms = self.random.choice((0, 0, 5, 3000, -3000))

    def _wrong_clock(self, name: str) -> None:
        self.world.regions[name].skew_ms = self.random.choice((0, 15_000, 3_000_000))

    def _restart(self, name: str) -> None:
        self.world.crash(name)

    def _copy(self, name: str) -> None:
        if self.world.horizon(name) > BEGINNING:  # an earlier copy would keep what was deleted since
            self.copies[name] = self.world.regions[name].store.copy()

    def _restore(self, name: str) -> None:
        if name in self.copies:
            self._was_restored = True
            self.world.restore(name, self.copies[name])


def main(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            SyncSeed(seed).run()
        except Exception as error:
            print(f"seed {seed}: {error!r}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
