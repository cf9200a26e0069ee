# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/subscriptions``: the state of a subscription here and in the other regions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask, reason
from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.backlogs import Backlog, backlog_of
from meridian_broker.admin.figures.filling import fill
from meridian_broker.admin.http.requests import Refused, answer, body, flag, part, state, topic_of
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.meridian.scoping import dispatched
from meridian_broker.admin.pulsar.subscriptions import by_topic, named
from meridian_broker.metadata.errors import Invalid
from meridian_broker.positions.clock import ZERO
from meridian_broker.replication.progress.lag import Why
from meridian_broker.topics.subscriptions.administration import damage as claim_unacked
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic

ASK_SECONDS: Final = 5.0
"""A region that takes longer to answer counts as unreachable."""
FAULTS: Final = 1000
"""Maximum number of entries that one call may lose."""


async def status(request: web.Request) -> web.Response:
    """Progress of a subscription by origin region, and how far each other region is synced, per partition.

    ``?allRegions=true``: as each region of the topic sees it, with the reason for each region that does not answer.
    """
    if flag(request, "allRegions"):
        return answer(await status_everywhere(request, partial(named, request), partial(_status_here, request)))
    return answer(await _status_here(request))


async def _status_here(request: web.Request) -> dict[str, Any]:
    shown = {}
    for topic, subscription in await by_topic(request):
        shown[topic.name] = _status(state(request), topic, subscription, await backlog_of(subscription))
    head = {
        "subscription": part(request, "subscription"),
        "region": state(request).region,
        "synced": all(one["synced"] for one in shown.values()),
    }
    if len(shown) == 1:
        return head | next(iter(shown.values()))
    return head | {"backlog": sum(one["backlog"] for one in shown.values()), "partitions": shown}


async def status_everywhere(
    request: web.Request, check: Callable[[], Awaitable[object]], told_here: Callable[[], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Each region's status, by its name.

    :param check: raises if the subscription does not exist: that is answered before other regions are asked.
    :param told_here: returns this region's.
    """
    admin = state(request)
    await check()
    others = sorted(admin.service.parts.regions_of(str(topic_of(request))) - {admin.region})
    said = await asyncio.gather(*(_status_of(admin, region, request.rel_url.raw_path) for region in others))
    here = await told_here()  # last: the lag grows while this waits for a region that does not answer
    regions = {admin.region: here} | dict(zip(others, said, strict=True))
    _tell_one_sided(regions)
    return {"subscription": here["subscription"], "region": admin.region, "regions": regions}


def _tell_one_sided(regions: Mapping[str, dict[str, Any]]) -> None:
    """Report a region that counts another among the topic's regions but not vice versa, even while there is nothing
    that the other could refuse."""
    parts = {region: _parts(seen) for region, seen in regions.items() if "problem" not in seen}
    counted = {region: {peer["region"] for one in own for peer in one["peers"]} for region, own in parts.items()}
    for region, own in parts.items():
        for one in own:
            for peer in one["peers"]:
                other = peer["region"]
                follows = all(part["replicated"] for part in parts.get(other, ()))
                if other in parts and follows and region not in counted[other] and not peer["reason"]:
                    peer["reason"] = str(Why.NOT_A_REGION)
                    peer["detail"] = f"{other} does not count {region} among the regions of {one['topic']}"


def _parts(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return list(seen["partitions"].values()) if "partitions" in seen else [seen]


async def _status_of(admin: AdminState, region: str, path: str) -> dict[str, Any]:
    """Another region's answer; ``problem``: why there is none, or that it has no such subscription."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            status, said = await ask(admin, region, "GET", path)
    except Refused as refused:
        return {"region": region, "problem": str(refused), "missing": False}
    except TimeoutError:
        return {"region": region, "problem": f"{region} does not answer", "missing": False}
    if status != 200 or not isinstance(said, dict):
        return {"region": region, "problem": f"{region} answered {status}: {reason(said)}", "missing": status == 404}
    return said


async def damage(request: web.Request) -> web.Response:
    """For testing the verifier only: lose messages on purpose. The body is ``{"entries": number}``."""
    if not state(request).faults:
        raise Refused(405, "this loses messages on purpose: set faultInjectionEnabled=true to allow it")
    given = await body(request)
    entries = given.get("entries") if isinstance(given, Mapping) else None
    if not isinstance(entries, int) or not 0 < entries <= FAULTS:
        raise Invalid(f'expected the body {{"entries": number}}, at most {FAULTS}')
    lost = {}
    for subscription in await named(request):
        lost[subscription.topic.name] = [str(position) for position in await claim_unacked(subscription, entries)]
    return answer({"claimed": lost})


def _status(admin: AdminState, topic: Topic, subscription: Subscription, stands: Backlog) -> dict[str, Any]:
    progress = subscription.cursor.progress
    exact = subscription.durable and subscription.replicated
    peers = lagging.peers(admin, subscription)
    return {
        "topic": topic.name,
        "mode": "exact" if exact else "local",
        "durable": subscription.durable,
        "replicated": subscription.replicated,
        "epoch": "" if progress.epoch == ZERO else str(progress.epoch),
        "mark_delete": str(stands.mark_delete),
        "backlog": stands.backlog,
        "holes": len(stands.holes),
        "acked_beyond_mark_delete": [[str(after), str(upto)] for after, upto in stands.holes[:100]],
        "floors": {region: str(floor) for region, floor in sorted(progress.floors().items())},
        "set_size": progress.count_detail(),
        "set_bytes": len(progress.encode()),
        "consumers": len(subscription.consumers),
        "idle_ms": _idle_ms(subscription),
        "waits_for_barrier": subscription.barrier,
        "fill": fill(topic),
        **dispatched(admin, subscription),
        "synced": lagging.is_in_step(peers),
        "peers": [lagging.peer_json(admin, peer) for peer in peers],
        "pulsar": lagging.from_pulsar(admin, topic, subscription),
    }


def _idle_ms(subscription: Subscription) -> int:
    """Milliseconds without a consumer here, as far as this broker knows; 0 while it has one."""
    if subscription.consumers:
        return 0
    last_used_ms = max(subscription.cursor.last_acked_ms, subscription.last_left_ms)
    return max(0, subscription.topic.scheduler.now_ms() - last_used_ms)
