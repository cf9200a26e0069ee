# SPDX-License-Identifier: Apache-2.0
"""Verifiers' verdicts: from their ConfigMaps to the condition *Aligned*.

A verifier NAME writes a *head*, ``meridian-verdict-NAME``, and additional *shards* where the rows do not fit. All
documents of a run carry its id, and a row counts only while its verifier's head names its run. Shards left behind by
an earlier run, or by a later one that is not finished, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meridian_operator.plan.outcome import ALIGNED, Finding, Truth

DOCUMENT: Final = "verdict.json"
DETAIL: Final = 4000
"""Maximum characters of a verdict's detail in a status."""
_WORST: Final = ("aligned", "unknown", "misaligned")
_CONDITIONS: Final[dict[str, tuple[Truth, str]]] = {
    "aligned": ("True", "Aligned"),
    "misaligned": ("False", "Misaligned"),
}

Verifier = tuple[str, str]
"""Namespace and NAME."""
Subject = tuple[str, str]
"""Topic without its partition, and subscription (empty: the topic itself)."""


@dataclass(frozen=True, slots=True)
class Row:
    """The verdict on one subject; for a partitioned topic, on one partition of it."""

    verifier: Verifier
    run: str
    verdict: str
    """aligned, misaligned or unknown."""
    time: str
    expires: str
    """When an *aligned* verdict becomes unknown. Empty: never."""
    detail: str


def rows_of(verifier: Verifier, data: Mapping[str, str]) -> dict[Subject, tuple[Row, ...]]:
    """All rows of one ConfigMap, by subject; none if it cannot be parsed."""
    found: dict[Subject, list[Row]] = {}
    try:
        document = json.loads(data[DOCUMENT])
        head = (_text(document, "run"), _text(document, "time"), _text(document, "expires"))
        for row in document["subscriptions"]:
            subject = (_base(str(row["topic"])), str(row["subscription"]))
            run, time, expires = head
            told = Row(verifier, run, str(row["verdict"]), time, expires, str(row["detail"])[:DETAIL])
            found.setdefault(subject, []).append(told)
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {subject: tuple(rows) for subject, rows in found.items()}


def run_of(data: Mapping[str, str]) -> str | None:
    """The current run, if this ConfigMap is a head and can be parsed."""
    try:
        document = json.loads(data[DOCUMENT])
        return None if "shard" in document else _text(document, "run")
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def verdict_of(
    own: Iterable[tuple[Row, ...]], of_topic: Iterable[tuple[Row, ...]], runs: Mapping[Verifier, Iterable[str]]
) -> Row | None:
    """The newest run's verdict, the worst of its rows; None: no run covers the subject.

    :param own: rows about the subject.
    :param of_topic: rows about a subscription's topic: a topic's problems count for its subscriptions, even for those
        that no row names.
    :param runs: the current run of each verifier.
    """
    by_verifier: dict[Verifier, list[Row]] = {}
    rows = [row for some in own for row in some]
    rows += [row for some in of_topic for row in some if row.verdict != "aligned"]
    for row in rows:
        if row.run in runs.get(row.verifier, ()):
            by_verifier.setdefault(row.verifier, []).append(row)
    newest = max(by_verifier.values(), key=lambda some: (some[0].time, max(map(_badness, some))), default=None)
    if newest is None:
        return None
    worst = max(newest, key=_badness)
    details = dict.fromkeys(row.detail for row in newest if row.verdict == worst.verdict and row.detail)
    return Row(*_head(worst), "; ".join(details)[:DETAIL])


def aligned(verdict: Row | None, now: str) -> Finding:
    """The condition Aligned.

    An aligned verdict counts until it expires; a misaligned one until another run says otherwise.

    :param now: the time, formatted as in verdicts.
    """
    if verdict is None:
        return Finding(ALIGNED, "Unknown", "NotVerifiedYet", "no verifier has compared this yet")
    if verdict.verdict == "aligned" and verdict.expires and verdict.expires < now:
        said = f"it was aligned when verified at {verdict.time}, but that verdict expired at {verdict.expires}"
        return Finding(ALIGNED, "Unknown", "VerdictExpired", f"{said}: find out why the verifier did not run again")
    truth, reason = _CONDITIONS.get(verdict.verdict, ("Unknown", "RegionUnknown"))
    told = verdict.detail or "every region is at the same position"
    return Finding(ALIGNED, truth, reason, f"{told} (verified {verdict.time})")


def _head(row: Row) -> tuple[Verifier, str, str, str, str]:
    return row.verifier, row.run, row.verdict, row.time, row.expires


def _badness(row: Row) -> int:
    """A verdict that this version does not know counts as unknown."""
    return _WORST.index(row.verdict) if row.verdict in _WORST else _WORST.index("unknown")


def _text(document: Any, field: str) -> str:
    return str(document.get(field, ""))


def _base(topic: str) -> str:
    """The topic's name without a partition suffix."""
    head, separator, number = topic.rpartition("-partition-")
    return head if separator and number.isdigit() else topic
