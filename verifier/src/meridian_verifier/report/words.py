# SPDX-License-Identifier: Apache-2.0
"""Words shared by table, page and documents, for readers who do not know the rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from meridian_verifier.align.findings import METADATA, Finding, Reason
from meridian_verifier.align.verdicts import State, SubjectVerdict, counted

MEANINGS: Final = {
    Reason.MISSING_ACK: "acked in the source region, but not in the target: a failover would deliver these again",
    Reason.EPOCH_BEHIND: "the target has not applied a rewind of the subscription",
    Reason.LINK_DOWN: "both regions answer, but the link between them was down the whole time",
    Reason.SUBSCRIPTION_MISSING: "the target does not have the subscription",
    Reason.NOT_REPLICATED: "the target has the subscription, but does not replicate its state",
    Reason.TOPIC_MISSING: "the target does not have the topic",
    Reason.PASSED_UNACKED: "LOSS: the cursor passed these, though no consumer acked them and no drop is on record",
    Reason.OVERCLAIMED: "LOSS: counted as acked, but no region has on record that it received the ack",
    Reason.TRIMMED_UNACKED: "LOSS: deleted from the log before they were acked or dropped",
    Reason.OWED_ELSEWHERE: "owed in the source since a seek, and trimmed in the target, which cannot deliver them",
    Reason.CHECKSUM_DIFFERS: "LOSS: the same message has different contents in two regions",
    Reason.ENTRY_MISSING: "messages missing in the middle of the target's log",
    Reason.SKIPPED: "not in the target: an administrator dropped them from the replication backlog there, on record",
    Reason.ENTRY_DOUBLED: "the same message stands twice in the region's log",
    Reason.OUT_OF_ORDER: "the region stores messages after others that say they follow them",
    Reason.ORIGIN_ROLLED_BACK: "the origin no longer has messages that another region received from it",
    Reason.SHADOW_INCOMPLETE: "the shadow lacks messages that its source has",
    Reason.SHADOW_STRANGE: "the shadow shows messages that its source does not have",
    Reason.SHADOW_CURSOR_AHEAD: "the shadow's subscription is beyond the end of the source",
    Reason.AHEAD_OF_SOURCE: "counted as acked, though the Pulsar region that published them still owes them",
    Reason.METADATA_BEHIND: "the target has an older write of this path of metadata than the source",
    Reason.METADATA_MISSING: "the target does not have this path of metadata, but the source does",
    Reason.METADATA_DIFFERS: "one write of this path of metadata has two values",
    Reason.UNREACHABLE: "the region could not be asked",
    Reason.NOT_COMPARABLE: "Apache Pulsar does not report which of the other region's messages it has acknowledged",
    Reason.SOURCE_NOT_READ: "the export does not contain the source of the shadow: verify both topics",
    Reason.NOT_ASKED: "the topic is replicated to a region that was not named: name all of its regions",
    Reason.LAGGING: "behind, and its maxLag is longer than one run waits",
    Reason.REWOUND: "the subscription was rewound during the check",
    Reason.INCARNATION: "the topic was deleted and recreated, and the regions do not agree on that yet",
}


OF_SHADOWS: Final = (Reason.SHADOW_INCOMPLETE, Reason.SHADOW_STRANGE, Reason.SHADOW_CURSOR_AHEAD)
"""They name entries by their ids in the region, whatever their origins. How many a cursor passed is not known."""

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: later times have no date here."""


def short_topic(topic: str) -> str:
    """The topic without its domain, which hardly ever matters."""
    return topic.removeprefix("persistent://")


def when(milliseconds: int) -> str:
    """A readable time, in UTC. One without a valid date, since clients may set it, is shown as a number."""
    if not 0 <= milliseconds <= LATEST_MS:
        return f"{milliseconds} ms since 1970"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ranges_text(finding: Finding, shown: int = 3) -> str:
    """The first ranges of a finding, in the origin's coordinates; for metadata, the path and what each region has."""
    if finding.path:
        return f"{finding.path}: {finding.stamps[0]}, {finding.stamps[1]}"
    parts = [f"({a[0]}:{a[1]}, {b[0]}:{b[1]}]" for a, b in finding.ranges[:shown]]
    return " ".join(parts) + (" ..." if len(finding.ranges) > shown else "")


def part_text(topic: str, subscription: str) -> str:
    """What a subject without a subscription is about; empty: it has one."""
    return "" if subscription else "(synchronized metadata)" if topic == METADATA else "(its entries)"


def compared_text(subject: SubjectVerdict) -> str:
    """What an aligned subject was compared with."""
    count = sum(pair.source != pair.target for pair in subject.pairs)
    said = [counted(count, "pair")] if count or not subject.pairs else []
    return ", ".join(said + ["same as its source"] * (count < len(subject.pairs)))


def place_text(finding: Finding) -> str:
    """The region that is wrong, or the pair whose second region is; for a shadow, also its source."""
    if finding.shadow_of:
        return f"{finding.target}, shadow of {short_topic(finding.shadow_of)}"
    return finding.target if finding.source == finding.target else f"{finding.source} -> {finding.target}"


def troubles(subject: SubjectVerdict, ranges: int = 5) -> Iterator[str]:
    """Why a subject is not aligned, one line each: findings, further problems of pairs, and notes.

    :param ranges: maximum number of ranges listed per finding.
    """
    for found in subject.findings:
        if found.path:
            yield f"{found.reason}: {place_text(found)}: {ranges_text(found)}"
            continue
        which = f": {ranges_text(found, ranges)}" if ranges else ""
        told = [counted(found.entries, "entry", "entries")] if found.entries else []
        told += [f"of {found.origin}"] if found.reason not in OF_SHADOWS else []
        told += ["(of the topic)"] if found.subscription != subject.subscription else []
        told.append(f"in {place_text(found)}")
        yield f"{found.reason}: {' '.join(told)}{which}"
    said = {(found.source, found.target, found.reason) for found in subject.findings}
    for pair in subject.pairs:
        if pair.state is not State.ALIGNED:
            left = [reason for reason in pair.reasons if (pair.source, pair.target, reason) not in said]
            if left:
                note = f" ({pair.note})" if pair.note else ""
                where = pair.target if pair.source == pair.target else f"{pair.source} -> {pair.target}"
                yield f"{', '.join(left)}: {where}{note}"
    yield from subject.notes
