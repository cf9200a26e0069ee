# SPDX-License-Identifier: Apache-2.0
"""The periodic work of a broker: one table of it, one owner, one place to see how it is doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from meridian_broker.engines.pinned import PinnedLedgers
from meridian_broker.gateway.client_options import PEER_KEEP_ALIVE_SECONDS
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.ledgers.periodic import PeriodicWork, WorkState
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.server.behind import BehindRecord
from meridian_broker.server.keys import LOOK_SECONDS as KEYS_SECONDS
from meridian_broker.server.keys import Keys
from meridian_broker.server.load import MEASURE_SECONDS
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.server.settings import Settings
from meridian_broker.topics.lifecycle import garbage, unneeded_copies
from meridian_broker.topics.service import rounds, unused
from meridian_broker.topics.service.cold_encoding import ColdEncoding
from meridian_broker.topics.service.offloading import OffloadRounds
from meridian_broker.topics.service.service import TopicService

LOOK_SECONDS: Final = 1.0
"""How often topics are compared with their policies and with other regions."""
SNAPSHOT_SECONDS: Final = 0.1
"""How often topics that take snapshots are checked; others cost nothing."""
ROOM_SECONDS: Final = 5.0
OFFLOAD_SECONDS: Final = 10.0
GARBAGE_SECONDS: Final = 6 * 3600.0
"""A crash leaves a ledger or two behind, and finding them takes a read of every ledger's and topic's record."""
REST_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 5.0
"""Between attempts to open topics that could not be opened."""


@dataclass(kw_only=True)
class Chores:
    """Begins the periodic work of one broker, as tasks of its scheduler."""

    settings: Settings
    scheduler: LoopScheduler
    service: TopicService
    gateway: Broker
    keys: Keys
    ledgers: LedgerStorage
    held: PinnedLedgers
    offload: OffloadRounds | None
    """None: there is no object store."""
    behind: BehindRecord
    meet_regions: Callable[[], Awaitable[None]]
    """Add the regions that other regions have introduced."""
    speak_with_regions: Callable[[], None]
    """Keep links to exactly the regions that the metadata names."""
    balance: Callable[[], Awaitable[None]] | None
    """Acquire bundles without an owner, and hand over others for balance; None: this broker is its region's only
    one."""
    report_load: Callable[[], Awaitable[None]] | None
    """Tell the region's other brokers how loaded this one is; None: there are none."""
    replicate_to_shadows: Callable[[], Awaitable[None]] | None
    """Start and stop replicators to shadows at the region's other brokers; None: there are none."""
    look_for_room: Callable[[], Awaitable[None]]
    """Check whether a full metadata store still is full."""

    def __post_init__(self) -> None:
        self._works: list[PeriodicWork] = [*self.ledgers.works]

    def states(self) -> list[WorkState]:
        """How each kind of work is doing, as of now."""
        return [work.state() for work in self._works]

    def start(self, used_elsewhere: unused.UsedElsewhere) -> None:
        """Begin all of it. It ends when the scheduler is closed."""
        service = self.service
        storage, removing = self.settings.storage, self.settings.removal
        cold_encoding = ColdEncoding()

        async def follow_policies() -> None:
            await self.meet_regions()
            self.speak_with_regions()
            await service.policies.follow()

        async def cool() -> None:
            cold_encoding.look(service.topics)

        async def end_expired() -> None:
            self.gateway.expiries.look(self.scheduler.now_ms() // 1000)

        async def follow_token_keys() -> None:
            await self.keys.follow_tokens(
                lambda keys: self.gateway.expiries.keep_only(keys, self.scheduler.now_ms() // 1000)
            )

        async def reclaim_disk_space() -> None:
            await self.held.retry_deletions()
            await rounds.trim_all(service)

        self._begin(
            *("open the topics on record", service.loading.load_all, OPEN_SECONDS),
            "topics that are not open do not replicate until a client uses them",
            at_once=True,
        )
        self._begin(
            *("apply changed policies", follow_policies, LOOK_SECONDS),
            "changed policies and regions have no effect on open topics",
        )
        self._begin_between_regions()
        self._begin(
            *("pack idle acknowledgements", cool, LOOK_SECONDS),
            "idle acknowledgements take more memory than needed",
        )
        self._begin_with_metadata()
        if self.offload is not None:
            self._begin_offload(self.offload)
        self._begin(
            *("reclaim disk space", reclaim_disk_space, storage.retention_check_interval_in_seconds),
            "unneeded ledgers stay on disk",
        )
        self._begin(
            *("expire old messages", lambda: rounds.expire_all(service)),
            storage.message_expiry_check_interval_in_minutes * 60,
            "messages stay in backlogs beyond their TTL",
        )
        self._begin(
            *("enforce backlog quotas", lambda: rounds.check_quotas(service)),
            self.settings.backlog.backlog_quota_check_interval_in_seconds,
            "backlogs grow beyond their quotas",
        )
        self._begin(
            *("remove unused topics", lambda: unused.remove_unused(service.opener)),
            removing.broker_delete_inactive_topics_frequency_seconds,
            "unused topics are not deleted",
        )
        self._begin(
            *("expire unused subscriptions", lambda: unused.expire_subscriptions(service.registry, used_elsewhere)),
            removing.subscription_expiry_check_interval_in_minutes * 60,
            "unused subscriptions hold back space",
        )
        self._begin(
            *("compact topics", lambda: rounds.compact_due(service)),
            storage.broker_service_compaction_monitor_interval_in_seconds,
            "compacted views fall behind",
        )
        self._begin(
            *("ping client connections", lambda: self.gateway.keep_alive(peers=False)),
            self.gateway.keep_alive_seconds,
            "dead client connections stay open",
        )
        self._begin(
            *("close connections whose tokens have expired", end_expired, LOOK_SECONDS),
            "clients stay connected with expired tokens",
        )
        self._begin(
            *("reload token keys", follow_token_keys, KEYS_SECONDS),
            "tokens are still checked with the previous keys",
        )
        self._begin(
            *("reload the peer secret", self.keys.follow_peers, KEYS_SECONDS),
            "regions still use the previous secret",
        )
        self._begin(
            *("ping connections from other regions", lambda: self.gateway.keep_alive(peers=True)),
            PEER_KEEP_ALIVE_SECONDS,
            "dead links stay open",
        )

    def _begin_between_regions(self) -> None:
        service = self.service

        async def ask_for_missing() -> None:
            service.backfill_rounds.look()

        self._begin(
            *("take snapshots of subscriptions", service.opener.snapshots.look, SNAPSHOT_SECONDS),
            "other regions do not follow subscriptions in snapshot mode",
        )
        self._begin(
            *("ask other regions for missing entries", ask_for_missing, LOOK_SECONDS),
            "entries that only a third region still has do not arrive",
        )

    def _begin_offload(self, offload: OffloadRounds) -> None:
        async def look_for_unneeded() -> None:
            table = offload.offloading.table
            await table.load()
            await unneeded_copies.collect(
                self.service.parts.catalog.topics, list(table), self.held, self.scheduler.now_ms()
            )

        self._begin(
            *("offload ledgers", offload.look, OFFLOAD_SECONDS),
            "ledgers due for offloading stay where they are; nothing is lost",
        )
        self._begin(
            *("delete unneeded offloaded copies", offload.offloading.clear, OFFLOAD_SECONDS),
            "copies of trimmed ledgers stay in the object store",
        )
        self._begin(
            *("find unreferenced offloaded ledgers", look_for_unneeded, GARBAGE_SECONDS),
            "copies that a dead broker left behind stay in the object store",
            at_once=True,
        )

    async def _delete_unnamed(self) -> None:
        old = await self.ledgers.older_than(garbage.AGE_MS)
        await garbage.collect(self.service.parts.catalog.topics, self.held, old, self.scheduler)

    def _begin_with_metadata(self) -> None:
        if self.balance is not None:
            self._begin(
                *("balance bundles", self.balance, LOOK_SECONDS),
                "topics of a dead broker are not served until a client looks them up",
                at_once=True,
            )
        if self.report_load is not None:
            self._begin(
                *("report the load of this broker", self.report_load, MEASURE_SECONDS),
                "other brokers balance without knowing the load of this one",
            )
        if self.replicate_to_shadows is not None:
            self._begin(
                *("replicate to shadows at other brokers", self.replicate_to_shadows, LOOK_SECONDS),
                "messages reach shadows at other brokers some milliseconds later",
            )
        self._begin(
            *("record which regions are behind", self.behind.follow, LOOK_SECONDS),
            "after a restart, a region that is behind may be shown as caught up",
        )
        self._begin(
            *("check whether the metadata store is still full", self.look_for_room, ROOM_SECONDS),
            "a metadata store that has room again is still shown as full",
        )
        if not self.ledgers.is_apart:
            self._begin(
                *("delete unreferenced ledgers", self._delete_unnamed, GARBAGE_SECONDS),
                "ledgers that a dead broker left behind stay on bookies",
            )
            self._begin(
                *("move idle acknowledgements to topic records", lambda: rounds.rest_all(self.service), REST_SECONDS),
                "idle topics keep a second ledger",
            )

    def _begin(
        self,
        name: str,
        turn: Callable[[], Awaitable[object]],
        seconds: float,
        consequence: str,
        *,
        at_once: bool = False,
    ) -> None:
        work = PeriodicWork(name, consequence, turn, seconds, clock=time.monotonic, sleep=asyncio.sleep)
        self._works.append(work)
        self.scheduler.spawn(work.run(at_once=at_once), name)
