# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/subscriptions/.../scope``: which region dispatches which messages of a subscription (R25, R26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.requests import Refused, answer, body, done, part, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar.subscriptions import named
from meridian_broker.metadata.errors import Invalid
from meridian_broker.topics.dispatch_scope import origin_streams
from meridian_broker.topics.journal.subscription_record import LOCAL, ORIGIN
from meridian_broker.topics.subscriptions.administration import scope_subscription
from meridian_broker.topics.subscriptions.subscription import Subscription

SCOPES: Final = (LOCAL, ORIGIN)
_WANTED: Final = (
    'expected the body {"dispatchScope": "local" or "origin"}, {"witness": REGION or ""}, '
    '{"dispatchScope": "origin", "witness": REGION}, or {"takeOver": {"origin": REGION, "by": REGION}}'
)


async def get_scope(request: web.Request) -> web.Response:
    """The dispatch scope of a subscription, and which region dispatches each region's messages, per partition."""
    shown = {one.topic.name: dispatched(state(request), one) for one in await named(request)}
    head = {"subscription": part(request, "subscription"), "region": state(request).region}
    return answer(head | (next(iter(shown.values())) if len(shown) == 1 else {"partitions": shown}))


async def set_scope(request: web.Request) -> web.Response:
    """Set the dispatch scope in all regions, or let one region take over the dispatch of another one's messages.

    With three regions or more a take-over is a preference: the lease still needs a majority. With two it takes the vote
    from the old region: if that one is alive but cut off, both dispatch the same messages.

    A witness is a region that votes although it does not have the topic, so that one of two regions can take over from
    the other automatically."""
    given = await body(request)
    found = await named(request)
    named_well = isinstance(given, Mapping) and (
        given.keys() <= {"dispatchScope", "witness"} or list(given) == ["takeOver"]
    )
    if not named_well or not given:
        raise Invalid(_WANTED)
    if "takeOver" in given:
        origin, holder = _take_over(given["takeOver"])
        for subscription in found:
            _check_take_over(subscription, origin, holder)
        for subscription in found:
            kept = {known: region for known, region in subscription.record.preferred.items() if known != origin}
            preferred = kept if origin == holder else kept | {origin: holder}
            await scope_subscription(subscription, ORIGIN, preferred)
        return done()
    wanted, witness = given.get("dispatchScope"), given.get("witness")
    if wanted not in (None, *SCOPES) or not isinstance(witness, str | None) or (wanted == LOCAL and witness):
        raise Invalid(_WANTED)
    for subscription in found:
        _check(state(request), subscription, wanted, witness)
    for subscription in found:
        record = subscription.record
        wants = (wanted or record.scope, record.witness if witness is None else witness)
        if wants != (record.scope, record.witness):
            await scope_subscription(subscription, wants[0], record.preferred, wants[1])
    return done()


def _take_over(given: object) -> tuple[str, str]:
    origin, holder = (given.get("origin"), given.get("by")) if isinstance(given, Mapping) else (None, None)
    if not isinstance(origin, str) or not isinstance(holder, str):
        raise Invalid(_WANTED)
    return origin, holder


def _check_take_over(subscription: Subscription, origin: str, holder: str) -> None:
    if subscription.record.scope != ORIGIN:
        raise Refused(412, f"{subscription.name!r} has dispatch scope local: each region already dispatches everything")
    if holder not in subscription.topic.regions():
        raise Refused(412, f"{holder} is not a region of {subscription.topic.name}")
    if origin not in origin_streams.origins_of(subscription):
        raise Refused(412, f"{subscription.topic.name} has no messages of region {origin}")


def _check(admin: AdminState, subscription: Subscription, wanted: str | None, witness: str | None) -> None:
    """:raises Refused: a region of the topic, or the witness, is not known to take part in leases."""
    topic = subscription.topic
    if witness and witness not in admin.catalog.known_clusters():
        raise Refused(412, f"{witness} cannot be a witness of {topic.name}: this region knows no region of that name")
    if witness and (objection := admin.leases.objection_to_witness(witness)):
        raise Refused(412, f"{witness} cannot be a witness of {topic.name}: {objection}")
    if wanted is None and subscription.record.scope != ORIGIN:
        raise Refused(412, f"{subscription.name!r} has dispatch scope local, so no region votes on it")
    if wanted != ORIGIN:
        return
    if not subscription.durable or not subscription.replicated:
        raise Refused(412, f"{subscription.name!r} is not replicated: switch replication on first")
    if any(consumer.read_compacted for consumer in subscription.consumers):
        raise Refused(412, f"{subscription.name!r} is read as a compacted view, which scope origin does not support")
    objection = origin_streams.elsewhere(topic) or admin.leases.objection(topic.regions(), sure=True)
    if objection:
        raise Refused(412, f"{topic.name} cannot have dispatch scope origin: {objection}")


def dispatched(admin: AdminState, subscription: Subscription) -> dict[str, Any]:
    """For status: the scope, whether it is in force, and which region dispatches what."""
    record, topic = subscription.record, subscription.topic
    if record.scope != ORIGIN:
        return {"dispatch_scope": LOCAL}
    objection = origin_streams.objection(subscription)
    shown: list[dict[str, Any]] = []
    owed = origin_streams.owed(subscription)
    for origin in [] if objection else origin_streams.origins_of(subscription):
        holder, left_ms, reason = admin.leases.holder_of((topic.name, subscription.name, origin))
        shown.append(
            {
                "origin": origin,
                "home": origin_streams.preferred_holder(subscription, origin),
                "dispatched_by": holder,
                "lease_ms_left": left_ms,
                "reason": reason,
                "owed": None if owed is None else owed.get(origin, 0),
            }
        )
    return {
        "dispatch_scope": ORIGIN,
        "in_force": not objection,
        "scope_reason": objection,
        "witness": record.witness,
        "voters": [list(voters) for _, voters in record.voter_sets.lists],
        "voters_agreed": record.voter_sets.is_committed,
        "shares": shown,
    }
