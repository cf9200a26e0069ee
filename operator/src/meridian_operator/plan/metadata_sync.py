# SPDX-License-Identifier: Apache-2.0
"""Plans for MetadataSyncPolicies: up to four settings in each region, and what the regions say about the result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from meridian_operator.api.metadata_sync_policy import MetadataSyncPolicySpec
from meridian_operator.api.quantities import duration_ms
from meridian_operator.plan.changes import Change, RemoveSetting, SetSetting
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import SYNCED, Finding, Plan

EVENT_TOPIC: Final = "metadataSyncEventTopic"
SCOPES: Final = "metadataSyncScopes"
TOMBSTONE_RETENTION: Final = "metadataSyncTombstoneRetentionSeconds"
MAX_CLOCK_SKEW: Final = "metadataSyncMaxClockSkewSeconds"
KEYS: Final = (EVENT_TOPIC, SCOPES, TOMBSTONE_RETENTION, MAX_CLOCK_SKEW)
"""Settings that an object manages, in the order in which they are removed."""
SHORTEST_MS: Final = 3_600_000
SKEW_MS: Final = range(1_000, 3_600_001)
CATCHING_UP: Final = "CatchingUp"
"""Reason of Synced: it resolves by itself."""
SYNC_BLOCKED: Final = "SyncBlocked"
"""Reason of Synced: somebody has to decide or fix something."""


def refusal(spec: MetadataSyncPolicySpec) -> tuple[str, str] | None:
    """Why this spec cannot be carried out: reason and sentence; None: it can."""
    if re.search(r"-partition-\d+$", spec.event_topic):
        return "InvalidSpec", f"eventTopic {spec.event_topic} is a partition of a topic: name a whole topic"
    if spec.tombstone_retention is not None and 0 < duration_ms(spec.tombstone_retention) < SHORTEST_MS:
        return "InvalidSpec", f"tombstoneRetention {spec.tombstone_retention} is too short: the minimum is 1h, or 0s"
    if spec.max_clock_skew is not None and duration_ms(spec.max_clock_skew) not in SKEW_MS:
        return "InvalidSpec", f"maxClockSkew {spec.max_clock_skew} is out of range: it must be 1s to 1h"
    return None


def plan(spec: MetadataSyncPolicySpec, seen: Sequence[RegionSeen]) -> Plan:
    """The changes that switch synchronization on or off, as the spec says.

    :param seen: the regions that the spec names, and those that it used to name, where it is switched off.
    """
    changes: list[Change] = []
    problems = _silent(seen)
    waiting: list[str] = []
    for region in seen:
        if region.sync is None:
            continue
        wanted = _settings(spec) if region.name in spec.regions and not spec.suspend else {}
        changes += _toward(spec, region.name, region.sync.chosen, wanted)
        if wanted == _ours(region.sync.chosen) and region.sync.enabled != bool(wanted):
            if wanted:
                waiting.append(f"{region.name} has not switched synchronization on yet")
            else:
                own = f"{region.name} has {EVENT_TOPIC} in its brokers' own settings: remove it there"
                problems.append((region.name, "SetElsewhere", own))
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def deletion(spec: MetadataSyncPolicySpec, seen: Sequence[RegionSeen]) -> Plan:
    """The changes to make when the object is deleted with policy Delete: none until every region answers.

    A region whose version cannot synchronize metadata has nothing to switch off.
    """
    problems = [problem for problem in _silent(seen) if problem[1] != "NotSupported"]
    if problems:
        return Plan((), tuple(problems))
    return Plan(
        tuple(one for region in seen if region.sync for one in _toward(spec, region.name, region.sync.chosen, {}))
    )


def synced(spec: MetadataSyncPolicySpec, seen: Sequence[RegionSeen]) -> Finding:
    """Do all regions have the same metadata, as far as they know?"""
    if spec.suspend:
        return Finding(SYNCED, "Unknown", "Suspended", "synchronization is switched off")
    known = {region.name: region.sync for region in seen if region.name in spec.regions and region.sync is not None}
    silent = [name for name in spec.regions if name not in known]
    troubles = [f"{name}: {trouble}" for name, one in known.items() for trouble in one.troubles]
    if troubles:
        return Finding(SYNCED, "False", SYNC_BLOCKED, "; ".join(troubles)[:4000])
    behind = [name for name, one in known.items() if not (one.enabled and one.synced)]
    if behind:
        return Finding(SYNCED, "False", CATCHING_UP, f"not in sync yet: {', '.join(behind)}")
    if silent:
        return Finding(SYNCED, "Unknown", "RegionUnreachable", f"could not be asked: {', '.join(silent)}")
    return Finding(SYNCED, "True", "InSync", f"all {len(known)} regions have the same metadata")


def established(seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions where this object has switched synchronization on."""
    on = {region.name for region in seen if region.sync is not None and _ours(region.sync.chosen)}
    return sorted(on | (history.established & {region.name for region in seen if region.sync is None}))


def _settings(spec: MetadataSyncPolicySpec) -> dict[str, str]:
    durations = {TOMBSTONE_RETENTION: spec.tombstone_retention, MAX_CLOCK_SKEW: spec.max_clock_skew}
    chosen = {key: str(duration_ms(one) // 1000) for key, one in durations.items() if one is not None}
    return {SCOPES: ",".join(sorted(spec.scopes)), **chosen, EVENT_TOPIC: spec.event_topic}


def _ours(chosen: Mapping[str, str]) -> dict[str, str]:
    """The settings changed at run time that an object manages."""
    return {key: chosen[key] for key in KEYS if key in chosen}


def _toward(
    spec: MetadataSyncPolicySpec, region: str, chosen: Mapping[str, str], wanted: Mapping[str, str]
) -> list[Change]:
    """Scopes are set first, so that nothing else is shared in between. The topic is removed first."""
    topic = TopicName.parse(spec.event_topic)
    removed = [key for key in KEYS if key in chosen and key not in wanted]
    return [
        *(RemoveSetting(region, topic, key) for key in removed),
        *(SetSetting(region, topic, key, value) for key, value in wanted.items() if chosen.get(key) != value),
    ]


def _silent(seen: Sequence[RegionSeen]) -> list[tuple[str, str, str]]:
    return [
        (region.name, region.reason, f"{region.name} could not be asked: {region.problem}")
        for region in seen
        if not region.reachable
    ]
