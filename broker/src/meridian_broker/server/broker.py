# SPDX-License-Identifier: Apache-2.0
"""The composition root: one broker process, from its settings to its last sealed ledger.

Everything is built here, in the order in which it is needed, and taken down in the opposite order. A drain after
SIGTERM: no new connections, acknowledgements and ledgers written, peers told, clients disconnected, everything closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from meridian_broker.admin.elsewhere.users import objections, used_elsewhere
from meridian_broker.admin.http.state import AdminState
from meridian_broker.engines.local.files import FilePort, make_directory
from meridian_broker.engines.pinned import PinnedLedgers
from meridian_broker.gateway.authorization import Authorization
from meridian_broker.gateway.broker_calls import BrokerCalls
from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.exchange import ExchangeShell
from meridian_broker.gateway.metadata_peers import RestPeer
from meridian_broker.gateway.metadata_standby import Standby
from meridian_broker.gateway.metadata_sync import MetadataSync
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.places import Places
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.replication import ReplicatorRunner
from meridian_broker.gateway.shadow_replication import ShadowReplication
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata import keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.noting import NotingStore
from meridian_broker.ownership.transactions import newest_fence
from meridian_broker.positions import HybridClock
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.replication.leases.times import LeaseTimes
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.server.behind import BehindRecord
from meridian_broker.server.chores import Chores
from meridian_broker.server.descriptors import connection_limits, limit
from meridian_broker.server.draining import confirmed
from meridian_broker.server.early import EarlyPorts
from meridian_broker.server.keys import Keys
from meridian_broker.server.listeners import Listeners, client_tls
from meridian_broker.server.live_settings import LiveSettings
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.server.one_of_several import BesideOthers, OneOfSeveral, check, require_alone
from meridian_broker.server.opened_stores import OpenedStores, open_stores
from meridian_broker.server.privacy import close_to_others
from meridian_broker.server.rank import Outranked, served
from meridian_broker.server.region_addresses import own_record
from meridian_broker.server.region_links import RegionLinks, region_links
from meridian_broker.server.regions_file import listed_regions
from meridian_broker.server.settings import Settings
from meridian_broker.server.topic_parts import broker_parts
from meridian_broker.server.topic_settings import TopicDefaults, cache_bytes
from meridian_broker.server.waiting import once_there
from meridian_broker.topics.lifecycle.parts import OtherRegions
from meridian_broker.topics.policies import UNLIMITED
from meridian_broker.topics.ports import EveryTopic
from meridian_broker.topics.service import closing
from meridian_broker.topics.service.backfill_rounds import StoredEnds
from meridian_broker.topics.service.exchange_host import ExchangeHost
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.topics.service.offloading import OffloadRounds
from meridian_broker.topics.service.registry import TopicRegistry
from meridian_broker.topics.service.service import TopicService
from meridian_broker.wire.peer_proof import NONCE_BYTES
from meridian_broker.wire.peer_requests import Guard
from meridian_broker.wire.pulsar import topic_name

log = logging.getLogger(__name__)

CONTACT_SECONDS: Final = 1.0
"""Longest time a starting broker waits for other regions before it admits clients: it must first learn what was
acknowledged there while it was away. A region that is down is noticed at once and not waited for."""


class BrokerProcess:
    """Everything one broker is made of."""

    def __init__(self, settings: Settings, early: EarlyPorts | None = None) -> None:
        self.settings = settings
        self.region = settings.region.cluster_name
        self.broker_id = settings.brokers.id_on_record
        self.several: OneOfSeveral | None = None
        self._listed = listed_regions(settings)
        self.scheduler = LoopScheduler()
        self.fence = 0
        """The epoch of this process's start."""
        self.service: TopicService
        self.host: ExchangeHost
        self.exchange: ExchangeShell
        self.behind: BehindRecord
        self.leases: LeaseManager
        self.runner: ReplicatorRunner
        self.shadow_replication: ShadowReplication | None = None
        self.catalog: Catalog
        self.calls: RegionCalls
        self.clock: HybridClock
        self.ledgers: LedgerStorage
        self.held: PinnedLedgers
        self.offload: OffloadRounds | None = None
        self.gateway: Broker
        self.admin: AdminState
        self.chores: Chores
        self.metadata_sync: MetadataSync
        self.live: LiveSettings
        self._topic_defaults: TopicDefaults
        self._metadata: NotingStore
        self.keys = Keys(settings)
        limits = settings.limits
        self._connections = connection_limits(limit(), limits.max_http_server_connections)
        http = Places(self._connections.http, limits.max_http_server_connections_per_ip)
        self.listeners = Listeners(settings, http, self._connections.handshakes, early)
        self._client_tls = client_tls(settings)
        self._names = 0

    @classmethod
    async def start(
        cls,
        settings: Settings,
        stack: AsyncExitStack,
        files: Callable[[Path], FilePort] | None = None,
        early: EarlyPorts | None = None,
    ) -> BrokerProcess:
        """Open the stores, then the listeners: first for other regions, then, once those have answered, for clients
        (R10).

        ``stack`` closes everything again.

        :param files: makes the file port of the ledgers' directory; None: the operating system's own.
        :param early: ports for clients that are already open; the caller closes those that are not taken.
        """
        make_directory(settings.region.data_directory)
        close_to_others(settings.region.data_directory)
        process = cls(settings, early)
        stack.push_async_callback(process.scheduler.close)
        stores = await open_stores(settings, process.scheduler, stack, files)
        process.settings = settings = stores.live.current
        process.live, process.metadata_sync, process.clock = stores.live, stores.metadata_sync, stores.clock
        process.catalog, process._metadata = stores.catalog, stores.metadata
        process.ledgers, process.held = stores.ledgers, stores.held
        if settings.brokers.is_one_of_several:
            process._join()
            process.fence = await process._next_epoch()
        else:
            wait_seconds = settings.process.start_timeout_seconds
            process.fence = await once_there(process._epoch_alone, BesideOthers, wait_seconds)
        await process._build(stores, stack)
        process.live.subscribe(process._follow_settings)
        await process._open_listeners(stack)
        await process._bootstrap()
        await process.service.loading.make_topics()
        await process.behind.open()
        if process.several is not None:
            await process.several.start()
        await process.listeners.serve()
        process.speak_with_regions()
        process.scheduler.spawn(process.live.follow(), "follow changed settings")
        process.scheduler.spawn(process.metadata_sync.run(), "synchronize metadata")
        await process.exchange.first_contact(CONTACT_SECONDS)
        process.chores.start(partial(used_elsewhere, process.admin))
        process.admin.ready = True
        process.gateway.admit()
        return process

    async def _next_epoch(self) -> int:
        above = max(self.ledgers.newest_fence(), await newest_fence(self._metadata))
        return await self.catalog.next_broker_epoch(self.broker_id, above=above)

    async def _epoch_alone(self) -> int:
        """:raises BesideOthers: the region has several brokers now."""
        epoch = await self._next_epoch()
        await require_alone(self._metadata, self.region)  # afterwards: see ``one_of_several.py``
        return epoch

    def _join(self) -> None:
        """Become one of the region's brokers. :raises StartFailed: the region cannot have several."""
        check(self.region, self.ledgers)
        self.several = OneOfSeveral(
            self.settings.brokers, self._metadata, self.scheduler, self.catalog, self.listeners.every
        )

    async def _build(self, stores: OpenedStores, stack: AsyncExitStack) -> None:
        settings = self.settings
        network, limits, replication = settings.network, settings.limits, settings.replication
        self._topic_defaults = TopicDefaults(settings, self.scheduler.now_ms)
        ownership = EveryTopic(self.fence) if self.several is None else self.several.topics
        registry = TopicRegistry(broker_parts(settings, self._topic_defaults, stores, self.scheduler, ownership))
        links = region_links(settings, self.keys, self.catalog, self._listed, self.scheduler, self._client_tls)
        self.calls, self.runner = links.calls, links.runner
        streams = LeasedTopics(registry, is_one_of_several=self.several is not None)
        stack.push_async_callback(streams.witness.close)
        self.leases = LeaseManager(
            streams,
            f"{self.region}#{self.broker_id}.{self.fence}"
            if self.several is not None
            else f"{self.region}#{self.fence}",
            self.scheduler.monotonic_ms,  # counts suspended time: a lease lasts no longer here than elsewhere (R26)
            LeaseTimes(duration=replication.dispatch_lease_seconds * 1000),
            is_one_of_several=self.several is not None,
        )
        if self.several is None:
            streams.witness.bind(self.leases)
        if isinstance(self.ledgers, OffloadedLedgers):
            self.offload = OffloadRounds(
                *(registry, self.ledgers.offloading, asyncio.Lock(), self.held.is_held),
                has_other_owners=self.several is not None,
            )
        self.host, ends = ExchangeHost(registry), StoredEnds(registry)
        self.exchange = self._progress(ends, links)
        self.behind = BehindRecord(self.catalog, self.broker_id, self.exchange, self.scheduler.now_ms)
        regions = OtherRegions(exchange=self.exchange, leasing=self.leases, replication=self.runner, before=self.behind)
        self.service = TopicService(registry, regions, ends, self.exchange, random.Random().random)
        self.host.bind(self.service.opener)
        if self.several is not None:
            self.several.topics.bind(self.service.opener)
        self.gateway = Broker(
            region=self.region,
            service=self.service,
            peers=self.exchange,
            addresses=self.listeners.addresses,
            authentication=self.keys.authentication,
            authorization=Authorization(
                self.keys.authentication, self.catalog, settings.authentication.authorization_enabled
            ),
            identity=links.identity,
            max_message_bytes=network.max_message_size,
            pending_publishes=network.max_pending_publish_requests_per_connection,
            publish_bytes_max=limits.publish_buffer_bytes or UNLIMITED,
            connections_max=min(limits.broker_max_connections or UNLIMITED, self._connections.clients),
            strangers_max=self._connections.strangers,
            connections_per_address_max=limits.broker_max_connections_per_ip,
            concurrent_lookups=network.max_concurrent_lookup_request,
            pattern_length=settings.topics.subscription_pattern_max_length,
            keep_alive_seconds=network.keep_alive_interval_seconds,
            producer_name=self._producer_name,
            locate=None if self.several is None else self.several.locate,
            when_moved=None if self.several is None else self.several.when_moved,
            next_owner=None if self.several is None else self.several.next_owner,
            reserved=self.metadata_sync.reserved,
            objections=lambda topic, subscription: objections(self.admin, topic, subscription),
        )
        self._bind_metadata_sync(links.identity)
        if self.several is not None:
            self.shadow_replication = self._replicate_to_shadows(self.several, links)
            stack.push_async_callback(self.shadow_replication.close)
        stack.push_async_callback(self.runner.close)
        stack.push_async_callback(self.exchange.close)

    def _replicate_to_shadows(self, several: OneOfSeveral, links: RegionLinks) -> ShadowReplication:
        return ShadowReplication(
            self.region,
            self.service.opener.followed_sources,
            self.catalog.shadows,
            several,
            links.options,
            usual_limit=self.settings.topics.shadow_replicator_auto_reset_backlog_entries,
            jitter=random.Random().random,
            scheduler=self.scheduler,
        )

    def _follow_settings(self, settings: Settings) -> None:
        """Apply settings that were changed while this broker runs; open topics follow with their policies."""
        self.settings, snapshots = settings, self._topic_defaults.snapshots
        self._topic_defaults.follow(settings)
        if self._topic_defaults.snapshots != snapshots:
            self.service.opener.snapshots.settings_changed(self.service.topics.values())
        self.service.parts.cache.limit = cache_bytes(settings)
        self.gateway.set_limits(
            publish_bytes_max=settings.limits.publish_buffer_bytes or UNLIMITED,
            concurrent_lookups=settings.network.max_concurrent_lookup_request,
        )
        self.metadata_sync.follow(settings.metadata.sync_choice())

    def _bind_metadata_sync(self, identity: PeerIdentity) -> None:
        self.metadata_sync.bind(
            lambda topic: EventTopic(topic, self.region, self.service, identity, self._producer_name()),
            lambda region, own, replacing: RestPeer(
                region, own, self.calls, self.scheduler.now_ms, replacing=replacing
            ),
            lambda topic: self.catalog.regions(topic_name.parse(topic)) - self.catalog.pulsar_regions(),
            self.catalog.last_seen,
            None if self.several is None else Standby(self.region, self.several.locate, self.calls),
        )

    def _progress(self, ends: StoredEnds, links: RegionLinks) -> ExchangeShell:
        replication = self.settings.replication
        core = ProgressExchange(
            self.host,
            leases=self.leases,
            ends=ends,
            coalesce_ms=replication.progress_coalesce_millis,
            digest_interval_ms=replication.digest_interval_seconds * 1000,
            barrier_ms=replication.barrier_timeout_millis,
            broker=self.settings.brokers.broker_id,
        )
        return ExchangeShell(
            core,
            links.addresses.resolve,
            links.options,
            random.Random().random,
            self.scheduler.monotonic_ms,
            links.runner.nudge,
            None if self.several is None else self.several.feed,
        )

    async def _open_listeners(self, stack: AsyncExitStack) -> None:
        self.chores = Chores(
            settings=self.settings,
            scheduler=self.scheduler,
            service=self.service,
            gateway=self.gateway,
            keys=self.keys,
            ledgers=self.ledgers,
            held=self.held,
            offload=self.offload,
            behind=self.behind,
            meet_regions=self.meet_regions,
            speak_with_regions=self.speak_with_regions,
            balance=None if self.several is None else self.several.balance,
            report_load=None
            if self.several is None
            else partial(self.several.report_load, self.service.topics.values()),
            replicate_to_shadows=None if self.shadow_replication is None else self.shadow_replication.look,
            look_for_room=self._metadata.look_for_room,
        )
        self.admin = AdminState(
            region=self.region,
            work=self.chores.states,
            metadata_full=lambda: self._metadata.full,
            service=self.service,
            catalog=self.catalog,
            exchange=self.exchange,
            leases=self.leases,
            replication=self.runner,
            shadow_replication=self.shadow_replication,
            ledgers=self.ledgers,
            held=self.held,
            offload=self.offload,
            gateway=self.gateway,
            settings=self.live,
            default_bundles=lambda: self.settings.topics.default_number_of_namespace_bundles,
            data_directory=self.settings.region.data_directory,
            faults=self.settings.process.fault_injection_enabled,
            sync_metrics=self.settings.replication.expose_subscription_sync_metrics_in_prometheus,
            admin_url=lambda: self.listeners.admin_url,
            calls=self.calls,
            metadata_sync=self.metadata_sync,
            owner=None if self.several is None else self.several.owner,
            brokers=None if self.several is None else BrokerCalls(self._client_tls),
            guard=Guard(
                *(self.region, os.urandom(NONCE_BYTES), lambda: self.keys.peer_secrets),
                is_one_of_several=self.several is not None,
            ),
        )
        await self.listeners.open(self.gateway, self.admin, stack)

    async def _bootstrap(self) -> None:
        """Create what every region needs: the clusters, tenant ``public``, namespace ``public/default``."""
        mine = own_record(self.listeners.addresses(""))
        await self.catalog.ensure_bootstrap({self.region: mine} | self._listed)

    async def meet_regions(self) -> None:
        """Add the regions that other regions have introduced.

        :raises MetadataError: the store does not answer.
        """
        unmet = self.catalog.introductions.unmet()
        if any(self.metadata_sync.choice.is_synced(keys.introduction(name)) for name in unmet):
            await self.catalog.introductions.meet()

    def speak_with_regions(self) -> None:
        """Keep links to exactly the Meridian regions that the metadata names."""
        foreign = self.catalog.pulsar_regions()
        others = [name for name in self.catalog.known_clusters() if name != self.region and name not in foreign]
        self.exchange.set_regions(others)
        self.runner.set_regions(others)

    def _producer_name(self) -> str:
        self._names += 1
        broker = f"{self.broker_id}-" if self.settings.brokers.is_one_of_several else ""
        return f"{self.region}-{broker}{self.fence}-{self._names}"

    async def serve(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set.

        :raises Outranked: a later broker with the same id has started. This one is no longer ready.
        """
        try:
            await served(self.catalog, self.broker_id, self.fence, stop)
        except Outranked:  # closing takes seconds, in which nobody should count on this broker
            self._turn_away()
            raise

    def _turn_away(self) -> None:
        """Accept no more clients, and tell probes."""
        self.gateway.begin_drain()
        self.listeners.close()

    async def drain(self) -> None:
        """Hand everything over in good order."""
        self._turn_away()
        limit = self.settings.process.broker_shutdown_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit):
                if self.several is not None:
                    await self.several.owner.hand_over()
                await closing.send_consumers_away(self.service.registry)
                await confirmed(self.host, self.exchange, self.scheduler)
                self.leases.release_unwanted()  # other regions take over dispatch at once (R26)
                if self.several is not None:
                    await self.several.owner.close()
                await closing.close(self.service.opener)
        except TimeoutError:
            log.warning(
                "draining took longer than %.0f s; durable messages are safe, clients send the rest again", limit
            )
        for connection in tuple(self.gateway.connections):
            connection.end("this broker is shutting down")
