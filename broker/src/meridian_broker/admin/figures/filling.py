# SPDX-License-Identifier: Apache-2.0
"""Whether a region's copy of a topic is filled, as the admin API shows it (R21)."""

from __future__ import annotations

from typing import Any

from meridian_broker.topics.backfill.joining import READY
from meridian_broker.topics.topic import Topic

Json = dict[str, Any]


def fill(topic: Topic) -> Json:
    """``ready``: clients may fail over to this region. ``joinedAt``: per origin, up to here nothing ever came."""
    ready, reason, missing = READY if topic.backfill is None else topic.backfill.joining.readiness()
    joined = {region: str(place) for region, place in sorted(topic.log.joined.items())}
    return {"ready": ready, "reason": reason, "missing": missing, "joinedAt": joined}


def together(one: Json, other: Json) -> Json:
    """The combination of two partitions."""
    reasons = [part["reason"] for part in (one, other) if part["reason"]]
    return {
        "ready": one["ready"] and other["ready"],
        "reason": "; ".join(dict.fromkeys(reasons))[:4000],
        "missing": one["missing"] + other["missing"],
        "joinedAt": {},
    }
