# SPDX-License-Identifier: Apache-2.0
"""Verifiers' verdicts: from their ConfigMaps to the condition *Aligned*.

A verifier NAME writes a *head*, ``meridian-verdict-NAME``, and additional *shards* where the rows do not fit,
``meridian-verdict-NAME.GENERATION.NUMBER``. All documents of a run carry its id, and a row counts only while its
verifier's head names its run. Shards left behind by an earlier run, or by a later one that is not finished, are
ignored.

Not every ConfigMap that looks like a verdict is one. It must have the name and the label of a verifier that is listed
in the settings, since the API server reserves those for that verifier (see the verifier's chart). And it must say when
the comparison was made: a time in the future would outlive every later run, and an aligned verdict does not count
forever.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from meridian_operator.api.verdict import VerdictDocument
from meridian_operator.plan.outcome import ALIGNED, Finding, Truth

LABEL: Final = "meridian.dev/verdict"
"""Its value is the verifier's NAME."""
DOCUMENT: Final = "verdict.json"
DETAIL: Final = 4000
"""Maximum characters of a verdict's detail in a status."""
LONGEST_DAYS: Final = 7
"""An aligned verdict expires after this time even if its document says later, or does not say."""
SKEW_SECONDS: Final = 300
"""How far a verifier's clock may be ahead. Verdicts from further in the future are ignored."""
SHARDS: Final = 128
"""Maximum shards of a generation."""
_NAME: Final = re.compile(r"meridian-verdict-([-a-z0-9]+)(?:\.[ab]\.(\d{1,3}))?")
_NUMBER: Final = re.compile(r"\d+")
_WORST: Final = ("aligned", "unknown", "misaligned")
_CONDITIONS: Final[dict[str, tuple[Truth, str]]] = {
    "aligned": ("True", "Aligned"),
    "misaligned": ("False", "Misaligned"),
}

Subject = tuple[str, str]
"""Topic without its partition, and subscription (empty: the topic itself)."""


@dataclass(frozen=True, slots=True)
class Row:
    """The verdict on one subject; for a partitioned topic, on one partition of it."""

    verifier: str
    run: str
    verdict: str
    """aligned, misaligned or unknown."""
    time: str
    expires: str
    """When an *aligned* verdict becomes unknown, according to the document; empty: it does not say."""
    detail: str


class Verdicts:
    """The verifiers' ConfigMaps, parsed as they arrive, by subject.

    :param verifiers: NAMEs of the trusted verifiers.
    """

    def __init__(self, verifiers: Collection[str] = ()) -> None:
        self._verifiers = frozenset(verifiers)
        self._rows: dict[Subject, dict[str, tuple[Row, ...]]] = {}
        self._subjects: dict[str, frozenset[Subject]] = {}
        self._runs: dict[str, str] = {}
        self.problem = ""
        """Why the ConfigMaps cannot be read; empty: they can."""

    def put(self, body: Mapping[str, Any]) -> None:
        """A ConfigMap was created or has changed."""
        meta = body["metadata"]
        name = str(meta["name"])
        self.forget(name)
        verifier = self._verifier(name, meta.get("labels") or {})
        document = None if verifier is None else _document(body.get("data") or {})
        if verifier is None or document is None:
            return
        if document.shard is None and name == _head_name(verifier):
            self._runs[verifier] = document.run
        rows = _rows(verifier, document)
        self._subjects[name] = frozenset(rows)
        for subject, some in rows.items():
            self._rows.setdefault(subject, {})[name] = some

    def forget(self, name: str) -> None:
        """A ConfigMap was deleted."""
        for verifier in [one for one in self._runs if _head_name(one) == name]:
            del self._runs[verifier]
        for subject in self._subjects.pop(name, ()):
            some = self._rows[subject]
            del some[name]
            if not some:
                del self._rows[subject]

    def keep(self, names: Collection[str]) -> None:
        """Forget all ConfigMaps but these."""
        for name in self._subjects.keys() - set(names):
            self.forget(name)

    def on(self, topic: str, subscription: str, now: str) -> Row | None:
        """The newest run's verdict on a subject, the worst of its rows; None: no run covers it.

        A topic's problems count for its subscriptions, even for those that no row names.

        :param subscription: empty: the topic itself.
        :param now: the time, formatted as in verdicts.
        """
        latest = _seconds(now) + SKEW_SECONDS
        rows = [row for some in self._rows.get((topic, subscription), {}).values() for row in some]
        if subscription:
            of_topic = self._rows.get((topic, ""), {}).values()
            rows += [row for some in of_topic for row in some if row.verdict != "aligned"]
        by_verifier: dict[str, list[Row]] = {}
        for row in rows:
            if self._runs.get(row.verifier) == row.run and _seconds(row.time) <= latest:
                by_verifier.setdefault(row.verifier, []).append(row)
        newest = max(by_verifier.values(), key=lambda some: (some[0].time, max(map(_badness, some))), default=None)
        if newest is None:
            return None
        worst = max(newest, key=_badness)
        details = dict.fromkeys(row.detail for row in newest if row.verdict == worst.verdict and row.detail)
        return Row(worst.verifier, worst.run, worst.verdict, worst.time, worst.expires, "; ".join(details)[:DETAIL])

    def _verifier(self, name: str, labels: Mapping[str, str]) -> str | None:
        """The verifier whose ConfigMap this is; None: not a listed verifier's."""
        found = _NAME.fullmatch(name)
        if found is None or found[1] not in self._verifiers or labels.get(LABEL) != found[1]:
            return None
        return found[1] if found[2] is None or 1 <= int(found[2]) <= SHARDS else None


def aligned(verdict: Row | None, now: str, problem: str = "") -> Finding:
    """The condition Aligned.

    An aligned verdict counts until it expires; a misaligned one until another run says otherwise.

    :param now: the time, formatted as in verdicts.
    :param problem: why verdicts cannot be read; empty: they can.
    """
    if verdict is None and problem:
        return Finding(ALIGNED, "Unknown", "VerdictsUnreadable", f"the operator cannot read verdicts: {problem}")
    if verdict is None:
        return Finding(ALIGNED, "Unknown", "NotVerifiedYet", "no verifier has compared this yet")
    stale = _seconds(now) - _seconds(verdict.time) > LONGEST_DAYS * 86_400
    if verdict.verdict == "aligned" and (stale or (verdict.expires and verdict.expires < now)):
        why = f"no verdict counts for more than {LONGEST_DAYS} days" if stale else f"it expired at {verdict.expires}"
        said = f"it was aligned when verified at {verdict.time}, but that verdict no longer counts: {why}"
        return Finding(ALIGNED, "Unknown", "VerdictExpired", f"{said}: check why the verifier did not run again")
    truth, reason = _CONDITIONS.get(verdict.verdict, ("Unknown", "RegionUnknown"))
    told = verdict.detail or "every region is at the same position"
    return Finding(ALIGNED, truth, reason, f"{told} (verified {verdict.time})")


def _rows(verifier: str, document: VerdictDocument) -> dict[Subject, tuple[Row, ...]]:
    expires = document.expires or ""
    found: dict[Subject, list[Row]] = {}
    for row in document.subscriptions:
        told = Row(verifier, document.run, row.verdict, document.time, expires, row.detail[:DETAIL])
        found.setdefault((_base(row.topic), row.subscription), []).append(told)
    return {subject: tuple(rows) for subject, rows in found.items()}


def _document(data: Mapping[str, str]) -> VerdictDocument | None:
    try:
        document = VerdictDocument.model_validate_json(data.get(DOCUMENT, ""))
        _seconds(document.time)
    except ValueError:  # pydantic's errors are too
        return None
    return document


@lru_cache(maxsize=256)  # every row of a run has the run's time
def _seconds(time: str) -> int:
    """Seconds since 1970 of a time in UTC, formatted as in verdicts.

    :raises ValueError: there is no such year or month.
    """
    return calendar.timegm(tuple(int(number) for number in _NUMBER.findall(time)))


def _head_name(verifier: str) -> str:
    return f"meridian-verdict-{verifier}"


def _badness(row: Row) -> int:
    """A verdict that this version does not recognize counts as unknown."""
    return _WORST.index(row.verdict) if row.verdict in _WORST else _WORST.index("unknown")


def _base(topic: str) -> str:
    """The topic's name without a partition suffix."""
    head, separator, number = topic.rpartition("-partition-")
    return head if separator and number.isdigit() else topic
