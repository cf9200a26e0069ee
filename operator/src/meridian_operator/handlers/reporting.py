# SPDX-License-Identifier: Apache-2.0
"""From what was found to the status and to Events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import kopf

from meridian_operator.api.shared import Condition, Status
from meridian_operator.handlers.world import now, write
from meridian_operator.plan.changes import Change
from meridian_operator.plan.outcome import PROGRESSING, READY, Finding, Plan, merged

EVENTS_AT_ONCE: Final = 20
"""Of one reconciliation. The status has them all."""


class Report:
    """What one reconciliation tells."""

    def __init__(self, body: kopf.Body, patch: kopf.Patch, model: type[Status]) -> None:
        self._body = body
        self._patch = patch
        self._model = model

    def write(self, findings: Iterable[Finding], status: Status) -> None:
        """Put conditions and the rest into the status; an Event when Ready changed."""
        rest = status.model_dump(mode="json", by_alias=True, exclude={"conditions", "observed_generation"})
        self._conditions(findings, rest)

    def events(self, changes: Sequence[Change], failures: Sequence[tuple[str, str]]) -> None:
        """An Event for each change that was made, and for each refusal."""
        refused = {sentence.split(": ", 1)[1] for _, sentence in failures}
        failed_regions = {region for region, _ in failures}
        for change in changes[:EVENTS_AT_ONCE]:
            if change.region not in failed_regions:
                kopf.info(self._body, reason=type(change).__name__, message=change.sentence())
        if refused:
            for _, sentence in failures[:EVENTS_AT_ONCE]:
                kopf.warn(self._body, reason="ChangeRefused", message=sentence)

    def dry_run(self, planned: Plan) -> None:
        """Say what would be done, and do nothing."""
        sentences = [change.sentence()[:512] for change in planned.changes][:64]
        text = f"{len(sentences)} changes would be made; annotation meridian.dev/dry-run holds them back"
        write(self._patch, self._body, {"plan": sentences})
        self._conditions([Finding(READY, "Unknown", "DryRun", text)])

    def paused(self) -> None:
        """Say that nobody looks."""
        self._conditions([Finding(READY, "Unknown", "Paused", "annotation meridian.dev/paused is true")])

    def refuse(self, reason: str, message: str) -> None:
        """The object itself is at fault."""
        self._conditions(
            [
                Finding(READY, "False", reason, message[:4000]),
                Finding(PROGRESSING, "False", reason, "nothing is done until this object is changed"),
            ]
        )

    def _conditions(self, findings: Iterable[Finding], rest: Mapping[str, Any] = MappingProxyType({})) -> None:
        generation = int(self._body["metadata"]["generation"])
        before = [Condition.model_validate(one) for one in self._body.get("status", {}).get("conditions", ())]
        after = merged(before, findings, generation, now())
        self._tell(before, after)
        write(
            self._patch,
            self._body,
            {
                **rest,
                "observedGeneration": generation,
                "conditions": [one.model_dump(mode="json", by_alias=True) for one in after],
            },
        )

    def _tell(self, before: Sequence[Condition], after: Sequence[Condition]) -> None:
        old = {one.type: one for one in before}
        for one in after:
            if one.type == READY and (one.type not in old or old[one.type].status != one.status):
                say = kopf.info if one.status == "True" else kopf.warn
                if one.reason != "Progressing":
                    say(self._body, reason=one.reason, message=one.message[:1000])
