# SPDX-License-Identifier: Apache-2.0
"""Everything that can be wrong, in one vocabulary for rules, table, JSON and report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meridian_verifier.align.facts import Place

RANGES_SHOWN: Final = 50
"""Maximum number of ranges that a finding lists; its counts are always complete."""


class Reason(StrEnum):
    """Why a verdict is not *aligned*. People and programs see the value."""

    MISSING_ACK = "MissingAck"
    """Acked at the source at S1, not at the target at S2 (R61): a failover would deliver it again."""
    EPOCH_BEHIND = "EpochBehind"
    """The target has not applied a rewind that the source had at S1 (R61)."""
    LINK_DOWN = "LinkDown"
    """Both regions answer, but the link between them was down at both snapshots (R61)."""
    SUBSCRIPTION_MISSING = "SubscriptionMissing"
    """The source lists the replicated subscription at both snapshots, the target at neither."""
    NOT_REPLICATED = "NotReplicated"
    """The target has the subscription, but does not replicate its state (R17)."""
    TOPIC_MISSING = "TopicMissing"
    """The source replicates the topic to the target, which does not have it."""
    PASSED_UNACKED = "PassedUnacked"
    """Loss (R60 a): the cursor passed the entry, though no region acked it and no drop is recorded."""
    OVERCLAIMED = "Overclaimed"
    """Loss (R60 b): progress claims an ack that no region received first-hand."""
    TRIMMED_UNACKED = "TrimmedUnacked"
    """Loss (R60 c): trimmed above the floor, neither acked nor recorded as dropped."""
    OWED_ELSEWHERE = "OwedElsewhere"
    """The source owes the entry since a rewind, and the target has trimmed it (R12)."""
    CHECKSUM_DIFFERS = "ChecksumDiffers"
    """Loss (R60 d): one origin, two contents."""
    ENTRY_MISSING = "EntryMissing"
    """A hole below the target's high-water for that origin (R62)."""
    SKIPPED = "Skipped"
    """An administrator dropped the entry from the origin's replication backlog for the target: it is not sent there."""
    ENTRY_DOUBLED = "EntryDoubled"
    """One origin is stored twice in a region (R62)."""
    OUT_OF_ORDER = "OutOfOrder"
    """A region stores an entry after one that says it follows it (R62)."""
    ORIGIN_ROLLED_BACK = "OriginRolledBack"
    """A region holds entries of an origin beyond that origin's own end (R5)."""
    SHADOW_INCOMPLETE = "ShadowIncomplete"
    """A shadow lacks entries that its source had at both snapshots (R62)."""
    SHADOW_STRANGE = "ShadowStrange"
    """A shadow has entries that its source does not: beyond the source's end, or deleted there before S1 (R62)."""
    SHADOW_CURSOR_AHEAD = "ShadowCursorAhead"
    """A subscription of a shadow is beyond the source's end: it passed entries that do not exist."""
    AHEAD_OF_SOURCE = "AheadOfSource"
    """The target counts an entry as acked that its origin, a region of Apache Pulsar, still owes, and no region of
    Meridian received that ack (R63)."""
    METADATA_BEHIND = "MetadataBehind"
    """A path of synchronized metadata has an older write in the target at S2 than in the source at S1 (R63)."""
    METADATA_MISSING = "MetadataMissing"
    """The target knows nothing of a path that the source had, unchanged, at both snapshots (R63)."""
    METADATA_DIFFERS = "MetadataDiffers"
    """One write of a path, two values (R63)."""
    UNREACHABLE = "Unreachable"
    """Unknown: the region could not be asked."""
    NOT_COMPARABLE = "NotComparable"
    """Unknown: an Apache Pulsar region does not report what would have to be compared."""
    SOURCE_NOT_READ = "SourceNotRead"
    """Unknown: the source of the shadow was not in the export."""
    NOT_ASKED = "NotAsked"
    """Unknown: the topic is replicated to a region that this check was not asked to cover."""
    LAGGING = "Lagging"
    """Unknown: behind, but allowed to be for longer than one run waits."""
    REWOUND = "Rewound"
    """Unknown: the subscription was rewound between the snapshots; ask again."""
    INCARNATION = "Incarnation"
    """Unknown: the topic was deleted and recreated, and the regions do not agree on it yet (R8)."""


METADATA: Final = "metadata"
"""Takes a topic's place in findings about the metadata that regions sync."""

LOSS: Final = frozenset({Reason.PASSED_UNACKED, Reason.OVERCLAIMED, Reason.TRIMMED_UNACKED, Reason.CHECKSUM_DIFFERS})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with one origin's entries of one topic."""

    reason: Reason
    topic: str
    subscription: str
    """Empty if it does not concern a subscription (completeness, checksums)."""
    origin: str
    source: str
    target: str
    """The region that is wrong. Equal to ``source`` where only one region is concerned."""
    entries: int
    messages: int
    first_publish_ms: int
    last_publish_ms: int
    ranges: tuple[tuple[Place, Place], ...]
    """Half-open ``(after, upto]`` in origin coordinates, each a run of affected entries; at most
    ``RANGES_SHOWN``."""
    path: str = ""
    """For metadata; then ``topic`` is ``METADATA``, and no entries are concerned."""
    stamps: tuple[str, str] = ("", "")
    """The write that the source had at that path at S1, and the target at S2: its time and region."""
    shadow_of: str = ""
    """For a shadow: its source. Missing or strange entries are named by their ids in the region; then ``origin`` is the
    region, and ``messages`` and the times are 0."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One origin's entries in one region: how many, how complete, how late."""

    topic: str
    origin: str
    region: str
    entries: int
    messages: int
    missing: int
    behind: int
    """Entries above the region's high-water: in transit (R62 *lag*)."""
    quantiles_ms: tuple[int, ...]
    """Delay from stored at the origin to stored here: minimum, 5 %, 10 %, ... maximum; empty: nothing to compare."""
    given_back: int = 0
    """Number of its own entries that the origin got back from other regions: it was restored from an older copy of its
    volume, and acks received after that copy are no longer recorded (R5)."""
    late: int = 0
    """Entries stored after newer ones, because they were fetched from another region later (R5)."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A subscription's acks in one region along one origin, cut into equal bins of its entries, for drawing."""

    topic: str
    subscription: str
    origin: str
    region: str
    entries: int
    acked: tuple[int, ...]
    """Per bin, acked entries in percent."""
    dropped: tuple[int, ...]
    missing: tuple[int, ...]
    """Per bin, entries that this region should have but lacks, in percent."""
