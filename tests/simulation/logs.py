# SPDX-License-Identifier: Apache-2.0
"""The entries in the regions' logs, and which message each of them is. Part of ``model.Model``.

Each entry is read once from the durable ledgers themselves, and remembered after it is trimmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.entry import MARKER, unpack
from meridian_broker.positions.position import Origin, Position

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from simulation.stage import Region, Stage

Entry = tuple[Origin | None, bytes, int]
"""Origin (None: a marker), payload, messages."""


class Logs:
    """See the module's text."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._entries: dict[tuple[str, int], list[Entry]] = {}
        self.payloads: dict[Origin, bytes] = {}
        self.published: dict[Origin, int] = {}

    def ledger(self, home: Region, ledger: int) -> list[Entry]:
        """Each durable entry of a ledger."""
        stored = home.volume.disk.ledgers.get(ledger)
        if stored is None:
            return []
        known = self._entries.setdefault((home.name, ledger), [])
        if len(known) > len(stored.entries):
            del known[len(stored.entries) :]
        for number in range(len(known), len(stored.entries)):
            known.append(self.look(home.name, Position(ledger, number), stored.entries[number]))
        return known

    def look(self, region: str, position: Position, entry: bytes) -> Entry:
        """Record what an entry is, wherever it was found."""
        header = unpack(entry)
        payload = entry[entry.rfind(b"#") :]
        if header.flags & MARKER:
            return None, payload, header.messages
        origin = (
            Origin(region, *position)
            if header.region is None or header.origin is None
            else Origin(header.region, *header.origin)
        )
        self.published.setdefault(origin, header.publish_time_ms)
        before = self.payloads.setdefault(origin, payload)
        if before != payload:
            self._violate("one origin, two payloads", f"{origin} is {before!r}, in {region} {payload!r}")
        return origin, payload, header.messages

    def once_at(self, home: Region, position: Position) -> tuple[Origin | None, int]:
        """The entry at a position, even if trimmed since, and its number of messages."""
        entries = self.ledger(home, position.ledger) or self._entries.get((home.name, position.ledger), [])
        if not 0 <= position.entry < len(entries):
            return None, 0
        origin, _, messages = entries[position.entry]
        return origin, messages

    def was_durable(self, home: Region, position: Position) -> bool:
        """Whether the volume holds the entry, or held it when its ledger was deleted.

        A broker that was suspended may send a receipt after the next owner has trimmed the entry.
        """
        if position.ledger in home.volume.disk.ledgers:
            return home.volume.holds(*position)
        return position.entry < len(self._entries.get((home.name, position.ledger), ()))

    def of(self, home: Region, topic: str) -> list[tuple[Position, Origin, int]]:
        """Everything stored of a topic except markers and given-up entries: position, origin, messages."""
        broker = home.broker_of(topic)
        return self.of_topic(home, broker.topic(topic) if broker is not None else None)

    def of_topic(self, home: Region, opened: TopicContext | None) -> list[tuple[Position, Origin, int]]:
        """The same for a topic as a broker has it open."""
        found = []
        for ledger, count, _ in opened.log.counts() if opened is not None else ():
            for number, (origin, _, messages) in enumerate(self.ledger(home, ledger)[:count]):
                position = Position(ledger, number)
                if origin is not None and opened is not None and position not in opened.log.damage.lost:
                    found.append((position, origin, messages))
        return found

    def lost(self, home: Region, topic: str) -> set[Origin]:
        """Entries that the disk damaged and that no region had: they were given up."""
        broker = home.broker_of(topic)
        opened = broker.topic(topic) if broker is not None else None
        places = set[Position]() if opened is None else opened.log.damage.lost
        return {origin for place in places if (origin := self.origin_at(home, place)) is not None}

    def nowhere(self, world: Stage, topic: str) -> frozenset[Origin]:
        """Entries published in a topic that are on no region's disk any more."""
        ledgers = [place for place, of in world.topic_of_ledger.items() if of == topic]
        stored = {one for region, ledger in ledgers for one, _, _ in self.ledger(world.regions[region], ledger)}
        made = set(ledgers)
        return frozenset(one for one in self.published.keys() - stored if (one.region, one.ledger) in made)

    def origin_at(self, home: Region, position: Position) -> Origin | None:
        """The entry at a position."""
        entries = self.ledger(home, position.ledger)
        return entries[position.entry][0] if 0 <= position.entry < len(entries) else None

    def forget(self, region: str) -> None:
        """The topic's ledgers have changed."""
        for key in [key for key in self._entries if key[0] == region]:
            del self._entries[key]
