# SPDX-License-Identifier: Apache-2.0
"""The verdict as one JSON object, for programs such as the demo and the operator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meridian_verifier.align.verdicts import Verdict
from meridian_verifier.job import Timing


def summary(verdict: Verdict, timing: Timing, report: str | None) -> dict[str, Any]:
    """Keys are stable: new ones may be added, none changes its meaning. ``aligned`` is null if unknown.

    ``subjects`` are the verdicts on each topic (empty ``subscription``) and each replicated subscription; ``pairs`` and
    ``findings`` are the details behind them.
    """
    aligned = {0: True, 1: False, 2: None}[verdict.exit_code]
    return {
        "state": verdict.state.value,
        "aligned": aligned,
        "summary": verdict.summary,
        "regions": list(verdict.world.named),
        "unreachable": dict(verdict.world.unreachable),
        "not_asked": {
            topic: strangers for topic in verdict.world.topics() if (strangers := verdict.world.not_asked(topic))
        },
        "snapshots": {
            name: [verdict.world.earlier[name].taken_ms, state.taken_ms] for name, state in verdict.world.later.items()
        },
        "max_lag_ms": verdict.world.max_lag_ms,
        "subjects": [
            {
                "topic": one.topic,
                "subscription": one.subscription,
                "state": one.state.value,
                "reasons": [reason.value for reason in one.reasons],
                "notes": list(one.notes),
            }
            for one in verdict.subjects
        ],
        "pairs": [asdict(pair) for pair in verdict.pairs],
        "findings": [asdict(finding) for finding in verdict.findings],
        "lost_entries": sum(finding.entries for finding in verdict.losses),
        "flows": [asdict(flow) for flow in verdict.flows],
        "seconds": {name: round(seconds, 1) for name, seconds in asdict(timing).items()},
        "report": report,
    }
