# SPDX-License-Identifier: Apache-2.0
"""Synthetic worlds for the verifier's tests: three regions that replicate one topic, two subscriptions, known faults.

A world is built by simulation (publish, replicate, roll over, ack, drop, trim), so a world without a fault is a state
that a correct system can be in, lag included. A fault is then put into what the regions *report*, never into history.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from meridian_verifier.align.completeness import completeness
from meridian_verifier.align.containment import missing_acks
from meridian_verifier.align.facts import EARLIEST, Cursor, Link, Place, RegionState, TopicState, World
from meridian_verifier.align.findings import Finding, Flow, Strip
from meridian_verifier.align.gather import gather
from meridian_verifier.align.loss import losses
from meridian_verifier.align.pulsar import beside_pulsar
from meridian_verifier.align.rewinds import owed_elsewhere
from meridian_verifier.align.strips import strips
from meridian_verifier.source.tables import TABLES, combined

TOPIC = "persistent://public/default/flights"
REGIONS = ("us-east", "us-west", "eu-central")
SUBSCRIPTIONS = ("billing", "radar")
RANGE_TABLES = ["progress", "ranges"]


@dataclass(eq=False)
class Entry:
    """An entry as its origin stored it."""

    origin: str
    place: Place
    prev: Place
    messages: int
    checksum: int
    publish_ms: int
    marker: bool = False
    replicate_to: tuple[str, ...] | None = None

    def goes_to(self, region: str) -> bool:
        return region == self.origin or (not self.marker and (self.replicate_to is None or region in self.replicate_to))


@dataclass(eq=False)
class Copy:
    """An entry in a region's log."""

    entry: Entry
    place: Place
    checksum: int


Acks = dict[Entry, int]
"""Acked bits per entry; a bit for every message = the whole entry."""


def whole(entry: Entry) -> int:
    return (1 << entry.messages) - 1


@dataclass
class Region:
    """What one region stores and reports."""

    name: str
    log: list[Copy] = field(default_factory=list)
    next_place: Place = EARLIEST
    last_own: Place = EARLIEST
    last_origin: dict[str, Place] = field(default_factory=dict)
    earlier_last: dict[str, Place] = field(default_factory=dict)
    trimmed_to: Place = EARLIEST
    trimmed: dict[str, Place] = field(default_factory=dict)
    """Per origin, the last trimmed entry."""
    holes: dict[str, list[tuple[Place, Place]]] = field(default_factory=dict)
    """Per origin, ranges in which the region waits for entries."""
    joined: dict[str, Place] = field(default_factory=dict)
    """Per origin, the position after which the region joined the topic."""
    earlier: dict[str, Acks] = field(default_factory=dict)
    later: dict[str, Acks] = field(default_factory=dict)
    firsthand: dict[str, Acks] = field(default_factory=dict)
    dropped: dict[str, set[Entry]] = field(default_factory=dict)
    given_up: list[Entry] = field(default_factory=list)
    """Entries that an administrator accepted as lost."""
    skipped: dict[str, list[tuple[Place, Place]]] = field(default_factory=dict)
    """Per other region, what an administrator dropped from its backlog."""
    told: dict[str, dict[str, Place]] = field(default_factory=dict)
    """Per subscription in snapshot mode, the positions that the region sent to the others."""
    passed: dict[str, set[Place]] = field(default_factory=dict)
    compacted_to: Place = EARLIEST
    taken_out: dict[str, set[Place]] = field(default_factory=dict)
    """Per subscription that reads the compacted view, entries that compaction removed."""

    def append(self, entry: Entry) -> None:
        self.log.append(Copy(entry, self.next_place, entry.checksum))
        self.next_place = (self.next_place[0], self.next_place[1] + 1)
        if not entry.marker:
            self.last_origin[entry.origin] = entry.place

    def acked_or_dropped(self, subscription: str, entry: Entry) -> bool:
        return (
            entry.marker
            or self.later[subscription].get(entry, 0) == whole(entry)
            or entry in self.dropped[subscription]
        )


class Simulation:
    """The three regions and their history."""

    def __init__(
        self, seed: int, steps: int = 60, *, base: int = 1000, trim: bool = True, old_brokers: bool = False
    ) -> None:
        """
        :param base: the regions' first ledgers.
        :param trim: whether regions trim their logs.
        :param old_brokers: of the previous release, which do not report what they trimmed of each origin.
        """
        self.rng = random.Random(seed)
        self._is_old = old_brokers
        self.unchained: frozenset[str] = frozenset()
        """Origins reported to run Apache Pulsar."""
        self._trims = trim
        self.epoch = ""
        """Epoch of the newest rewind of every subscription, in every region."""
        self.regions = {name: Region(name) for name in REGIONS}
        self.own: dict[str, list[Entry]] = {name: [] for name in REGIONS}
        self._sent: dict[tuple[str, str], int] = {}
        for number, region in enumerate(self.regions.values()):
            region.next_place = (base + number, 0)
        for step in range(steps):
            self._step(step)
        for region in self.regions.values():
            region.earlier_last = dict(region.last_origin)
        for step in range(steps // 6):
            self._step(steps + step)
        self._ack()
        self._pass_and_trim()

    # -- what happens --------------------------------------------------------------------------------------------------

    def _step(self, now: int) -> None:
        rng = self.rng
        region = self.regions[rng.choice(REGIONS)]
        kind = rng.random()
        if kind < 0.45:
            self._publish(region, now)
        elif kind < 0.93:
            for _ in range(rng.randint(1, 4)):
                self._replicate(self.regions[rng.choice(REGIONS)], region)
        else:
            region.next_place = (region.next_place[0] + rng.randint(3, 9), 0)

    def _publish(self, region: Region, now: int) -> None:
        rng = self.rng
        marker = rng.random() < 0.08
        to = None
        if rng.random() < 0.15:
            to = tuple(sorted(rng.sample([one for one in REGIONS if one != region.name], rng.randint(0, 1))))
        entry = Entry(
            region.name,
            region.next_place,
            region.last_own,
            1 if marker else rng.choice((1, 1, 1, 5)),
            rng.getrandbits(32),
            1_790_000_000_000 + now,
            marker,
            to,
        )
        if not marker:
            region.last_own = entry.place
        self.own[region.name].append(entry)
        region.append(entry)

    def _replicate(self, source: Region, target: Region) -> None:
        if source is target:
            return
        at = self._sent.get((source.name, target.name), 0)
        own = self.own[source.name]
        while at < len(own):
            entry, at = own[at], at + 1
            if entry.goes_to(target.name):
                target.append(entry)
                break
        self._sent[(source.name, target.name)] = at

    def _ack(self) -> None:
        """U1 is acked before S1, U2 before S2. Each region knows part of U1 at S1, and all of U1, part of U2 at S2."""
        rng = self.rng
        for name in SUBSCRIPTIONS:
            for region in self.regions.values():
                region.earlier[name], region.later[name], region.firsthand[name] = {}, {}, {}
                region.dropped[name], region.passed[name] = set(), set()
            for region in self.regions.values():
                for copy in region.log:
                    entry = copy.entry
                    if entry.marker or rng.random() < 0.35:
                        continue
                    bits = whole(entry) if rng.random() < 0.8 else rng.randint(1, whole(entry))
                    _add(region.firsthand[name], entry, bits)
                    before = rng.random() < 0.7
                    for other in self.regions.values():
                        knows = other is region or rng.random() < 0.5
                        if before and knows:
                            _add(other.earlier[name], entry, bits)
                        if before or knows:
                            _add(other.later[name], entry, bits)
            for region in self.regions.values():
                for copy in region.log:
                    if rng.random() < 0.05 and not region.acked_or_dropped(name, copy.entry):
                        region.dropped[name].add(copy.entry)

    def _pass_and_trim(self) -> None:
        for region in self.regions.values():
            for name in SUBSCRIPTIONS:
                region.passed[name] = {copy.place for copy in region.log if region.acked_or_dropped(name, copy.entry)}
            keep = next(
                (
                    at
                    for at, copy in enumerate(region.log)
                    if any(copy.place not in region.passed[name] for name in SUBSCRIPTIONS)
                ),
                len(region.log),
            )
            if self._trims and keep and self.rng.random() < 0.5:
                self.trim(region, self.rng.randint(1, keep))

    def trim(self, region: Region, count: int) -> None:
        """Trim the first ``count`` entries of the log."""
        region.trimmed_to = region.log[count - 1].place
        for copy in region.log[:count]:
            if not copy.entry.marker:
                origin = copy.entry.origin
                region.trimmed[origin] = max(copy.entry.place, region.trimmed.get(origin, EARLIEST))
        for name in SUBSCRIPTIONS:
            region.passed[name] -= {copy.place for copy in region.log[:count]}
        del region.log[:count]

    def acknowledge_everywhere(self, region: Region, copies: Sequence[Copy]) -> None:
        """Every subscription acknowledged these in all regions, long ago."""
        for name in SUBSCRIPTIONS:
            for copy in copies:
                if not copy.entry.marker:
                    for one in self.regions.values():
                        for acks in (one.earlier[name], one.later[name], one.firsthand[name]):
                            acks[copy.entry] = whole(copy.entry)
            for one in self.regions.values():
                one.passed[name] = {copy.place for copy in one.log if one.acked_or_dropped(name, copy.entry)}
            assert {copy.place for copy in copies} <= region.passed[name]

    def new_life(self, region: Region) -> list[Entry]:
        """The region restarted and could not ask the others what it had published before: the first entry of one of
        its ledgers names no predecessor (R5). Return the entries before it; none if it has only one ledger."""
        own = [entry for entry in self.own[region.name] if not entry.marker]
        firsts = [at for at in range(1, len(own)) if own[at].place[0] != own[at - 1].place[0]]
        if not firsts:
            return []
        at = self.rng.choice(firsts)
        own[at].prev = (own[at].place[0], -1)
        return own[:at]

    def came_late(self, region: Region, entries: Sequence[Entry]) -> list[Copy]:
        """The region stores these after everything else: it fetched them from another region."""
        late = [copy for copy in region.log if copy.entry in entries]
        for copy in late:
            region.log.remove(copy)
        for copy in late:
            region.append(copy.entry)
        region.last_origin = {
            name: max((copy.entry.place for copy in region.log if copy.entry.origin == name and not copy.entry.marker),
                      default=place)
            for name, place in region.last_origin.items()
        }  # fmt: skip
        for name in SUBSCRIPTIONS:
            region.passed[name] = {copy.place for copy in region.log if region.acked_or_dropped(name, copy.entry)}
        return late

    def compact(self, region: Region, name: str) -> list[Copy]:
        """A consumer of the subscription read the region's compacted view to its end: it acknowledged the entries of
        the view and passed the rest. Nothing changes after the horizon. Return the entries of the view."""
        count = self.rng.randint(1, len(region.log))
        covered = [copy for copy in region.log[:count] if not copy.entry.marker]
        kept = [copy for copy in covered if self.rng.random() < 0.4]
        region.compacted_to = region.log[count - 1].place
        region.taken_out[name] = {copy.place for copy in covered if copy not in kept}
        for copy in kept:
            for one in self.regions.values():
                _add(one.later[name], copy.entry, whole(copy.entry))
            _add(region.firsthand[name], copy.entry, whole(copy.entry))
        for one in self.regions.values():
            acked_or_dropped = {copy.place for copy in one.log if one.acked_or_dropped(name, copy.entry)}
            one.passed[name] = acked_or_dropped | (region.taken_out[name] if one is region else set())
        return kept

    # -- what is known -------------------------------------------------------------------------------------------------

    def known(self) -> list[Entry]:
        """Entries that a region still stores, without markers."""
        found = dict.fromkeys(copy.entry for region in self.regions.values() for copy in region.log)
        return [entry for entry in found if not entry.marker]

    # -- what is said --------------------------------------------------------------------------------------------------

    def world(self, named: Sequence[str] = REGIONS) -> World:
        """What the regions report. ``named``: regions that are asked, and answer."""

        def state(region: Region, last: dict[str, Place]) -> RegionState:
            cursors = {name: Cursor(True, True, "Shared", EARLIEST, 0, self.epoch) for name in SUBSCRIPTIONS}
            links = {other: Link(True, 0, 0) for other in REGIONS if other != region.name}
            trimmed = None if self._is_old else region.trimmed
            ends = (region.trimmed_to, last, region.joined, links, cursors)
            topic = TopicState("", *ends, trimmed, region.holes, region.compacted_to, region.skipped, told=region.told)
            topic = dataclasses.replace(topic, unchained=self.unchained)
            return RegionState(region.name, "s", 0, {TOPIC: topic})

        asked = {name: self.regions[name] for name in named}
        return World(
            tuple(named),
            {name: state(region, region.earlier_last) for name, region in asked.items()},
            {name: state(region, region.last_origin) for name, region in asked.items()},
            {},
            2000,
        )

    def entries(self) -> pa.Table:
        rows = []
        for region in self.regions.values():
            for copy in region.log:
                entry = copy.entry
                rows.append(
                    {
                        "region": region.name,
                        "topic": TOPIC,
                        "ledger": copy.place[0],
                        "entry": copy.place[1],
                        "origin_region": entry.origin,
                        "origin_ledger": entry.place[0],
                        "origin_entry": entry.place[1],
                        "prev_ledger": entry.prev[0],
                        "prev_entry": entry.prev[1],
                        "checksum": copy.checksum,
                        "size": 100,
                        "messages": entry.messages,
                        "publish_ms": entry.publish_ms,
                        "stored_ms": entry.publish_ms + (0 if region.name == entry.origin else 5),
                        "key_hash": 0,
                        "marker": entry.marker,
                        "replicate_to": entry.replicate_to,
                    }
                )
        self.rng.shuffle(rows)
        return pa.Table.from_pylist(rows, TABLES["entries"])

    def ranges(self) -> pa.Table:
        rows = []
        for region in self.regions.values():
            for name in SUBSCRIPTIONS:
                head = {"region": region.name, "topic": TOPIC, "subscription": name, "epoch": ""}
                rows += [{**head, "taken": 1, "table": "progress", **row} for row in _acked(region.earlier[name])]
                rows += [{**head, "taken": 2, "table": "progress", **row} for row in _acked(region.later[name])]
                rows += [{**head, "taken": 2, "table": "acks", **row} for row in _acked(region.firsthand[name])]
                for entry in region.dropped[name]:
                    row = _range(entry.prev, entry.place, entry.origin)
                    rows.append({**head, "taken": 2, "table": "dropped", "cause": "ttl", **row})
                for table, places in (("passed", region.passed[name]), ("compacted", region.taken_out.get(name, ()))):
                    for ledger, number in places:
                        for origin in REGIONS:
                            row = _range((ledger, number - 1), (ledger, number), origin)
                            rows.append({**head, "taken": 2, "table": table, **row})
            for entry in region.given_up:
                head = {"region": region.name, "topic": TOPIC, "subscription": "", "epoch": ""}
                row = _range(entry.prev, entry.place, entry.origin)
                rows.append({**head, "taken": 2, "table": "dropped", "cause": "lost", **row})
        self.rng.shuffle(rows)
        return pa.Table.from_pylist(rows, combined(RANGE_TABLES))

    def examined(self, named: Sequence[str] = REGIONS, world: World | None = None) -> tuple[list[Finding], list[Flow]]:
        """Findings on this world, all origins together. :param world: instead of ``self.world(named)``."""
        seen = world or self.world(named)
        return examined(seen, _told_by(self.entries(), named), _told_by(self.ranges(), named))


def examined(world: World, entries: pa.Table, ranges: pa.Table) -> tuple[list[Finding], list[Flow]]:
    found: list[Finding] = []
    flows: list[Flow] = []
    for origin in REGIONS:
        evidence = gather(TOPIC, origin, world, _of(entries, origin), _of(ranges, origin))
        missing, some = completeness(evidence)
        found += [*missing, *missing_acks(evidence), *losses(evidence), *owed_elsewhere(evidence)]
        found += beside_pulsar(evidence)
        flows += some
    return found, flows


def drawn(simulation: Simulation, origin: str, name: str) -> list[Strip]:
    """Strips of one subscription along one origin."""
    entries, ranges = _of(simulation.entries(), origin), _of(simulation.ranges(), origin)
    return strips(gather(TOPIC, origin, simulation.world(), entries, ranges), [name])


def _told_by(table: pa.Table, regions: Sequence[str]) -> pa.Table:
    return table.filter(pa.compute.is_in(table["region"], pa.array(regions)))


def _of(table: pa.Table, origin: str) -> pa.Table:
    return table.filter(pa.compute.equal(table["origin_region"], origin))


def _add(acks: Acks, entry: Entry, bits: int) -> None:
    acks[entry] = acks.get(entry, 0) | bits


def _range(after: Place, upto: Place, origin: str) -> dict[str, object]:
    return {
        "origin_region": origin,
        "after_ledger": after[0],
        "after_entry": after[1],
        "upto_ledger": upto[0],
        "upto_entry": upto[1],
    }


def _acked(acks: Acks) -> Iterator[dict[str, object]]:
    for entry, bits in acks.items():
        if bits == whole(entry):
            yield {**_range(entry.prev, entry.place, entry.origin), "firsthand": True}
        elif bits:
            before = (entry.place[0], entry.place[1] - 1)
            yield {
                **_range(before, entry.place, entry.origin),
                "batch_size": entry.messages,
                "acked_bits": bits.to_bytes((entry.messages + 7) // 8, "little"),
                "firsthand": True,
            }
