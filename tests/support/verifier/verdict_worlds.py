# SPDX-License-Identifier: Apache-2.0
"""Two observations of two regions with one topic, and findings about them: the input of verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meridian_verifier.align.facts import EARLIEST, Cursor, Link, RegionState, TopicState, World
from meridian_verifier.align.findings import Finding, Reason
from support.verifier.verifier_worlds import TOPIC

A, B = "us-east", "us-west"
CURSOR = Cursor(replicated=True, durable=True, type="Shared", mark_delete=EARLIEST, backlog=0, epoch="")


def topic(other: str, *, link: bool = True, **changed: Any) -> TopicState:
    plain = TopicState(links={other: Link(link, 0, 0)}, cursors={"billing": CURSOR})
    return dataclasses.replace(plain, **changed)


def world(
    earlier: Mapping[str, TopicState | None] | None = None,
    later: Mapping[str, TopicState | None] | None = None,
    unreachable: Mapping[str, str] | None = None,
) -> World:
    def states(changed: Mapping[str, TopicState | None] | None) -> dict[str, RegionState]:
        topics = {A: topic(B), B: topic(A)} | dict(changed or {})
        return {
            name: RegionState(name, "s", 0, {TOPIC: state} if state else {})
            for name, state in topics.items()
            if name not in (unreachable or {})
        }

    return World((A, B), states(earlier), states(later), unreachable or {}, 2000)


def finding(reason: Reason, source: str, target: str, subscription: str = "billing") -> Finding:
    return Finding(reason, TOPIC, subscription, A, source, target, 3, 3, 1, 2, ())
