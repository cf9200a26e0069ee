# SPDX-License-Identifier: Apache-2.0
"""What verifiers said: from their ConfigMaps to the condition *Aligned*.

A verifier NAME writes a *head*, ``meridian-verdict-NAME``, and, where the rows do not fit, *shards* beside it. All
documents of a run carry its id, and a row counts only while its verifier's head names its run: shards that an earlier
run left behind, or a later one has only begun to write, say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meridian_operator.plan.outcome import ALIGNED, Finding, Truth

DOCUMENT: Final = "verdict.json"
DETAIL: Final = 4000
"""Characters of it in a status."""
_WORST: Final = ("aligned", "unknown", "misaligned")
_CONDITIONS: Final[dict[str, tuple[Truth, str]]] = {
    "aligned": ("True", "Aligned"),
    "misaligned": ("False", "Misaligned"),
}

Verifier = tuple[str, str]
"""Namespace and NAME."""
Subject = tuple[str, str]
"""Topic without its partition, and subscription; empty: the topic itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """The verdict on one subject: of a partitioned topic, on one partition."""

    verifier: Verifier
    run: str
    verdict: str
    """aligned, misaligned or unknown."""
    time: str
    expires: str
    """From then on *aligned* means unknown. Empty: never."""
    detail: str


def rows_of(verifier: Verifier, data: Mapping[str, str]) -> dict[Subject, tuple[Row, ...]]:
    """All rows of one ConfigMap, by subject. One that cannot be read says nothing."""
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
    """The run that is in force, if this ConfigMap is a head that can be read."""
    try:
        document = json.loads(data[DOCUMENT])
        return None if "shard" in document else _text(document, "run")
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def verdict_of(
    own: Iterable[tuple[Row, ...]], of_topic: Iterable[tuple[Row, ...]], runs: Mapping[Verifier, Iterable[str]]
) -> Row | None:
    """What the newest run says: the worst of its rows; None: no run has spoken of the subject.

    :param own: rows about the subject.
    :param of_topic: rows about the topic of a subscription: what is wrong with it is wrong with the subscription, also
        where no row names that one.
    :param runs: per verifier, the run in force.
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

    An aligned verdict counts for as long as its run said; a misaligned one until another run says otherwise.

    :param now: the time as verdicts have it.
    """
    if verdict is None:
        return Finding(ALIGNED, "Unknown", "NotVerifiedYet", "no verifier has spoken of this yet")
    if verdict.verdict == "aligned" and verdict.expires and verdict.expires < now:
        said = f"it was aligned when it was verified at {verdict.time}, which counted until {verdict.expires}"
        return Finding(ALIGNED, "Unknown", "VerdictExpired", f"{said}: see why the verifier did not run again")
    truth, reason = _CONDITIONS.get(verdict.verdict, ("Unknown", "RegionUnknown"))
    told = verdict.detail or "every region stands at the same place"
    return Finding(ALIGNED, truth, reason, f"{told} (verified {verdict.time})")


def _head(row: Row) -> tuple[Verifier, str, str, str, str]:
    return row.verifier, row.run, row.verdict, row.time, row.expires


def _badness(row: Row) -> int:
    """A word that this version does not know is not good news."""
    return _WORST.index(row.verdict) if row.verdict in _WORST else _WORST.index("unknown")


def _text(document: Any, field: str) -> str:
    return str(document.get(field, ""))


def _base(topic: str) -> str:
    """The topic's name without its partition."""
    head, separator, number = topic.rpartition("-partition-")
    return head if separator and number.isdigit() else topic
