# SPDX-License-Identifier: Apache-2.0
"""R60: the four forms of loss, each detected by evidence that is independent of the cursor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meridian_verifier.align.containment import lacking_bits
from meridian_verifier.align.evidence import NOTHING, Acked, Evidence, Holder, Partial
from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.intervals import EMPTY, IntervalSet, keys_of, union
from meridian_verifier.align.rewinds import owed_by_others


def losses(evidence: Evidence) -> list[Finding]:
    """All findings of loss for this origin."""
    found = [*passed_unacked(evidence, _replicated(evidence)), *_trimmed_unacked(evidence), *_checksums(evidence)]
    # Only if every region that may have received an ack was read is it certain that none did.
    if not evidence.world.not_read(evidence.topic):
        found += _overclaimed(evidence)
    return found


def _replicated(evidence: Evidence) -> Iterable[tuple[str, str]]:
    for region in evidence.world.later:
        cursors = evidence.world.cursors(region, evidence.topic, evidence.world.later)
        yield from ((region, name) for name, cursor in sorted(cursors.items()) if cursor.replicated)


def _acked_or_dropped(evidence: Evidence, holder: tuple[str, str]) -> IntervalSet:
    return evidence.later.get(holder, NOTHING).full | evidence.dropped.get(holder, EMPTY)


def passed_unacked(evidence: Evidence, holders: Iterable[Holder]) -> Iterable[Finding]:
    """(a) Entries in the log that the cursor passed, in neither progress nor drops."""
    for holder in holders:
        region, subscription = holder
        held = evidence.stored.get(region)
        if held is None:
            continue
        # A reader of a compacted view passes entries that the view does not contain, unacknowledged.
        unexplained = evidence.passed.get(holder, EMPTY) - evidence.compacted.get(holder, EMPTY)
        passed = held.keys[unexplained.holds(held.local)]
        lost = passed[~_acked_or_dropped(evidence, holder).holds(passed)]
        chosen = np.isin(evidence.known.keys, lost)
        found = evidence.finding(Reason.PASSED_UNACKED, subscription, region, region, chosen)
        if found:
            yield found


def _overclaimed(evidence: Evidence) -> Iterable[Finding]:
    """(b) Progress at S1 beyond the union of all regions' first-hand acks at S2, and of what every region dropped."""
    for subscription in sorted({name for _, name in evidence.earlier}):
        received = merged(acked for (_, name), acked in evidence.firsthand.items() if name == subscription)
        explained = received.full | evidence.dropped_everywhere(subscription)
        for (region, name), acked in evidence.earlier.items():
            if name != subscription:
                continue
            keys = evidence.known.keys
            chosen = (acked.full - explained).holds(keys)
            messages = int(evidence.known.messages[chosen].sum())
            for key, count in lacking_bits(acked, received).items():
                at = int(np.searchsorted(keys, key))
                if at < len(keys) and keys[at] == key and not chosen[at]:
                    chosen[at] = True
                    messages += count
            found = evidence.finding(Reason.OVERCLAIMED, subscription, region, region, chosen, messages)
            if found:
                yield found


def merged(parts: Iterable[Acked]) -> Acked:
    """The union of acks; batch bits unite too, and a full set of bits is the whole entry (R18)."""
    known = list(parts)
    bits: dict[int, Partial] = {}
    for acked in known:
        for key, partial in acked.partial.items():
            before = bits.get(key)
            bits[key] = Partial(partial.size, partial.bits | before.bits) if before else partial
    complete = keys_of(sorted(key for key, partial in bits.items() if partial.bits.bit_count() >= partial.size))
    full = union([*(acked.full for acked in known), IntervalSet.of(complete - 1, complete)])
    return Acked(full, bits)


def _trimmed_unacked(evidence: Evidence) -> Iterable[Finding]:
    """(c) Entries other regions still hold, trimmed here, in neither progress nor drops; except those that others owe
    since a rewind, which may have been acked before (``rewinds.py``). Not judged if the origin has no chain: whether
    they were ever here is unknown."""
    if not evidence.has_chain:
        return
    for holder in _replicated(evidence):
        region, subscription = holder
        state = evidence.world.later[region].topics[evidence.topic]
        if state.trimmed_to == EARLIEST or state.gave_back_compacted:
            continue
        # Late entries are below the low water; expected or skipped entries were never here.
        gone = IntervalSet.of([evidence.joined(region)], [evidence.low_water(region)])
        gone = gone - evidence.awaited(region) - evidence.skipped(region)
        chosen = (gone - _acked_or_dropped(evidence, holder)).holds(evidence.known.keys) & evidence.known.meant_for(
            region
        )
        held = evidence.stored.get(region)
        if held is not None:
            chosen &= ~np.isin(evidence.known.keys, held.keys)
        chosen &= ~owed_by_others(evidence, subscription, region)
        found = evidence.finding(Reason.TRIMMED_UNACKED, subscription, region, region, chosen)
        if found:
            yield found


def _checksums(evidence: Evidence) -> Iterable[Finding]:
    """(d) An entry whose checksum differs from that in its origin region, or in the first region that holds it."""
    order = [evidence.origin, *(region for region in sorted(evidence.stored) if region != evidence.origin)]
    reference = np.full(len(evidence.known.keys), -1, dtype=np.int64)
    giver = np.full(len(evidence.known.keys), -1, dtype=np.int64)
    for number, region in enumerate(order):
        held = evidence.stored.get(region)
        if held is None:
            continue
        at = np.searchsorted(evidence.known.keys, held.keys)
        differs = (reference[at] >= 0) & (reference[at] != held.checksum)
        for source in np.unique(giver[at[differs]]):
            chosen = np.zeros(len(reference), dtype=np.bool_)
            chosen[at[differs & (giver[at] == source)]] = True
            found = evidence.finding(Reason.CHECKSUM_DIFFERS, "", order[int(source)], region, chosen)
            if found:
                yield found
        fresh = at[reference[at] < 0]
        reference[fresh] = held.checksum[reference[at] < 0]
        giver[fresh] = number
