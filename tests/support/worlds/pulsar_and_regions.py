# SPDX-License-Identifier: Apache-2.0
"""Two regions of Meridian, and messages that an Apache Pulsar region sends to each of them separately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meridian_broker.ledgers.entry import unpack
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import floors, rewinding
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.subscriptions.administration import NoClient
from support.worlds.from_pulsar import APACHE, entered, sent
from support.worlds.topic_of_one_region import BEGAN_MS, Region

SUB = "sub"


class _Link:
    """Sends changes of one region to the other, once they are durable."""

    def __init__(self, world: Regions, region: str) -> None:
        self._world, self._region = world, region

    def local_change(self, _topic: str, name: str, delta: Progress, durable: Any, **_: Any) -> None:
        encoded = delta.encode()
        durable(lambda error: self._world.tell(self._region, name, encoded) if error is None else None)

    def send_pending(self) -> None:
        pass

    def opened(self, _topic: str) -> None:
        pass


class Regions:
    """See the module's text. Acknowledgements of one region reach the other at once, unless ``is_cut``."""

    def __init__(self, *names: str, ledger_entries: int = 5) -> None:
        self.all = {name: Region(name=name, ledger_entries=ledger_entries) for name in names}
        self.is_cut = False

    def __getitem__(self, name: str) -> Region:
        return self.all[name]

    async def start(self, name: str) -> None:
        one = self.all[name]
        await one.start()
        await one.topic.pulsar.open()
        one.topic.regions = lambda: frozenset(self.all)
        one.topic.exchange = _Link(self, name)  # type: ignore[assignment]
        one.topic.begin()

    async def begin(self) -> None:
        for name in self.all:
            await self.start(name)
        for one in self.all.values():
            one.topic.subscribing.create_subscription(SUB, EARLIEST, replicated=True)
            await one.settle()
        await self.compare()

    async def end(self) -> None:
        for one in self.all.values():
            await one.kill()

    def tell(self, sender: str, name: str, encoded: bytes) -> None:
        for region, one in self.all.items():
            if region != sender and not self.is_cut and (found := one.topic.subscriptions.get(name)) is not None:
                rewinding.merge(found.cursor, Progress.decode(encoded), lambda _: None)

    async def compare(self) -> None:
        """Give each region what it lacks, as digests do."""
        for name, one in self.all.items():
            self.tell(name, SUB, one.topic.subscriptions[SUB].cursor.progress.encode())
            await self.settle()

    async def settle(self) -> None:
        for one in self.all.values():
            await one.settle()

    async def look_after(self) -> None:
        """Report and raise floors, as every region does periodically."""
        for _ in range(2):
            for one in self.all.values():
                await floors.look_after(one.topic.subscriptions[SUB].cursor)
                await self.settle()

    # -- one region --------------------------------------------------------------------------------------------------

    async def bring(self, name: str, sources: Iterable[Position], **fields: Any) -> list[tuple[Any, ...]]:
        """Pulsar connects to a region and sends messages from these positions. Returns the answers."""
        one = self.all[name]
        producer, port = await entered(one)
        for number, source in enumerate(sources):
            one.topic.publish_foreign(producer, sent(number, str(source), **fields))
        await self.settle()
        return port.answers

    async def stored(self, name: str) -> dict[Position, Position]:
        """Pulsar's messages in a region: source -> position."""
        log, found, at = self.all[name].topic.log, dict[Position, Position](), EARLIEST
        while some := await log.read_after(at, 1000, 1 << 20):
            for at, entry in some:
                header = unpack(entry)
                if header.region == APACHE and header.origin is not None:
                    assert header.origin not in found, "stored twice"
                    found[header.origin] = at
        return found

    def progress(self, name: str) -> Progress:
        return self.all[name].topic.subscriptions[SUB].cursor.progress

    def owes(self, name: str, source: Position) -> bool:
        return not self.progress(name).is_acked(APACHE, source)

    async def acknowledge(self, name: str, position: Position, *, is_cumulative: bool = False) -> None:
        one = self.all[name].topic.subscriptions[SUB]
        nobody = Consumer(one, NoClient(), 0, "", 0, BEGAN_MS, None, None, one.cursor.progress.epoch)
        if is_cumulative:
            one.acknowledge_cumulative(nobody, position)
        else:
            one.acknowledge(nobody, [position])
        await self.settle()
