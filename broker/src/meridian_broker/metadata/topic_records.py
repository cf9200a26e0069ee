# SPDX-License-Identifier: Apache-2.0
"""A region's record of a topic or partition: its ledgers, its compacted view, its last entries. Local to the region.

Encoded like the other records (``records.py``); one that has the topic's progress has a format of its own.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import (
    FORMAT,
    Json,
    created_json,
    decode,
    encode,
    mapping,
    strings,
    take,
    take_created,
    without,
)
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import EARLIEST, Position, parse_position
from meridian_broker.positions.skipped import Skipped

AT_REST: Final = 2
"""Format of a record that holds the topic's progress. A broker that does not look for it there must not open the topic:
it would open it without its subscriptions."""


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger of a topic, with the state at its start, so that it can be indexed without the earlier ones."""

    ledger_id: int
    entries: int = 0
    """Durable entries; known once it is sealed."""
    size: int = 0
    """The entries' bytes; known once it is sealed."""
    sealed_ms: int = 0
    """When it was sealed, in milliseconds since 1970; 0 while it is being written."""
    own_before: Position = EARLIEST
    """The last own entry before its first one (R3)."""
    origins_before: Mapping[str, Position] = field(default_factory=dict)
    """For each other region, the last origin stored before its first entry (R4)."""
    is_joined: bool = True
    """False: own entries after ``own_before`` may have been lost here and still be stored in another region (R5)."""
    latest_ms: int = 0
    """The latest publish time of its entries; known once it is sealed, 0 if an earlier version sealed it."""

    def to_json(self) -> Json:
        return {
            "id": self.ledger_id,
            "entries": self.entries,
            "size": self.size,
            "sealedMs": self.sealed_ms,
            "ownBefore": str(self.own_before),
            "originsBefore": {region: str(position) for region, position in self.origins_before.items()},
            **({} if self.is_joined else {"isJoined": False}),
            **({"latestMs": self.latest_ms} if self.latest_ms else {}),
        }

    @classmethod
    def from_json(cls, source: Any) -> LedgerRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a ledger")
        numbers = (take(data, key, int, 0) for key in ("id", "entries", "size", "sealedMs", "latestMs"))
        ledger_id, entries, size, sealed, latest = numbers
        own_before, origins_before = _position(data, "ownBefore"), positions(data, "originsBefore")
        is_joined = take(data, "isJoined", bool, True)
        return cls(ledger_id, entries, size, sealed, own_before, origins_before, is_joined, latest)


@dataclass(frozen=True, slots=True)
class CompactedRecord:
    """The compacted view of a topic."""

    ledger_id: int
    """The ledger it is kept in."""
    horizon: Position
    """The last entry of the log that the view covers."""
    first: int = 0
    """The first entry of that ledger that belongs to the view."""
    entries: int = 0
    """How many entries the view has."""
    size: int = 0
    """Bytes of the whole ledger."""

    def to_json(self) -> Json:
        return {
            "id": self.ledger_id,
            "horizon": str(self.horizon),
            "first": self.first,
            "entries": self.entries,
            "size": self.size,
        }

    @classmethod
    def from_json(cls, source: Any) -> CompactedRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a compacted view")
        ledger_id, first, entries, size = (take(data, key, int, 0) for key in ("id", "first", "entries", "size"))
        return cls(ledger_id, _position(data, "horizon"), first, entries, size)


@dataclass(frozen=True, slots=True)
class MendRecord:
    """Consecutive damaged entries of one ledger."""

    first: Position
    count: int
    copies: Position | None
    """Position of the first entry's copy, which the others follow; None: they are lost, and an operator accepted it."""

    def to_json(self) -> Json:
        return {
            "first": str(self.first),
            "count": self.count,
            "copies": None if self.copies is None else str(self.copies),
        }

    @classmethod
    def from_json(cls, source: Any) -> MendRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a damaged range")
        copies = None if data.get("copies") is None else _position(data, "copies")
        return cls(_position(data, "first"), take(data, "count", int, 1), copies)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The facts this region needs to open a topic or partition."""

    incarnation: str = ""
    """The stamp of its last deletion; empty when it was never deleted (R8)."""
    properties: Mapping[str, str] = field(default_factory=dict)
    ledgers: tuple[LedgerRecord, ...] = ()
    """Oldest first; only the last may be open."""
    progress_ledgers: tuple[int, ...] = ()
    """Ledgers with the progress of its subscriptions, oldest first."""
    progress_snapshot: tuple[bytes, ...] | None = None
    """Records of its progress log that precede these ledgers; None: the ledgers hold all of them
    (``topics/journal/progress_log.py``)."""
    last_own: Position = EARLIEST
    """The last own entry, as of the last write of this record (R3)."""
    last_origins: Mapping[str, Position] = field(default_factory=dict)
    """The last stored origin per other region, as of the last write of this record (R4)."""
    terminated: Position | None = None
    """The last entry of a terminated topic."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    stamp: Stamp | None = None
    topic_epoch: int | None = None
    """Counts the exclusive producers that the topic has had; None: it had none."""
    owner: int = 0
    """The epoch of the broker that last opened the topic, which is its ledgers' fence (R10)."""
    holes: Mapping[str, tuple[tuple[Position, Position], ...]] = field(default_factory=dict)
    """Per origin, the ranges in which entries may still have to be fetched from other regions (R5, R6)."""
    joining: bool = False
    """The copy here may lack entries that the other regions have (R21)."""
    joined: Mapping[str, Position] = field(default_factory=dict)
    """Per origin, the join point: the copy here never contained entries up to it (R21)."""
    compacted: CompactedRecord | None = None
    """The compacted view, if there is one."""
    obsolete_ledgers: tuple[int, ...] = ()
    """Ledgers that compaction may have begun or left behind: they are deleted when the topic is opened."""
    newest_ledger: int = -1
    """The last ledger that was ever in ``ledgers``: a ledger on the volume with a greater id is newer than this record.
    """
    mends: tuple[MendRecord, ...] = ()
    """Entries that the disk damaged and that were replaced, or given up (``ledgers/damage.py``)."""
    deleting: str | None = None
    """Its deletion has begun: the stamp, or empty if it is not known yet. The rest is removed later, at the latest when
    the topic is next opened."""
    created: Stamp | None = None
    """Stamp of its creation in any region; None for partitions, and if an earlier version created it."""
    skipped: Mapping[str, Skipped] = field(default_factory=dict)
    """Per other region, the part of its backlog that an operator skipped."""
    skipped_before: Mapping[str, tuple[tuple[Position, Position], ...]] = field(default_factory=dict)
    """Per other region, earlier skipped ranges that the region has since passed: own entries ``(after, upto]``, the
    newest ones. They explain to a verifier what the region lacks."""
    terminated_origins: Mapping[str, Position] = field(default_factory=dict)
    """Per other region, the last origin that was stored when the topic was terminated; none if an earlier version
    terminated it."""

    def to_json(self) -> Json:
        return {
            "incarnation": self.incarnation,
            "properties": dict(self.properties),
            "ledgers": [ledger.to_json() for ledger in self.ledgers],
            "progressLedgers": list(self.progress_ledgers),
            **_snapshot_json(self.progress_snapshot),
            "lastOwn": str(self.last_own),
            "lastOrigins": _places_json(self.last_origins),
            "terminated": None if self.terminated is None else str(self.terminated),
            **({"terminatedOrigins": _places_json(self.terminated_origins)} if self.terminated_origins else {}),
            "topicEpoch": self.topic_epoch,
            "owner": self.owner,
            **({"holes": _ranges_json(self.holes)} if self.holes else {}),
            **({"joining": True} if self.joining else {}),
            **({"joined": _places_json(self.joined)} if self.joined else {}),
            "compacted": None if self.compacted is None else self.compacted.to_json(),
            "compactionScraps": list(self.obsolete_ledgers),
            **({"newestLedger": self.newest_ledger} if self.newest_ledger >= 0 else {}),
            **({"mends": [mend.to_json() for mend in self.mends]} if self.mends else {}),
            **({"skipped": {region: [*map(str, one)] for region, one in self.skipped.items()}} if self.skipped else {}),
            **({"skippedBefore": _ranges_json(self.skipped_before)} if self.skipped_before else {}),
            **({} if self.deleting is None else {"deleting": self.deleting}),
            **created_json(self.created),
            **self.extra,
        }

    def encode(self, stamp: Stamp | None = None) -> bytes:
        """In its stored form."""
        return encode(self.to_json(), stamp, as_format=FORMAT if self.progress_snapshot is None else AT_REST)

    @classmethod
    def decode(cls, path: str, data: bytes) -> TopicRecord:
        """From its stored form. :raises MetadataError: it is of a newer format, or damaged."""
        return cls.from_json(*decode(path, data, newest=AT_REST))

    @classmethod
    def from_json(cls, source: Any, stamp: Stamp | None = None) -> TopicRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a topic")
        return cls(
            incarnation=take(data, "incarnation", str, ""),
            properties=strings(data, "properties"),
            ledgers=tuple(LedgerRecord.from_json(ledger) for ledger in take(data, "ledgers", list, [])),
            progress_ledgers=tuple(int(ledger) for ledger in take(data, "progressLedgers", list, [])),
            progress_snapshot=_snapshot(data),
            last_own=_position(data, "lastOwn"),
            last_origins=positions(data, "lastOrigins"),
            holes=_ranges(data, "holes"),
            joining=take(data, "joining", bool, False),
            joined=positions(data, "joined"),
            terminated=None if data.get("terminated") is None else _position(data, "terminated"),
            terminated_origins=positions(data, "terminatedOrigins"),
            topic_epoch=take(data, "topicEpoch", int),
            owner=take(data, "owner", int, 0),
            compacted=None if data.get("compacted") is None else CompactedRecord.from_json(data["compacted"]),
            obsolete_ledgers=tuple(int(ledger) for ledger in take(data, "compactionScraps", list, [])),
            newest_ledger=take(data, "newestLedger", int, -1),
            mends=tuple(MendRecord.from_json(mend) for mend in take(data, "mends", list, [])),
            deleting=take(data, "deleting", str),
            created=take_created(data),
            skipped=_skipped(data),
            skipped_before=_ranges(data, "skippedBefore"),
            extra=without(data, *_TOPIC_FIELDS),
            stamp=stamp,
        )


def _places_json(places: Mapping[str, Position]) -> Json:
    return {region: str(place) for region, place in places.items()}


_TOPIC_FIELDS: Final = (
    "created",
    "deleting",
    "mends",
    "incarnation",
    "properties",
    "ledgers",
    "progressLedgers",
    "progressSnapshot",
    "lastOwn",
    "lastOrigins",
    "holes",
    "joining",
    "joined",
    "terminated",
    "terminatedOrigins",
    "topicEpoch",
    "owner",
    "compacted",
    "compactionScraps",
    "newestLedger",
    "skipped",
    "skippedBefore",
)


def _position(data: Mapping[str, Any], key: str) -> Position:
    try:
        return parse_position(take(data, key, str, str(EARLIEST)))
    except ValueError as error:
        raise Invalid(f"{key}: {error}") from None


def _snapshot_json(snapshot: tuple[bytes, ...] | None) -> Json:
    return {} if snapshot is None else {"progressSnapshot": [b64encode(record).decode() for record in snapshot]}


def _snapshot(data: Mapping[str, Any]) -> tuple[bytes, ...] | None:
    try:
        texts = take(data, "progressSnapshot", list)
        return None if texts is None else tuple(b64decode(text, validate=True) for text in texts)
    except (ValueError, TypeError) as error:
        raise Invalid(f"progressSnapshot: {error}") from None


def _skipped(data: Mapping[str, Any]) -> dict[str, Skipped]:
    try:
        stretches = take(data, "skipped", dict, {})
        return {region: Skipped(*map(parse_position, stretch)) for region, stretch in stretches.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"skipped: {error}") from None


def _ranges(data: Mapping[str, Any], key: str) -> dict[str, tuple[tuple[Position, Position], ...]]:
    try:
        return {
            region: tuple((parse_position(after), parse_position(before)) for after, before in ranges)
            for region, ranges in take(data, key, dict, {}).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"{key}: {error}") from None


def _ranges_json(ranges: Mapping[str, Iterable[tuple[Position, Position]]]) -> Json:
    return {region: [[str(after), str(upto)] for after, upto in some] for region, some in ranges.items()}


def positions(data: Mapping[str, Any], key: str) -> dict[str, Position]:
    """Positions by region. :raises Invalid: they are not valid."""
    return {region: _position({region: text}, region) for region, text in strings(data, key).items()}
