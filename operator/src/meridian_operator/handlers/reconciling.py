# SPDX-License-Identifier: Apache-2.0
"""What the handlers of every kind do: look at the regions, plan, change, look again, and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import kopf
from pydantic import BaseModel, ValidationError

from meridian_operator.handlers.reporting import Report
from meridian_operator.handlers.world import DRY_RUN, PAUSED, World, apply, asked, known, observe
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan, judge

RESYNC_SECONDS: Final = 15.0
"""How often an object is looked at though nothing happened: regions come back, and people change things by hand."""
GIVE_UP_SECONDS: Final = 300.0
"""A deletion waits so long for a region that does not answer."""
AGAIN_SECONDS: Final = 10.0
"""A deletion that is not done in every region is tried again after so long."""

Spec = TypeVar("Spec", bound=BaseModel)


def wanted(body: Mapping[str, Any], model: type[Spec], report: Report) -> Spec | None:
    """What the object asks for; None, told in its status, when nobody is to look or it makes no sense."""
    if asked(body, PAUSED):
        report.paused()
        return None
    try:
        return model.model_validate(dict(body["spec"]))
    except (ValidationError, ValueError) as error:
        report.refuse("InvalidSpec", str(error))
        return None


def ruled_by_another(body: Mapping[str, Any], same: Iterable[tuple[str, str, str]], what: str, report: Report) -> bool:
    """Of objects that want the same thing the oldest rules it. Told in the status of the others.

    :param same: all of them: creation time, namespace, name.
    """
    meta = body["metadata"]
    oldest = min(same, default=None)
    if oldest is None or oldest[1:] == (meta["namespace"], meta["name"]):
        return False
    report.refuse("ConflictingResource", f"{oldest[1]}/{oldest[2]} is older and rules {what}: delete one of the two")
    return True


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one reconciliation ended."""

    seen: list[RegionSeen]
    planned: Plan
    """What is left to do."""
    findings: list[Finding]
    """Ready, Progressing and Degraded."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one object: ``names`` are those it names, ``index`` those that were found."""

    world: World
    index: Mapping[str, Any]
    names: Sequence[str]
    topic: TopicName
    subscription: str | None = None

    async def reconcile(
        self, body: Mapping[str, Any], plan: Callable[[list[RegionSeen]], Plan], report: Report
    ) -> Outcome | None:
        """Bring every region to what is planned. None after a dry run, which is told in the status."""
        found = known(self.index)
        seen = await self._see()
        planned = plan(seen)
        if asked(body, DRY_RUN):
            report.dry_run(planned)
            return None
        failures = await apply(self.world, found, planned.changes)
        report.events(planned.changes, failures)
        if planned.changes:
            seen = await self._see()
            planned = plan(seen)
        return Outcome(seen, planned, judge(planned, self.names, failures))

    async def remove(self, plan: Callable[[list[RegionSeen]], Plan]) -> None:
        """Carry out a deletion.

        :raises kopf.TemporaryError: it is not done in every region yet.
        """
        planned = plan(await self._see())
        failures = await apply(self.world, known(self.index), planned.changes)
        undone = [sentence for _, _, sentence in planned.problems] + [sentence for _, sentence in failures]
        if undone:
            raise kopf.TemporaryError("; ".join(undone), delay=AGAIN_SECONDS)

    async def _see(self) -> list[RegionSeen]:
        return await observe(self.world, known(self.index), self.names, self.topic, self.subscription)
