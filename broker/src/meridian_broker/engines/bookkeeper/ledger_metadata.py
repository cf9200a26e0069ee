# SPDX-License-Identifier: Apache-2.0
"""A ledger's metadata as BookKeeper's own tools read and write it in etcd, and the changes of state of a ledger.

    OPEN -> CLOSED                       its writer seals it
    OPEN -> IN_RECOVERY -> CLOSED        another client recovers it

Each change is a compare-and-set against the version that was read, because there are other writers: recoveries by other
brokers, and BookKeeper's AutoRecovery, which replaces bookies even in closed ledgers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from google.protobuf.message import DecodeError

from meridian_broker.wire.proto.bookkeeper_pb2 import BookieRegistration, LedgerMetadataFormat
from meridian_broker.wire.pulsar.varints import read_varint, varint

ROOT: Final = b"/ledgers/"
AVAILABLE: Final = "/ledgers/available/"
READ_ONLY: Final = "readonly"
FIRST_LEDGER_KEY: Final = b"/ledgers/0"
AFTER_LEDGER_KEYS: Final = b"/ledgers/:"
LEDGER_ID_MAX: Final = (1 << 63) - 1

_SHORT_IDS_END: Final = (1 << 31) - 1
"""Smaller ids have keys with three levels; this one and greater ones, keys with five."""
_MAGIC: Final = b"BookieMetadataFormatVersion\t"
_VERSION_LINE: Final = _MAGIC + b"3\n"

FENCE: Final = "meridian-fence"
LABEL: Final = "meridian-label"
REGION: Final = "meridian-region"


class BadMetadata(Exception):
    """A ledger's metadata cannot be understood."""


class LedgerState(Enum):
    OPEN = LedgerMetadataFormat.OPEN
    IN_RECOVERY = LedgerMetadataFormat.IN_RECOVERY
    CLOSED = LedgerMetadataFormat.CLOSED


@dataclass(frozen=True, slots=True)
class Segment:
    """The bookies that store the ledger's entries from ``first`` up to the next segment."""

    first: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    """The last entry of a closed ledger; -1: none, or not closed."""
    length: int = 0
    """The bytes of all entries of a closed ledger."""
    password: bytes = b""
    digest: LedgerMetadataFormat.Digest = LedgerMetadataFormat.CRC32C
    created_ms: int = 0
    custom: tuple[tuple[str, bytes], ...] = ()
    unknown: bytes = field(default=b"", repr=False)
    """Fields of newer versions, kept to be written back."""

    @property
    def ensemble_size(self) -> int:
        return len(self.segments[0].ensemble)

    @property
    def fence(self) -> int | None:
        """The highest owner epoch that wrote it; None: Meridian did not create it."""
        found = dict(self.custom).get(FENCE)
        return int(found) if found is not None and found.isdigit() else None

    @property
    def is_readable(self) -> bool:
        """Whether its entries have the checksum that this client knows."""
        return self.digest == LedgerMetadataFormat.CRC32C

    @property
    def label(self) -> bytes:
        return dict(self.custom).get(LABEL, b"")

    @property
    def region(self) -> str:
        """The region that created it; empty: Meridian did not."""
        return dict(self.custom).get(REGION, b"").decode(errors="replace")

    def segment_of(self, entry: int) -> Segment:
        """The segment that contains ``entry``, or would contain it."""
        return next(segment for segment in reversed(self.segments) if segment.first <= max(entry, 0))

    def bookies_of(self, entry: int) -> tuple[str, ...]:
        """The bookies that store an entry. Entries are striped when the ensemble is larger than the write quorum."""
        ensemble = self.segment_of(entry).ensemble
        if self.write_quorum == len(ensemble):
            return ensemble
        return tuple(ensemble[(entry + offset) % len(ensemble)] for offset in range(self.write_quorum))

    # -- changes -------------------------------------------------------------------------------------------------

    def with_ensemble(self, first: int, ensemble: Sequence[str]) -> LedgerMetadata:
        """Other bookies from entry ``first`` on. They replace a segment that begins there: none of it is confirmed."""
        if first < self.segments[-1].first:
            raise ValueError(f"segment at {first} begins before the last one at {self.segments[-1].first}")
        kept = self.segments[:-1] if self.segments[-1].first == first else self.segments
        return replace(self, segments=(*kept, Segment(first, tuple(ensemble))))

    def in_recovery(self, fence: int) -> LedgerMetadata:
        return replace(self.with_custom(FENCE, b"%d" % fence), state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        """Closed after ``last_entry``. Segments beyond it are removed, except the first."""
        kept = tuple(segment for segment in self.segments if segment.first <= max(last_entry, 0))
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length, segments=kept)

    def with_custom(self, key: str, value: bytes) -> LedgerMetadata:
        others = tuple(pair for pair in self.custom if pair[0] != key)
        return replace(self, custom=(*others, (key, value)))


# -- bytes -----------------------------------------------------------------------------------------------------------


def encode(metadata: LedgerMetadata) -> bytes:
    """The value of the ledger's key."""
    message = LedgerMetadataFormat()
    message.MergeFromString(metadata.unknown)
    message.write_quorum = metadata.write_quorum
    message.ensemble_size = metadata.ensemble_size
    message.ack_quorum = metadata.ack_quorum
    message.length = metadata.length
    message.last_entry = metadata.last_entry
    message.state = metadata.state.value
    message.digest = metadata.digest
    message.password = metadata.password
    message.created_ms = metadata.created_ms
    for segment in metadata.segments:
        message.segment.add(first_entry=segment.first, bookie=segment.ensemble)
    for key, value in metadata.custom:
        message.custom.add(key=key, value=value)
    body = message.SerializeToString()
    return _VERSION_LINE + varint(len(body)) + body


def decode(value: bytes) -> LedgerMetadata:
    """:raises BadMetadata: it cannot be understood."""
    if not value.startswith(_VERSION_LINE):
        line = value.split(b"\n", 1)[0][:60]
        raise BadMetadata(f"its metadata begins with {line!r}, and this client knows only format version 3")
    try:
        size, at = read_varint(value, len(_VERSION_LINE))
        if at + size != len(value):
            raise BadMetadata(f"its metadata has {len(value) - at} bytes instead of {size}")
        message = LedgerMetadataFormat.FromString(value[at:])
    except (DecodeError, ValueError, IndexError) as error:
        raise BadMetadata(f"its metadata cannot be parsed: {error}") from error
    segments = tuple(Segment(one.first_entry, tuple(one.bookie)) for one in message.segment)
    _check(message, segments)
    metadata = LedgerMetadata(
        write_quorum=message.write_quorum,
        ack_quorum=message.ack_quorum if message.HasField("ack_quorum") else message.write_quorum,
        segments=segments,
        state=LedgerState(message.state),
        last_entry=message.last_entry if message.state == LedgerMetadataFormat.CLOSED else -1,
        length=message.length,
        password=message.password,
        digest=message.digest,
        created_ms=message.created_ms,
        custom=tuple((one.key, one.value) for one in message.custom),
    )
    for known in message.DESCRIPTOR.fields_by_name:
        message.ClearField(known)
    return replace(metadata, unknown=message.SerializePartialToString())


def _check(message: LedgerMetadataFormat, segments: tuple[Segment, ...]) -> None:
    """:raises BadMetadata: the parts contradict each other."""
    sizes = {len(segment.ensemble) for segment in segments}
    firsts = [segment.first for segment in segments]
    ack_quorum = message.ack_quorum if message.HasField("ack_quorum") else message.write_quorum
    if sizes != {message.ensemble_size} or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise BadMetadata(f"its segments contradict each other: {segments}")
    if not 1 <= ack_quorum <= message.write_quorum <= message.ensemble_size:
        raise BadMetadata(
            f"ensemble {message.ensemble_size}, write quorum {message.write_quorum} and ack quorum {ack_quorum} "
            "contradict each other"
        )


def ledger_key(ledger: int) -> bytes:
    """The key of a ledger's metadata."""
    if not 0 <= ledger <= LEDGER_ID_MAX:
        raise ValueError(f"ledger ids are 0 to {LEDGER_ID_MAX}, not {ledger}")
    if ledger < _SHORT_IDS_END:
        digits = b"%010d" % ledger
        return ROOT + b"/".join((digits[:2], digits[2:6], b"L" + digits[6:]))
    digits = b"%019d" % ledger
    return ROOT + b"/".join((digits[:3], digits[3:7], digits[7:11], digits[11:15], b"L" + digits[15:]))


def ledger_of(key: bytes) -> int | None:
    """The ledger that a key belongs to; None: it is another kind of key."""
    parts = key.removeprefix(ROOT).split(b"/")
    if not parts[-1].startswith(b"L") or len(parts) not in (3, 5):
        return None
    digits = b"".join(parts).replace(b"L", b"")
    if not digits.isdigit() or len(digits) not in (10, 19) or ledger_key(int(digits)) != key:
        return None
    return int(digits)


def bookie_address(registration: bytes, bookie: str) -> tuple[str, int]:
    """Host and port of a registered bookie, from its endpoint or, without one, from its id.

    :raises BadMetadata: neither has them.
    """
    try:
        endpoints = BookieRegistration.FromString(registration).endpoint
    except DecodeError as error:
        raise BadMetadata(f"the registration of bookie {bookie} cannot be parsed: {error}") from error
    for endpoint in endpoints:
        if endpoint.protocol == "bookie-rpc":
            return endpoint.host, endpoint.port
    host, _, port = bookie.rpartition(":")
    if not host or not port.isdigit():
        raise BadMetadata(f"the registration of bookie {bookie} has no address")
    return host, int(port)
