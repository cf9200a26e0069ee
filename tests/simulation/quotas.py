# SPDX-License-Identifier: Apache-2.0
"""Backlog quotas: setting and enforcing them like a broker, and what must hold for them.

What a quota evicts may be missing in its region only (R14). While a quota blocks, from the check that disconnects
producers until the backlog is smaller, nothing is appended, whatever its source.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import policy_table
from meridian_broker.metadata.policy_values import QUOTA_KINDS, QUOTA_POLICIES, BacklogQuota
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic
    from simulation.stage import Broker

LOOK_SECONDS: Final = 2.0
SIZE, AGE = QUOTA_KINDS
HOLD, _, EVICTION = QUOTA_POLICIES
POLICIES: Final = {"hold": HOLD, "evict": EVICTION}


@dataclass(frozen=True, slots=True)
class _Closed:
    """A topic to which nothing may be appended as long as its backlog is no smaller than now."""

    topic: Topic
    waiting: tuple[list[Position], list[Position]]
    """The positions of subscriptions and of other regions."""
    own: Position | None
    """The last own entry, if no more may come; None: they may."""
    foreign: dict[str, Position] | None
    """The last entry of each other region from which no more may come."""


class QuotaWatch:
    """What one run of a broker does about quotas, with a model beside it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._model = broker.world.model
        self._closed: dict[str, _Closed] = {}

    async def set(self, topic: str, limit: str, policy: str = "hold") -> None:
        """Set a quota as the admin API does; the broker checks at once.

        :param limit: bytes, or ``3s``; ``off``: no quota.
        """
        broker = self._broker
        name = topic_name.parse(full_name(topic))
        value: dict[str, Any] | None = None
        if limit != "off":
            broker.world.quotas.add((broker.region, topic))
            is_age = limit.endswith("s")
            size, seconds = (-1, int(limit[:-1])) if is_age else (int(limit), -1)
            value = {AGE if is_age else SIZE: BacklogQuota(size, seconds, POLICIES[policy]).to_json()}
        self._changed(str(name))
        await broker.service.parts.catalog.topic_policies.set_policy(name, policy_table.BACKLOG_QUOTAS, value)
        await broker.service.parts.catalog.refresh()  # here nothing watches the store, as brokers do
        await broker.service.policies.follow()
        self._changed(str(name))
        if (found := broker.topic(topic)) is not None:
            await self.look(found)

    async def lift(self, topics: list[str]) -> None:
        """Remove the quotas of these topics."""
        for topic in topics:
            await self.set(topic, "off")

    async def run(self) -> None:
        """Check periodically, like the broker's own loop."""
        while True:
            await self._broker.sleep(LOOK_SECONDS)
            for topic in list(self._broker.service.topics.values()):
                if topic.rules.backlog_quotas or topic.name in self._closed:
                    await self.look(topic)

    async def look(self, topic: Topic) -> None:
        """Check one topic."""
        if (closed := self._closed.pop(topic.name, None)) is not None and closed.topic is topic:
            self._check(closed)
        for kind, quota in topic.rules.backlog_quotas.items() if topic.failure is None else ():
            if quota.policy == EVICTION:
                self._evicting(topic, kind, quota)
        hold = topic.rules.backlog_quotas.get(SIZE)
        limit = hold.limit_bytes if hold is not None and hold.policy == HOLD else -1
        waiting = _waiting(topic)
        is_full = [0 <= limit <= topic.log.bytes_after(min(places)) for places in _slowest(topic)]
        await backlog_quotas.enforce(topic)
        if not any(is_full):
            return
        with contextlib.suppress(LedgerError):
            await topic.scheduler.answer(topic.log.when_durable)  # what was accepted before this check
            own = topic.log.last_own if is_full[0] else None
            self._closed[topic.name] = _Closed(topic, waiting, own, dict(topic.log.last_origin) if is_full[1] else None)

    def _changed(self, topic: str) -> None:
        """Another quota applies: earlier findings no longer count."""
        self._closed.pop(topic, None)

    def _check(self, closed: _Closed) -> None:
        topic = closed.topic
        if topic.failure is not None or _waiting(topic) != closed.waiting or not topic.rules.backlog_quotas:
            return
        has_more = closed.own not in (None, topic.log.last_own)
        if has_more or closed.foreign not in (None, topic.log.last_origin):
            text = f"{topic.region} accepts entries of {topic.name} although its backlog quota blocks producers"
            self._model.violate("a quota was exceeded", text)

    def _evicting(self, topic: Topic, kind: str, quota: BacklogQuota) -> None:
        home, short = self._broker.home, topic.name.rpartition("/")[2]
        some = [one for one in topic.subscriptions.values() if one.durable]
        slowest = min(_slowest(topic)[0])
        if kind == SIZE and 0 <= quota.limit_bytes <= topic.log.bytes_after(slowest):
            upto = topic.log.place_before_last(int(quota.limit_bytes * backlog_quotas.EVICT_TO))
            self._model.evicting(home, short, some, upto)
        elif kind == AGE:
            now, published = home.wall_ms(), self._model.published_behind(home, topic, slowest)
            if published is not None and now - published >= quota.limit_seconds * 1000:
                self._model.expiring(home, some, now - int(quota.limit_seconds * backlog_quotas.EVICT_TO * 1000))


def _waiting(topic: Topic) -> tuple[list[Position], list[Position]]:
    subscriptions = [one.cursor.mark_delete for one in topic.subscriptions.values() if one.durable]
    return subscriptions, [place for place in topic.replicated_positions.values() if place != EARLIEST]


def _slowest(topic: Topic) -> tuple[list[Position], list[Position]]:
    """What own messages wait for, and what those of other regions wait for, which is never another region."""
    subscriptions, regions = _waiting(topic)
    nobody = [topic.log.last_confirmed]
    return subscriptions + regions or nobody, subscriptions or nobody
