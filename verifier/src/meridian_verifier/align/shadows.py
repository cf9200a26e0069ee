# SPDX-License-Identifier: Apache-2.0
"""A shadow topic has its source's entries under the same ids, and its cursors never pass entries that do not exist.

A region copies one topic after another, so its shadow and its source are never seen at the same moment. Therefore a
difference counts only if both snapshots show it: what the source had at S1 and still has at S2 must be in the shadow by
S2, and what the shadow showed both times must have been in the source at one of them. Traffic, roll-overs, trimming and
truncation in between then make no difference; a topic deleted, recreated or created in between is not judged.

What a shadow's subscriptions passed is judged entry by entry (R60 a): it has to be acked, or dropped on record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import RANGES_SHOWN, Finding, Reason
from meridian_verifier.align.loss import passed_unacked

if TYPE_CHECKING:
    from meridian_verifier.align.evidence import Evidence
    from meridian_verifier.align.facts import Place, Range, TopicState, World


@dataclass(frozen=True, slots=True)
class Compared:
    """A shadow and its source in one region, each at both snapshots."""

    region: str
    name: str
    earlier: TopicState
    later: TopicState
    source_earlier: TopicState
    source_later: TopicState


def compared(world: World) -> list[Compared]:
    """The shadows that can be compared: they and their sources existed, unchanged, at both snapshots."""
    found = []
    for region, name, earlier, later in _lasting(world):
        source_earlier = world.earlier[region].topics.get(later.shadow_of)
        source_later = world.later[region].topics.get(later.shadow_of)
        if source_earlier and source_later and source_earlier.incarnation == source_later.incarnation:
            found.append(Compared(region, name, earlier, later, source_earlier, source_later))
    return found


def without_source(world: World) -> list[tuple[str, str, str]]:
    """Region, name and source of shadows that show entries although the region does not report their source."""
    return [
        (region, name, later.shadow_of)
        for region, name, earlier, later in _lasting(world)
        if any(entries for _, entries in earlier.ledgers) and any(entries for _, entries in later.ledgers)
        if all(later.shadow_of not in moment[region].topics for moment in (world.earlier, world.later))
    ]


def _lasting(world: World) -> Iterator[tuple[str, str, TopicState, TopicState]]:
    for region, state in world.later.items():
        for name, later in state.shadows.items():
            earlier = world.earlier[region].shadows.get(name) if region in world.earlier else None
            if earlier and (earlier.incarnation, earlier.shadow_of) == (later.incarnation, later.shadow_of):
                yield region, name, earlier, later


def differences(world: World) -> list[Finding]:
    """How shadows differ from their sources, and which of their cursors stand beyond the end."""
    found: list[Finding] = []
    for one in compared(world):
        shown = dict(one.earlier.ledgers), dict(one.later.ledgers)
        stored = dict(one.source_earlier.ledgers), dict(one.source_later.ledgers)
        found += _finding(Reason.SHADOW_INCOMPLETE, one, _incomplete(one, shown, stored))
        found += _finding(Reason.SHADOW_STRANGE, one, _strange(shown, stored))
        found += _cursors_ahead(one)
    return found


Counts = tuple[Mapping[int, int], Mapping[int, int]]
"""Entries per ledger at S1 and at S2."""


def _incomplete(one: Compared, shown: Counts, stored: Counts) -> Iterator[tuple[int, int, int]]:
    """Ledger, number of entries that the shadow has, number that it should have."""
    for ledger in sorted(stored[0].keys() & stored[1].keys()):
        due = min(counts[ledger] for counts in stored)
        have = max(counts.get(ledger, 0) for counts in shown)
        # The source may have deleted it, or been deleted itself, right after the source was copied for S2.
        # A shadow without ledgers at S1 may not know of this one yet.
        was_gone = bool(one.earlier.ledgers) and _is_gone(one.earlier, ledger)
        is_going = _is_gone(one.later, ledger) and not was_gone
        is_going = is_going or (_is_blank(one.later) and not _is_blank(one.earlier))
        if have < due and not is_going:
            yield ledger, have, due


def _is_gone(shadow: TopicState, ledger: int) -> bool:
    """Whether the shadow reports that the ledger no longer exists."""
    return ledger < (shadow.ledgers[0][0] if shadow.ledgers else shadow.trimmed_to[0])


def _is_blank(shadow: TopicState) -> bool:
    """Whether it shows nothing, as if its source never existed or was deleted."""
    return not shadow.ledgers and shadow.trimmed_to == EARLIEST


def _strange(shown: Counts, stored: Counts) -> Iterator[tuple[int, int, int]]:
    """Ledger, number of entries that the source has, number that the shadow shows."""
    before, after = stored
    for ledger in sorted(shown[0].keys() & shown[1].keys()):
        have = min(counts[ledger] for counts in shown)
        there = max(counts.get(ledger, 0) for counts in stored)
        # The shadow may still show a ledger that the source deleted between the snapshots.
        was_deleted_since = not after or (ledger < min(after) and (not before or ledger >= min(before)))
        if have > there and not was_deleted_since:
            yield ledger, there, have


def _cursors_ahead(one: Compared) -> Iterator[Finding]:
    if not one.source_earlier.ledgers or not one.source_later.ledgers:
        return
    end = max(_end(one.source_earlier), _end(one.source_later))
    for name, cursor in sorted(one.later.cursors.items()):
        before = one.earlier.cursors.get(name)
        if before is not None and (place := min(before.mark_delete, cursor.mark_delete)) > end:
            yield _made(Reason.SHADOW_CURSOR_AHEAD, one, name, 0, [(end, place)])


def _end(state: TopicState) -> Place:
    ledger, entries = max(state.ledgers)
    return ledger, entries - 1


def _finding(reason: Reason, one: Compared, ledgers: Iterator[tuple[int, int, int]]) -> Iterator[Finding]:
    found = list(ledgers)
    if found:
        ranges = [((ledger, first - 1), (ledger, last - 1)) for ledger, first, last in found]
        yield _made(reason, one, "", sum(last - first for _, first, last in found), ranges)


def _made(reason: Reason, one: Compared, subscription: str, entries: int, ranges: Sequence[Range]) -> Finding:
    shown, region = tuple(ranges[:RANGES_SHOWN]), one.region
    head = reason, one.name, subscription, region, region, region
    return Finding(*head, entries, 0, 0, 0, shown, shadow_of=one.later.shadow_of)


def lost_in_shadow(evidence: Evidence, region: str) -> list[Finding]:
    """One origin's entries that subscriptions of a shadow passed although they are neither acked nor dropped.

    :param evidence: the source's entries in this region, and the ranges that the region reports of the shadow.
    """
    shadow = evidence.world.later[region].shadows[evidence.topic]
    holders = [(region, name) for name, cursor in sorted(shadow.cursors.items()) if cursor.durable]
    return [dataclasses.replace(one, shadow_of=shadow.shadow_of) for one in passed_unacked(evidence, holders)]
