# SPDX-License-Identifier: Apache-2.0
"""The same moves between pairs of clusters, side by side: nothing may be lost, and no pair may redeliver more than
two Apache Pulsar clusters do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from loaded import GONE_TO, LEFT, Case, Moves, Outcome
from pairs import MERIDIAN, PAIRS, PULSAR, Clusters, Pair

BASELINE = "pulsar-pulsar"
SNAPSHOT_SECONDS = 1.0
"""Interval of snapshots, by default in both systems."""
CHANCE_SECONDS = SNAPSHOT_SECONDS / 2
"""Redelivery depends on when the last snapshot was taken, anywhere within the interval: means of a few topics differ by
less than half of it. A limit is the baseline's figure plus this many seconds of traffic."""
HOUR_SECONDS, HOUR_RATE = 180.0, 1000
"""180,000 messages: an hour's worth at 50 a second."""

CASES = (
    "plain",
    "1_percent_held_2_s",
    "1_percent_held_for_ever",
    "left_one_killed",
    "other_one_killed",
    "an_hour_in_3_minutes",
)

Results = dict[str, dict[str, Outcome]]
"""By pair and case."""


def together(quick: bool) -> list[Case]:
    """Planned moves, all at once."""
    topics, seconds = (3, 7.0) if quick else (8, 20.0)
    return [
        Case("plain", topics, 60, seconds),
        Case("1_percent_held_2_s", topics, 60, seconds, hold_seconds=2.0),
        Case("1_percent_held_for_ever", topics, 60, seconds, hold_seconds=math.inf),
    ]


def alone(pair: Pair, quick: bool) -> list[Case]:
    """One after the other. A quick run kills only one: Pulsar in a mixed pair, the cluster that is left in a pair of
    one kind."""
    topics, seconds = (4, 4.0) if quick else (8, 10.0)
    left = Case("left_one_killed", topics, 100, seconds, killed=LEFT)
    other = Case("other_one_killed", topics, 100, seconds, killed=GONE_TO)
    if quick:
        return [other if pair.kinds == (MERIDIAN, PULSAR) else left]
    hour = Case("an_hour_in_3_minutes", 4, HOUR_RATE // 4, HOUR_SECONDS, hold_seconds=2.0)
    return [left, other, hour]


def compare(
    names: Sequence[str], chosen: Sequence[str], quick: bool, directory: Path, say: Callable[[str], None]
) -> Results:
    """Run the chosen cases of these pairs. :param say: progress."""
    pairs = [PAIRS[name] for name in names]
    results: Results = {}
    say(f"starting the clusters of {', '.join(names)}")
    with Clusters(directory, pairs) as clusters:
        for pair in pairs:
            moves = Moves(*clusters.of(pair), pair.namespace)
            results[pair.name] = {}
            for all_of_them in (together(quick), *([case] for case in alone(pair, quick))):
                cases = [case for case in all_of_them if case.name in chosen]
                if not cases:
                    continue
                say(f"{pair.name}: {', '.join(case.name for case in cases)}")
                found = moves.run(cases)
                results[pair.name] |= found
                for name, one in found.items():
                    say(f"  {name}: {one.lost} lost, {one.again_seconds:.2f} s of traffic again")
    return results


def together_with(file: Path, results: Results) -> Results:
    """These outcomes and those of earlier runs in a file, which then holds all; a case's last outcome counts."""
    earlier = json.loads(file.read_text()) if file.exists() else {}
    found = {pair: {case: Outcome(**one) for case, one in cases.items()} for pair, cases in earlier.items()}
    for pair, outcomes in results.items():
        found[pair] = found.get(pair, {}) | outcomes
    stored = {pair: {case: asdict(one) for case, one in cases.items()} for pair, cases in found.items()}
    file.write_text(json.dumps(stored))
    return {name: found[name] for name in PAIRS if name in found}


def figures(results: Results) -> dict[str, float | int]:
    """By name, with their units."""
    found: dict[str, float | int] = {}
    for pair, outcomes in results.items():
        for case, outcome in outcomes.items():
            name = f"{pair}_{case}".replace("-", "_")
            found[f"{name}_published"] = outcome.published
            found[f"{name}_acknowledged"] = outcome.acknowledged
            found[f"{name}_again"] = outcome.again
            found[f"{name}_again_seconds"] = outcome.again_seconds
            found[f"{name}_lost"] = outcome.lost
            if outcome.lag_ms:
                found[f"{name}_cursor_lag_p50_ms"] = outcome.lag(50)
                found[f"{name}_cursor_lag_p99_ms"] = outcome.lag(99)
    return found


def limits(results: Results) -> dict[str, tuple[float, float]]:
    """Value and limit by the name of the figure."""
    found: dict[str, tuple[float, float]] = {}
    for pair, outcomes in results.items():
        for case, outcome in outcomes.items():
            name = f"{pair}_{case}".replace("-", "_")
            found[f"{name}_lost"] = outcome.lost, 0
            baseline = _baseline(results, case)
            if pair != BASELINE and baseline is not None:
                found[f"{name}_again_seconds"] = outcome.again_seconds, baseline + CHANCE_SECONDS
    return found


def _baseline(results: Results, case: str) -> float | None:
    """The baseline of the same case. A quick run kills one cluster per pair: either of the baseline's kills will do."""
    outcomes: Mapping[str, Outcome] = results.get(BASELINE, {})
    kills = {"left_one_killed", "other_one_killed"}
    same = [case] if case in outcomes else [other for other in outcomes if {case, other} <= kills]
    return outcomes[same[0]].again_seconds if same else None


def table(results: Results) -> str:
    """For people."""
    names = list(results)
    cases = list(dict.fromkeys(case for outcomes in results.values() for case in outcomes))
    width = max(len(name) for name in names)
    lines = [" " * 46 + "  ".join(f"{name:>{width}}" for name in names)]
    rows: list[tuple[str, Callable[[Outcome], str]]] = [
        ("published", lambda one: f"{one.published:,}"),
        ("lost", lambda one: f"{one.lost:,}"),
        ("acknowledged", lambda one: f"{one.acknowledged:,}"),
        ("delivered again", lambda one: f"{one.again:,}"),
        ("delivered again, seconds of traffic", lambda one: f"{one.again_seconds:.2f}"),
        ("cursor lag p50, ms", lambda one: f"{one.lag(50):,.0f}" if one.lag_ms else ""),
        ("cursor lag p99, ms", lambda one: f"{one.lag(99):,.0f}" if one.lag_ms else ""),
    ]
    for case in cases:
        lines.append(case.replace("_", " "))
        for title, shown in rows:
            cells = [shown(results[name][case]) if case in results[name] else "-" for name in names]
            if any(cells):
                lines.append(f"  {title:42}  " + "  ".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(lines)


def unavailable(names: Sequence[str], why: str | None) -> str | None:
    """Why these pairs cannot run; None when they can."""
    needs = [name for name in names if PULSAR in PAIRS[name].kinds]
    return f"{', '.join(needs)}: {why}" if needs and why else None
