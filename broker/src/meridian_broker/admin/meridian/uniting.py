# SPDX-License-Identifier: Apache-2.0
"""Switches replication of a subscription on and off, and reports beforehand what each region will skip (R17).

When it is switched on, the subscription moves in every region to the union of all: a message acknowledged anywhere is
delivered nowhere again. That skips messages in a region that had not consumed them, so the regions themselves report
how many: each one's progress is fetched, merged here, and sent back to each to count. Or one region's progress is taken
as it is (``from``): a new epoch for all, in which the other regions' acknowledgements of messages stored by then do not
count.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import QUESTION_SECONDS, SECONDS, ask, reason
from meridian_broker.admin.export.rows import effective
from meridian_broker.admin.http.requests import Refused, answer, body, part, state, topic_of
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar.shadows import check_not_shadow
from meridian_broker.admin.pulsar.subscriptions import named, replicate
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.metadata.errors import Invalid
from meridian_broker.positions import AckSet, Progress
from meridian_broker.positions.position import EARLIEST, Position, parse_position
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.cursors.drops import durable
from meridian_broker.topics.subscriptions.subscription import Subscription

Json = dict[str, Any]

SLICE: Final = 2000
"""Entries counted before other tasks run."""
FOLLOWS: Final = "; it will catch up when it is back"


async def progress(request: web.Request) -> web.Response:
    """A subscription's encoded progress, per partition. Other regions rely on it, so it is on disk first (R60)."""
    found = await named(request)
    told = _told(state(request), found)
    for subscription in found:
        await durable(subscription.topic)
    return answer(told)


async def preview(request: web.Request) -> web.Response:
    """What this region would skip with given progress; the body is ``{"progress": {topic: base64}, "taken": bool}``."""
    given = await body(request, limit=LARGE_BODY_BYTES)
    others = check_preview(given)
    found = await named(request)
    return answer(await _counted(found, others, taken=given.get("taken") is True))


def check_preview(given: Any) -> dict[str, Progress]:
    """The progress in the body of such a request, by topic. :raises Invalid: there is none."""
    try:
        return {topic: Progress.decode(b64decode(text)) for topic, text in given["progress"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f'expected the body {{"progress": {{topic: base64}}}}: {error}') from None


async def mode(request: web.Request) -> web.Response:
    """Switch replication on or off: ``{"replicated": bool, "from": REGION, "dryRun": bool}``; reports the skips."""
    given = await body(request)
    wanted = given.get("replicated") if isinstance(given, Mapping) else None
    is_bool = isinstance(wanted, bool) and isinstance(given.get("dryRun", False), bool)
    if not is_bool or not given.keys() <= {"replicated", "from", "dryRun"}:  # a misspelt dryRun must not be ignored
        raise Invalid(
            'expected the body {"replicated": true} or {"replicated": false}, with "from" and "dryRun" if wanted'
        )
    if wanted:
        check_not_shadow(request, topic_of(request), "replicate subscriptions of")
    admin, source = state(request), given.get("from")
    found = await named(request)
    regions = admin.service.parts.regions_of(str(topic_of(request)))
    if source is not None and (not wanted or source not in regions):
        raise Invalid(f'"from" must be one of {", ".join(sorted(regions))}, with "replicated": true')
    if wanted and len(regions) < 2:
        raise Refused(412, f"{found[0].topic.name} exists in this region only: replicate its namespace first")
    head = {"subscription": part(request, "subscription"), "replicated": wanted, "from": source}
    if not wanted:
        if not given.get("dryRun"):
            await replicate(request, False)
        return answer(head | {"done": not given.get("dryRun"), "regions": {}})
    plan = await _plan(request, admin, found, regions, source)
    if not given.get("dryRun"):
        await replicate(request, True)
        if source is not None:
            await _take(found, plan.deltas)
    return answer(head | {"done": not given.get("dryRun"), "regions": plan.counts})


# -- state of every region --------------------------------------------------------------------------------------------


def _told(admin: AdminState, found: list[Subscription]) -> Json:
    topics = {}
    for subscription in found:
        subscription.cursor.flush_pending()
        log = subscription.topic.log
        ends = {**log.last_origin, log.region: log.last_own}
        topics[subscription.topic.name] = {
            "replicated": subscription.replicated,
            "progress": b64encode(subscription.cursor.progress.encode()).decode(),
            "ends": {region: str(end) for region, end in ends.items()},
        }
    return {"region": admin.region, "topics": topics}


class _Plan:
    """The planned merge."""

    def __init__(self) -> None:
        self.counts: dict[str, Json] = {}
        """By region: ``skips``, ``again``; or ``problem``."""
        self.deltas: dict[str, Progress | None] = {}
        """By topic, what is merged beyond what the regions exchange anyway: one region's progress as a new epoch."""


async def _plan(
    request: web.Request, admin: AdminState, found: list[Subscription], regions: frozenset[str], source: str | None
) -> _Plan:
    """:raises Refused: the region whose progress is to be used cannot be asked."""
    plan = _Plan()
    others = sorted(regions - {admin.region})
    base = request.rel_url.raw_path.removesuffix("/mode")
    questions = (_asked(admin, region, "GET", f"{base}/progress", seconds=QUESTION_SECONDS) for region in others)
    answers = await asyncio.gather(*questions)
    told: dict[str, Json] = {admin.region: _told(admin, found)}
    for region, said in zip(others, answers, strict=True):
        if isinstance(said, str):
            plan.counts[region] = {"problem": said}
        else:
            told[region] = said
    if source is not None and source not in told:
        problem = plan.counts[source]["problem"].removesuffix(FOLLOWS)
        raise Refused(503, f"cannot get {source}'s progress: {problem}")
    united = {one.topic.name: _united(one, told) for one in found}
    if source is not None:
        for one in found:
            epoch = plan.deltas[one.topic.name] = _as_epoch(one, source, told, united[one.topic.name])
            if epoch is not None:
                united[one.topic.name].join(epoch)
    sent = {topic: b64encode(progress.encode()).decode() for topic, progress in united.items()}
    wanted = {"progress": sent, "taken": source is not None}
    plan.counts[admin.region] = await _counted(found, united, taken=source is not None)
    asked = [region for region in others if region in told]
    counts = await asyncio.gather(*(_asked(admin, region, "POST", f"{base}/preview", wanted) for region in asked))
    for region, said in zip(asked, counts, strict=True):
        plan.counts[region] = {"problem": said} if isinstance(said, str) else said
    return plan


async def _asked(
    admin: AdminState, region: str, method: str, path: str, given: object = None, seconds: float = SECONDS
) -> Json | str:
    """Another region's answer, or the reason why there is none."""
    try:
        status, said = await ask(admin, region, method, path, given, seconds=seconds)
    except Refused as refused:
        return f"{refused}{FOLLOWS}"
    if status == 404:
        return "subscription missing; it will be created"
    if status != 200 or not isinstance(said, dict):
        return f"{region} answered {status}: {reason(said)}"
    return said


def _united(subscription: Subscription, told: Mapping[str, Json]) -> Progress:
    """The union of all regions' progress of one topic's subscription.

    :raises Refused: a region's progress cannot be read, or there are too many rewinds.
    """
    united = Progress()
    for region, said in told.items():
        one = said["topics"].get(subscription.topic.name)
        try:
            if one is not None:
                united.join(Progress.decode(b64decode(one["progress"])))
        except ValueError as error:
            raise Refused(412, f"the progress of {region} cannot be merged with that of the others: {error}") from None
    return united


def _as_epoch(subscription: Subscription, source: str, told: Mapping[str, Json], united: Progress) -> Progress | None:
    """One region's progress as a rewind that rules everything stored anywhere now (R12); None: nothing is stored."""
    name = subscription.topic.name
    one = told[source]["topics"].get(name)
    taken = Progress() if one is None else Progress.decode(b64decode(one["progress"]))
    base: dict[str, AckSet] = {}
    high: dict[str, Position] = {}
    for region in sorted(taken.regions()):
        acks = base[region] = AckSet()
        ranges, batches = effective(taken, region)
        for after, upto in ranges:
            acks.claim(after, upto)
            high[region] = max(high.get(region, EARLIEST), upto)
        for position, (size, bits) in batches.items():
            acks.claim_batch(position, size, bits, None)
            high[region] = max(high.get(region, EARLIEST), position)
    for said in told.values():
        for region, end in said["topics"].get(name, {}).get("ends", {}).items():
            high[region] = max(high.get(region, EARLIEST), parse_position(end))
    rules = {region: (EARLIEST, end) for region, end in high.items() if end > EARLIEST}
    if not rules:
        return None
    delta = united.heads()
    delta.rewind(subscription.topic.clock.next(united.epoch), rules, base)
    return delta


# -- counting, and doing it ------------------------------------------------------------------------------------------


async def _counted(found: list[Subscription], others: Mapping[str, Progress], *, taken: bool) -> Json:
    """Stored entries that are owed now but would not be, and vice versa.

    :param taken: a new epoch rules them, which also undoes drops (R12).
    """
    skips = again = 0
    for subscription in found:
        other = others.get(subscription.topic.name)
        if other is None:
            continue
        after = subscription.cursor.progress.copy()
        after.join(other)
        log, dropped = subscription.topic.log, subscription.cursor.dropped
        for ledger, entries, _ in log.counts():
            if not entries:
                continue
            index = log.index(ledger) or await log.load_index(ledger)
            for first in range(0, entries, SLICE):
                for _, region, origin in index.origins(first, min(first + SLICE, entries) - 1):
                    is_owed = subscription.cursor.is_owed(region, origin)
                    will_be = after.is_acked(region, origin) or (
                        not taken and dropped is not None and dropped.contains(region, origin)
                    )
                    skips += will_be and is_owed
                    again += not is_owed and not will_be
                await asyncio.sleep(0)
    return {"skips": skips, "again": again}


async def _take(found: list[Subscription], deltas: Mapping[str, Progress | None]) -> None:
    """Make one region's progress an epoch for all. Durable when it returns."""
    for subscription in found:
        delta = deltas[subscription.topic.name]
        if delta is not None:
            rewinding.take_back(subscription.cursor, delta)
            await durable(subscription.topic)
