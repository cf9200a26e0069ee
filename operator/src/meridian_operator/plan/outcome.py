# SPDX-License-Identifier: Apache-2.0
"""Plans, and the conditions derived from them for people and ``kubectl wait``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from meridian_operator.api.fields import Condition
from meridian_operator.plan.changes import Change

Truth = Literal["True", "False", "Unknown"]

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
REPLICATING: Final = "Replicating"
ALIGNED: Final = "Aligned"
DRIFTED: Final = "Drifted"
DELETION_BLOCKED: Final = "DeletionBlocked"
SYNCED: Final = "Synced"


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition without its time. The time of the last status is kept while the truth value is unchanged."""

    type: str
    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change, and problems that the operator cannot fix."""

    changes: tuple[Change, ...] = ()
    problems: tuple[tuple[str, str, str], ...] = ()
    """Region, reason (one word) and sentence."""
    waiting: tuple[str, ...] = field(default=())
    """What will resolve by itself, one sentence each."""
    kept: tuple[str, ...] = field(default=())
    """What a deletion leaves, because the object names it but something else made it, one sentence each."""

    @property
    def is_done(self) -> bool:
        return not self.changes and not self.problems and not self.waiting

    def first_problems(self) -> dict[str, str]:
        """Region -> the first problem there."""
        return {region: sentence for region, _, sentence in reversed(self.problems)}


def judge(
    plan: Plan, regions: Sequence[str], failures: Iterable[tuple[str, str]] = (), warnings: Sequence[str] = ()
) -> list[Finding]:
    """Ready, Progressing and Degraded.

    :param regions: all regions that the object names.
    :param failures: refused changes: region and sentence.
    :param warnings: what to do soon about the operator's tokens, one sentence each.
    """
    failed = tuple(failures)
    wrong = {region for region, _, _ in plan.problems} | {region for region, _ in failed}
    sentences = [sentence for _, _, sentence in plan.problems] + [sentence for _, sentence in failed]
    if sentences:
        reason = plan.problems[0][1] if plan.problems else "ChangeRefused"
        text = "; ".join(sentences)[:4000]
        return [
            Finding(READY, "False", reason, text),
            Finding(PROGRESSING, "True", "Retrying", "the operator retries automatically"),
            Finding(DEGRADED, "True", reason, f"{len(wrong)} of {len(regions)} regions: {text}"[:4000]),
        ]
    degraded = Finding(DEGRADED, "False", "AllRegionsAnswer", "every region answers")
    if warnings:
        degraded = Finding(DEGRADED, "True", "TokenExpires", "; ".join(warnings)[:4000])
    if plan.changes or plan.waiting:
        text = "; ".join([*(change.sentence() for change in plan.changes), *plan.waiting])[:4000]
        return [
            Finding(READY, "False", "Progressing", text),
            Finding(PROGRESSING, "True", "Changing" if plan.changes else "Waiting", text),
            degraded,
        ]
    return [
        Finding(READY, "True", "AsSpecified", f"all {len(regions)} regions are as specified"),
        Finding(PROGRESSING, "False", "Settled", "no changes remain"),
        degraded,
    ]


def drifted(changes: Sequence[Change]) -> Finding:
    """Did somebody else change what this object manages?

    :param changes: what had to be changed although everything matched the spec before.
    """
    if changes:
        text = "; ".join(change.sentence() for change in changes)[:4000]
        return Finding(DRIFTED, "True", "Healed", f"changed by hand or by another tool, and reverted: {text}")
    return Finding(DRIFTED, "False", "NoDrift", "no external changes detected")


def merged(
    before: Sequence[Condition], found: Iterable[Finding], generation: int, now: str, *, keep: bool = False
) -> list[Condition]:
    """The conditions to write. A condition's time changes only with its status.

    :param keep: keep conditions whose type ``found`` lacks. Otherwise they are removed.
    """
    known = {condition.type: condition for condition in before}
    found = tuple(found)
    spoken = {one.type for one in found}
    kept = [condition for condition in before if keep and condition.type not in spoken]
    return [
        Condition(
            type=one.type,
            status=one.status,
            observed_generation=generation,
            last_transition_time=(
                known[one.type].last_transition_time
                if one.type in known and known[one.type].status == one.status
                else now
            ),
            reason=one.reason,
            message=one.message,
        )
        for one in found
    ] + kept
