# SPDX-License-Identifier: Apache-2.0
"""A region's answer about synchronized metadata, in the form that plans use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from meridian_operator.plan.observed import CONFLICTS_SHOWN, ConflictSeen, SyncSeen

MOST_PATH: Final = 512
MOST_VALUE: Final = 256


def synchronization(status: Mapping[str, Any], chosen: Mapping[str, Any], conflicts: Mapping[str, Any]) -> SyncSeen:
    """
    :param chosen: settings that were changed at run time.
    :param conflicts: the latest ones; empty: there are none.
    :raises LookupError: a part is missing.
    """
    enabled = bool(status["enabled"])
    peers = status.get("peers", {}) if enabled else {}
    troubles = [str(status["refusal"])] if status["refusal"] else []
    troubles += [str(one) for one in status.get("problems", ())]
    for name, peer in sorted(peers.items()):
        if peer["problem"]:
            troubles.append(f"{name}: {peer['problem']}")
        if peer["differences"]:
            count = int(peer["differences"])
            troubles.append(
                f"{count} values differ from {name}: choose a side with `meridian metadata adopt --from {name}`"
            )
    return SyncSeen(
        chosen={str(key): str(value) for key, value in chosen.items()},
        enabled=enabled,
        synced=bool(status.get("synced")),
        published=int(status.get("published", 0)),
        applied=int(status.get("applied", 0)),
        stale=int(status.get("stale", 0)),
        conflicts=int(status.get("conflicts", 0)),
        latest=tuple(_conflict(one) for one in conflicts.get("conflicts", ())[:CONFLICTS_SHOWN]),
        lag_seconds=max((int(peer["lagMillis"] or 0) // 1000 for peer in peers.values()), default=0),
        troubles=tuple(trouble[:500] for trouble in troubles[:8]),
    )


def _conflict(found: Mapping[str, Any]) -> ConflictSeen:
    won, lost = found["won"], found["lost"]
    return ConflictSeen(
        path=str(found["path"])[:MOST_PATH],
        won=_value(won),
        winner=str(won["region"])[:64],
        lost=_value(lost),
        loser=str(lost["region"])[:64],
        caller=str(lost.get("caller") or "")[:253],
    )


def _value(side: Mapping[str, Any]) -> str:
    if side["deleted"]:
        return ""
    return "..." if side["value"] is None else json.dumps(side["value"])[:MOST_VALUE]
