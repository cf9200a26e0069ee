# SPDX-License-Identifier: Apache-2.0
"""Deletion of objects with policy Delete, whose finalizer keeps them until every region has deleted.

Data that another object still names stays. A region that does not answer blocks the deletion indefinitely: the object
reports it, and is removed only once the region is back or a user abandons that region by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meridian_operator.api.fields import GROUP, DeletionPolicy
from meridian_operator.api.settings import ALL_TENANTS
from meridian_operator.handlers.annotations import ABANDON, DRY_RUN, PAUSED, abandoned, is_on, value_of
from meridian_operator.handlers.reporting import Answer, Report
from meridian_operator.handlers.subject import Spec, Subject, Wish
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import Event
from meridian_operator.plan.contenders import ruler

FINALIZER: Final = f"{GROUP}/finalizer"
"""Set only on objects that manage their topic and have deletion policy Delete."""


async def farewell(subject: Subject[Spec], wish: Wish[Spec], world: World, report: Report) -> Answer:
    """One step of a deletion."""
    body, what = wish.body, subject.what(wish)
    if wish.spec.deletion_policy is DeletionPolicy.RETAIN:
        return _released(body, None)
    if not wish.is_allowed:
        return _released(body, Event("NothingDeleted", f"{not_allowed(wish)}. {what} is left unchanged", warning=True))
    first = ruler(subject.contenders(wish))
    if first is not None and first.uid != wish.uid:
        return _released(body, Event("NothingDeleted", f"{first} manages {what}, which is left unchanged"))
    other = subject.heir(wish)
    if other is not None:
        return _released(body, Event("HandedOver", f"{what} stays: {other} names it too and now manages it"))
    if is_on(body, PAUSED):
        text = f"annotation {PAUSED} is set, and {what} is left unchanged"
        return report.blocked(str(body["metadata"]["deletionTimestamp"]), text)
    return await _delete(subject, wish, world, report)


async def _delete(subject: Subject[Spec], wish: Wish[Spec], world: World, report: Report) -> Answer:
    body, what = wish.body, subject.what(wish)
    since = str(body["metadata"]["deletionTimestamp"])
    names = subject.ending(wish)
    given_up = abandoned(body, names)
    asked = [name for name in names if name not in given_up]
    planned = subject.deletion(wish, await subject.see(wish, world, asked), given_up)
    if is_on(body, DRY_RUN):
        sentences = [change.sentence() for change in planned.changes]
        return report.blocked(since, f"annotation {DRY_RUN} is set: see status.plan", sentences)
    is_deleting = bool(planned.changes)
    failures = [] if planned.problems else await world.apply(planned.changes)
    if planned.changes and not planned.problems and not failures:
        planned = subject.deletion(wish, await subject.see(wish, world, asked), given_up)
    wrong = [sentence for _, _, sentence in planned.problems] + [sentence for _, sentence in failures]
    if wrong:
        hint = f"To delete without a region and keep its copy, set annotation {ABANDON} to its name"
        return report.blocked(since, f"{'; '.join(wrong)}. {hint}")
    if planned.changes:
        return report.deleting("; ".join(change.sentence() for change in planned.changes))
    if given_up:
        text = (
            f"annotation {ABANDON} abandoned {', '.join(given_up)}: {what} stays there, unless the region "
            "learns of the deletion from the others"
        )
        return _released(body, Event("RegionsAbandoned", text, warning=True))
    if planned.kept and not is_deleting:  # else another topic of that name was made just now
        return _released(body, Event("NothingDeleted", "; ".join(planned.kept), warning=True))
    text = f"{what} is deleted in {', '.join(names) or 'no region'}"
    left = ", ".join(wish.history.left)
    return _released(
        body, Event("Deleted", f"{text}; copies stay in {left}, removed from the spec earlier" if left else text)
    )


def farewell_unread(body: Mapping[str, Any], report: Report) -> Answer:
    """The deletion of an object whose spec is invalid: what to delete is unknown."""
    if value_of(body, ABANDON) == "*":
        text = f"annotation {ABANDON} abandoned every region: whatever the object created there stays"
        return _released(body, Event("RegionsAbandoned", text, warning=True))
    since = str(body["metadata"]["deletionTimestamp"])
    return report.blocked(since, f"its spec is invalid. Correct it, or set annotation {ABANDON} to *")


def not_allowed(wish: Wish[Spec]) -> str:
    """Why an object may not do what it specifies."""
    namespace, _ = wish.full_name
    tenant = wish.tenant
    if tenant == ALL_TENANTS:
        return (
            f"objects in namespace {namespace} may not manage metadata of all tenants: set "
            f"tenantsByNamespace.{namespace} to [*] in the operator's chart values"
        )
    return (
        f"objects in namespace {namespace} may not manage topics of tenant {tenant}: add the tenant to "
        f"tenantsByNamespace.{namespace} in the operator's chart values"
    )


def _released(body: Mapping[str, Any], event: Event | None) -> Answer:
    finalizers = tuple(one for one in body["metadata"].get("finalizers") or () if one != FINALIZER)
    return Answer(finalizers=finalizers, events=() if event is None else (event,))
