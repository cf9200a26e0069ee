# SPDX-License-Identifier: Apache-2.0
"""One look at one object, whatever triggered it: observe its regions, plan, apply, observe again, report.

Only an object that manages its topic or subscription, and is neither paused nor a dry run, touches a region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from meridian_operator.api.fields import DeletionPolicy
from meridian_operator.handlers.annotations import DRY_RUN, PAUSED, RECREATE, is_on, value_of
from meridian_operator.handlers.deleting import FINALIZER, farewell, farewell_unread, not_allowed
from meridian_operator.handlers.reporting import AGAIN_SECONDS, Answer, Report
from meridian_operator.handlers.subject import Look, Spec, Subject, Views, Wish
from meridian_operator.handlers.world import World
from meridian_operator.plan.contenders import ruler
from meridian_operator.plan.history import History
from meridian_operator.plan.outcome import READY, drifted, judge
from meridian_operator.plan.verdicts import Row, aligned


async def look(subject: Subject[Spec], body: Mapping[str, Any], views: Views, world: World) -> Answer:
    """Bring every region to the state that the object specifies.

    :param body: the object as Kubernetes stores it.
    """
    report = Report(body, world.now())
    meta = body["metadata"]
    holds = FINALIZER in (meta.get("finalizers") or ())
    leaving = meta.get("deletionTimestamp")
    if leaving and not holds:
        return Answer()
    try:
        spec: Spec = subject.model.model_validate(dict(body["spec"]))
    except ValidationError as error:
        return farewell_unread(body, report) if leaving else report.refused("InvalidSpec", str(error))
    wish = Wish(spec, body, views, history_of(body), world.settings, world.gone, report.now, subject.tenant(spec))
    verdict = None
    if subject.is_verified:
        verdict = world.verdicts.on(spec.topic, subject.place(wish)[1] or "", report.now)
        report.verified = aligned(verdict, report.now, world.verdicts.problem)
    if leaving:
        return await farewell(subject, wish, world, report)
    first = ruler(subject.contenders(wish))
    rules = wish.is_allowed and (first is None or first.uid == wish.uid)
    if holds != (rules and spec.deletion_policy is DeletionPolicy.DELETE):
        # Before anything is created: the deletion must find everything that this object creates.
        return Answer(finalizers=_toggled(meta.get("finalizers") or ()), again_seconds=AGAIN_SECONDS)
    if not wish.is_allowed:
        return report.refused("TenantNotAllowed", not_allowed(wish))
    if is_on(body, PAUSED):
        return report.paused()
    if not rules:
        text = f"{first} is older and manages {subject.what(wish)}; this object has no effect: delete one of the two"
        return report.refused("ConflictingResource", text)
    return await _reconcile(subject, wish, verdict, world, report)


async def _reconcile(
    subject: Subject[Spec], wish: Wish[Spec], verdict: Row | None, world: World, report: Report
) -> Answer:
    refusal = subject.refusal(wish)
    if refusal is not None:
        return report.waiting(*refusal) if refusal[0].startswith("Waiting") else report.refused(*refusal)
    names, history = subject.names(wish), wish.history
    asked = [*names, *sorted(history.established - set(names))]
    seen = await subject.see(wish, world, asked)
    first = planned = subject.plan(wish, seen)
    if is_on(wish.body, DRY_RUN):
        return report.dry_run(first)
    failures = await world.apply(first.changes)
    refused = {region for region, _ in failures}
    done = [change for change in first.changes if change.region not in refused]
    if first.changes:
        seen = await subject.see(wish, world, asked)
        planned = subject.plan(wish, seen)
    judged = judge(planned, names, failures, world.token_warnings(names))
    drift = [change for change in first.changes if change.is_healing]
    findings = [*judged, drifted(drift if history.as_specified else ())]
    more, status = subject.report(wish, Look(seen, planned, verdict))
    made_again = history.recreate and not failures
    token = value_of(wish.body, RECREATE)[:64] if made_again else (wish.body.get("status") or {}).get("recreated", "")
    return report.found([*findings, *more], status.model_copy(update={"recreated": token}), done)


def history_of(body: Mapping[str, Any]) -> History:
    """The history recorded in the object's status."""
    status = body.get("status") or {}
    ready: Mapping[str, Any] = next((one for one in status.get("conditions") or () if one.get("type") == READY), {})
    generation = body["metadata"].get("generation")
    return History(
        established=frozenset(status.get("established") or ()),
        left=tuple(status.get("left") or ()),
        managed=tuple(status.get("managed") or ()),
        silent={str(one["name"]): str(one["since"]) for one in status.get("silent") or ()},
        as_specified=ready.get("status") == "True" and ready.get("observedGeneration") == generation,
        recreate=value_of(body, RECREATE)[:64] not in ("", status.get("recreated", "")),
    )


def _toggled(finalizers: Sequence[str]) -> tuple[str, ...]:
    others = tuple(one for one in finalizers if one != FINALIZER)
    return others if FINALIZER in finalizers else (*others, FINALIZER)
