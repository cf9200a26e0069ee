# SPDX-License-Identifier: Apache-2.0
"""Turns findings into the status to write and at most one Event. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from meridian_operator.api.fields import Condition, Status
from meridian_operator.kube.client import Event
from meridian_operator.plan.changes import Change
from meridian_operator.plan.metadata_sync import CATCHING_UP, SYNC_BLOCKED
from meridian_operator.plan.outcome import (
    ALIGNED,
    DELETION_BLOCKED,
    PROGRESSING,
    READY,
    SYNCED,
    Finding,
    Plan,
    merged,
)

RESYNC_SECONDS: Final = 15.0
"""Interval between looks without an event: regions come back, and people change things by hand."""
AGAIN_SECONDS: Final = 3.0
"""Delay before the next look at an object whose changes are in progress."""
MESSAGE_CHARACTERS: Final = 4000
PLAN_SENTENCES: Final = 64
_QUIET: Final = ("Progressing", "Paused", "DryRun", "WaitingForTopic", "WaitingForSource")
"""Reasons of Ready that cause no Event: the user knows, or the state is temporary."""

_SOON: Final = ((READY, "Progressing"), (SYNCED, CATCHING_UP))
"""Conditions with these reasons will change without a change of the object: it is looked at again soon."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What to write after one look at an object."""

    status: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the status to replace."""
    pressing: bool = False
    """The status says something new; otherwise only numbers changed, and the write can wait."""
    finalizers: tuple[str, ...] | None = None
    """None: unchanged."""
    events: tuple[Event, ...] = ()
    again_seconds: float = RESYNC_SECONDS


class Report:
    """Turns findings on one object into an answer.

    :param now: the time, formatted as in conditions.
    """

    def __init__(self, body: Mapping[str, Any], now: str) -> None:
        self._body = body
        self.now = now
        self.verified: Finding | None = None
        """The condition Aligned: it expires even where the other conditions stay as they were."""
        self._before = [Condition.model_validate(one) for one in (body.get("status") or {}).get("conditions", ())]

    def found(self, findings: Iterable[Finding], status: Status, done: Sequence[Change] = ()) -> Answer:
        """After a look at the regions.

        :param done: the changes that were made.
        """
        rest = status.model_dump(mode="json", by_alias=True, exclude={"conditions", "observed_generation"})
        findings = [*findings, *([] if self.verified is None else [self.verified])]
        made = self._answer(findings, rest)
        if any((one.type, one.reason) in _SOON for one in findings):
            made = replace(made, again_seconds=AGAIN_SECONDS)
        made = replace(made, events=(*made.events, *self._conflicts_event(rest)))
        warned = {change.warning for change in done} - {""}
        made = replace(made, events=(*made.events, *(self._warning(reason, done) for reason in sorted(warned))))
        if not done or any(one.warning for one in made.events):
            return made
        told = next((one.message for one in self._before if (one.type, one.reason) == (READY, "Progressing")), "")
        sentences = [said for change in done if (said := change.sentence()) not in told]
        if not sentences:  # asked for again, because the region has not done it yet
            return made
        return replace(made, events=(Event("Changed", "; ".join(sentences)),))

    def _warning(self, reason: str, done: Sequence[Change]) -> Event:
        return Event(reason, "; ".join(one.sentence() for one in done if one.warning == reason), warning=True)

    def dry_run(self, planned: Plan) -> Answer:
        """Report planned changes. The other conditions stay."""
        sentences = [*(change.sentence() for change in planned.changes), *(one[2] for one in planned.problems)]
        text = f"annotation meridian.dev/dry-run is set; {len(planned.changes)} changes planned: see status.plan"
        told = [sentence[:512] for sentence in sentences[:PLAN_SENTENCES]]
        return self._answer([Finding(READY, "Unknown", "DryRun", text)], {"plan": told}, keep=True)

    def paused(self) -> Answer:
        """The object is left alone. The other conditions stay."""
        text = "annotation meridian.dev/paused is set: the operator leaves this object alone"
        return self._answer([Finding(READY, "Unknown", "Paused", text)], keep=True)

    def refused(self, reason: str, message: str) -> Answer:
        """The object itself is at fault. What the status said about the regions no longer holds."""
        return self._answer(
            [
                Finding(READY, "False", reason, message),
                Finding(PROGRESSING, "False", reason, "nothing happens until this object is changed"),
            ],
            {"regions": [], "regionsReady": "", "plan": []} if self._has_regions() else {},
        )

    def waiting(self, reason: str, message: str) -> Answer:
        """Something else must happen first, and will trigger a look at this object."""
        return self._answer(
            [Finding(READY, "False", reason, message), Finding(PROGRESSING, "True", "Waiting", message)]
        )

    def blocked(self, since: str, why: str, planned: Sequence[str] = ()) -> Answer:
        """The deletion cannot proceed yet."""
        text = f"the deletion has waited since {since}: {why}"
        made = self._answer(
            [Finding(READY, "False", DELETION_BLOCKED, text), Finding(DELETION_BLOCKED, "True", "Waiting", text)],
            {"plan": [one[:512] for one in planned[:PLAN_SENTENCES]]} if planned else {},
            keep=True,
        )
        return replace(made, again_seconds=AGAIN_SECONDS)

    def deleting(self, message: str) -> Answer:
        """The deletion is in progress."""
        made = self._answer([Finding(READY, "False", "Progressing", message)], keep=True)
        return replace(made, again_seconds=1.0)

    def _has_regions(self) -> bool:
        return bool((self._body.get("status") or {}).get("regions"))

    def _answer(
        self, findings: Iterable[Finding], rest: Mapping[str, Any] = MappingProxyType({}), *, keep: bool = False
    ) -> Answer:
        generation = int(self._body["metadata"].get("generation", 0))
        found = [*findings]
        if keep and self.verified is not None and any(one.type == ALIGNED for one in self._before):
            found.append(self.verified)
        short = [replace(one, message=one.message[:MESSAGE_CHARACTERS]) for one in found]
        after = merged(self._before, short, generation, self.now, keep=keep)
        status = {
            **rest,
            "observedGeneration": generation,
            "conditions": [one.model_dump(mode="json", by_alias=True) for one in after],
        }
        before = self._body.get("status") or {}
        changed = {key: value for key, value in status.items() if before.get(key) != value}
        return Answer(
            changed, self._is_pressing(changed, after), events=(*self._ready_event(after), *self._blocked_event(after))
        )

    def _is_pressing(self, changed: Mapping[str, Any], after: Sequence[Condition]) -> bool:
        if changed.keys() - {"conditions", *VOLATILE}:
            return True
        return [_essence(one) for one in self._before] != [_essence(one) for one in after]

    def _ready_event(self, after: Sequence[Condition]) -> tuple[Event, ...]:
        """An Event when a problem has appeared or has been resolved."""
        old = next((one for one in self._before if one.type == READY), None)
        new = next(one for one in after if one.type == READY)
        if new.reason in _QUIET or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
            return ()
        if new.status == "True" and (old is None or old.reason in _QUIET):
            return ()
        return (Event(new.reason, new.message, warning=new.status == "False"),)

    def _conflicts_event(self, status: Mapping[str, Any]) -> tuple[Event, ...]:
        """An Event when regions have written the same metadata concurrently: often found in the look that also finds a
        region reachable again."""
        before, now = _conflicts(self._body.get("status") or {}), _conflicts(status)
        new = {name: count for name, count in now.items() if count > before.get(name, 0)}
        if not new:
            return ()
        listed = ", ".join(f"{name} has {count}" for name, count in sorted(new.items()))
        text = f"metadata writes that lost to another region's: {listed}; see `meridian metadata conflicts`"
        return (Event("MetadataConflict", text, warning=True),)

    def _blocked_event(self, after: Sequence[Condition]) -> tuple[Event, ...]:
        """An Event when something starts to keep regions out of sync. The object stays Ready."""
        new = next((one for one in after if one.type == SYNCED and one.reason == SYNC_BLOCKED), None)
        if new is None or any(one.type == SYNCED and one.reason == SYNC_BLOCKED for one in self._before):
            return ()
        return (Event(new.reason, new.message, warning=True),)


def _conflicts(status: Mapping[str, Any]) -> dict[str, int]:
    """Region -> number of metadata conflicts that nobody has dismissed."""
    rows = [one for one in status.get("regions") or () if isinstance(one, Mapping)]
    return {str(one.get("name")): int(one.get("conflicts") or 0) for one in rows if one.get("conflicts")}


VOLATILE: Final = frozenset({"regions", "backlog", "maxLagSeconds", "lagEntries", "gapEntries", "autoResets"})
"""Status fields that change with traffic."""


def _essence(one: Condition) -> tuple[str, str, str, int]:
    return one.type, one.status, one.reason, one.observed_generation
