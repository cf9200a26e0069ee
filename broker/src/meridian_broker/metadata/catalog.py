# SPDX-License-Identifier: Apache-2.0
"""A region's catalog: the broker's interface to its metadata.

Methods of the parts (``catalog.tenants.create(...)``) go to the store, so they see what any broker of the region
wrote. ``namespace``, ``cluster`` and ``tenant`` answer at once from the view, which ``run`` keeps up to date: their
answers may lag slightly, except for this process's own writes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.behind import BehindRecord
from meridian_broker.metadata.counters import BrokerEpochs, LedgerIds
from meridian_broker.metadata.deletions import Deletions
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotFound
from meridian_broker.metadata.introductions import Introductions
from meridian_broker.metadata.partitioned_topics import PartitionedTopics
from meridian_broker.metadata.permissions import PermissionsOfRoles
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.policies_of_topics import PoliciesOfTopics
from meridian_broker.metadata.policy_table import REPLICATION, Level
from meridian_broker.metadata.records import ClusterRecord, TenantRecord
from meridian_broker.metadata.rules import Rules, rules
from meridian_broker.metadata.schema_catalog import Schemas
from meridian_broker.metadata.shadow_needs import ShadowNeeds
from meridian_broker.metadata.shadow_topics import ShadowTopics, as_shadow
from meridian_broker.metadata.store import Change, MetadataError, MetadataStore, Record
from meridian_broker.metadata.tenancy import Clusters, Namespaces, Tenants
from meridian_broker.metadata.topic_catalog import Topics
from meridian_broker.metadata.view import Changed
from meridian_broker.positions.clock import HybridClock, Stamp
from meridian_broker.wire.pulsar.topic_name import DEFAULT_NAMESPACE, DEFAULT_TENANT, TopicName

RETRY_SECONDS = 1.0
"""Pause before the catalog watches again after its watch broke."""

Listener = Callable[[Changed], None]

log = logging.getLogger(__name__)


class Catalog:
    """See the module's text. ``refresh`` once before use; the server owns a task that runs ``run``."""

    def __init__(
        self,
        store: MetadataStore,
        clock: HybridClock,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
        draw: Callable[[int], int],
        alone: AbstractAsyncContextManager[object] = nullcontext(),  # noqa: B008  (stateless)
    ) -> None:
        """``clock`` is the region's; ``now_ms`` the wall clock; ``sleep`` waits that many seconds; ``draw`` gives a
        random number below another; ``alone`` is a lock for taking ledger ids, so that many callers share a write."""
        self._access = Access(store, clock)
        self._sleep = sleep
        self._listeners: list[Listener] = []
        self._watch: AsyncIterator[list[Change]] | None = None
        """Of everything, if it was established and nobody has heard its changes yet."""
        self._pulsar: frozenset[str] = frozenset()
        self._pulsar_as_of = -1
        self._ledger_ids = LedgerIds(self._access, now_ms, draw, alone)
        self._epochs = BrokerEpochs(self._access)
        deletions = Deletions(self._access)
        self.clusters = Clusters(self._access)
        self.introductions = Introductions(self._access, self.clusters)
        self.tenants = Tenants(self._access, self.clusters)
        self.namespaces = Namespaces(self._access, self.clusters)
        self.partitioned = PartitionedTopics(self._access, deletions)
        self.topics = Topics(self._access, deletions)
        self.topic_policies = PoliciesOfTopics(self._access)
        self.permissions = PermissionsOfRoles(self._access)
        self.schemas = Schemas(self._access)
        self.behind = BehindRecord(self._access)
        self.shadows = ShadowTopics(self._access)
        self.shadow_needs = ShadowNeeds(self._access)

    @property
    def region(self) -> str:
        return self._access.region

    # -- at once, from memory

    def namespace(self, name: str) -> NamespaceRecord | None:
        """``tenant/namespace`` as last seen; None when it does not exist."""
        return self._access.view.namespace(name)

    def rules(self, broker: Rules, topic: TopicName) -> Rules:
        """The rules of a topic, as last seen: its own policies over its namespace's over the broker's settings."""
        view = self._access.view
        namespace, own = view.ruling(topic.namespace_name), view.topic_policies(topic)
        levels = [one.own for one in (namespace, own) if one is not None]
        found = rules(broker, self.region, *levels)
        found = found if view.stands(topic.namespace_name) else replace(found, are_current=False)
        return found if self.shadows.find(topic) is None else as_shadow(found)

    def own_policies(self, topic: TopicName) -> Level:
        """The topic's own policies, as last seen."""
        own = self._access.view.topic_policies(topic)
        return {} if own is None else own.own

    def regions(self, topic: TopicName) -> frozenset[str]:
        """Regions of a topic, as last seen: its own choice, else its namespace's, even if that is missing now. A shadow
        is in this region only."""
        if self.shadows.find(topic) is not None:
            return frozenset((self.region,))
        own = self._access.view.topic_policies(topic)
        if own is not None and REPLICATION in own.own:
            return frozenset(region for region, is_in_it in own.own[REPLICATION].items() if is_in_it)
        namespace = self._access.view.ruling(topic.namespace_name)
        return frozenset() if namespace is None else namespace.replication_clusters

    def remember_missing(self, namespaces: Iterable[str]) -> None:
        """Only these namespaces have open topics: if one of them is missing, remember its last policies; forget all
        others'."""
        self._access.view.keep_only(namespaces)

    def incarnation(self, topic: TopicName) -> str:
        """The incarnation that the topic would get if it were created now (R8), as last seen. An existing topic has the
        same one, unless its deletion in another region is being carried out here."""
        stamp = self._access.view.deletion(topic)
        return "" if stamp is None else str(stamp)

    @property
    def revision(self) -> int:
        """A number that changes whenever an answer from memory may have changed."""
        return self._access.news

    def last_seen(self, path: str) -> tuple[Record | None] | None:
        """What was at a path, as last seen; None: such paths are not remembered."""
        return self._access.view.record(path)

    def tenant(self, name: str) -> TenantRecord | None:
        return self._access.view.tenant(name)

    def cluster(self, name: str) -> ClusterRecord | None:
        return self._access.view.cluster(name)

    def known_clusters(self) -> list[str]:
        return self._access.view.clusters()

    def pulsar_regions(self) -> frozenset[str]:
        """Regions that run Apache Pulsar, as last seen: the same object as long as they are the same."""
        if self._pulsar_as_of != (news := self.revision):
            view = self._access.view
            found = frozenset(
                name for name in view.clusters() if (one := view.cluster(name)) is not None and one.is_pulsar
            )
            self._pulsar_as_of = news
            self._pulsar = self._pulsar if found == self._pulsar else found
        return self._pulsar

    def known_namespaces(self) -> list[str]:
        """All, as ``tenant/namespace``, sorted."""
        return self._access.view.namespaces()

    # -- numbers

    async def allocate_ledger_id(self) -> int:
        """An id no ledger of this region ever had (R1)."""
        return await self._ledger_ids.allocate()

    async def never_below(self, ledger_id: int) -> None:
        """This id is in use, even if the metadata does not say so: allocate only greater ones (R1)."""
        await self._ledger_ids.never_below(ledger_id)

    def skip_ledger_ids(self, ledger_id: int) -> None:
        """Another broker of the region took this id: allocate only greater ones."""
        self._ledger_ids.skip_to(ledger_id)

    async def next_broker_epoch(self, broker_id: str, above: int = 0) -> int:
        """The fence of a broker that starts now: greater than all before it.

        :param above: the highest fence that the ledgers have seen, which metadata restored from a backup may lack.
        """
        return await self._epochs.next(broker_id, above)

    async def newest_broker_epoch(self, broker_id: str) -> int:
        """The fence of the last start of a broker; 0: there was none."""
        return await self._epochs.newest(broker_id)

    async def later_broker_epoch(self, broker_id: str, epoch: int) -> int:
        """Wait until a broker with this id has started after the one that got ``epoch``, and return its epoch."""
        while True:
            try:
                async for _ in self._access.store.watch(self._epochs.path(broker_id)):
                    if (newest := await self._epochs.newest(broker_id)) > epoch:
                        return newest
            except MetadataError:
                await self._sleep(RETRY_SECONDS)

    async def everything(self) -> list[tuple[str, Any, Stamp | None]]:
        """Path, value and stamp of everything that regions agree on, to compare regions."""
        return await self._access.everything()

    # -- staying fresh

    async def refresh(self) -> None:
        """Read everything into the view.

        :raises MetadataUnavailable: the store does not answer.
        """
        await self._access.refresh()
        await self.shadows.load()

    async def begin(self) -> None:
        """As ``refresh``; what changes from then on is for ``run``, which therefore need not read everything again.

        :raises MetadataUnavailable: the store does not answer.
        """
        watch = self._access.store.watch(keys.GEO)
        await anext(watch)
        await self.refresh()
        self._watch = watch

    async def run(self) -> None:
        """Keep the view current and notify the listeners, until cancelled. A failed watch is restarted."""
        while True:
            try:
                begun, self._watch = self._watch, None
                async for changes in begun or self._access.store.watch(keys.GEO):
                    if changes:
                        self._tell(self._access.hear(changes))
                    else:
                        await self.refresh()
                        self._tell([Changed("everything", "")])
            except MetadataError:
                await self._sleep(RETRY_SECONDS)
            except Exception:
                log.exception("failed to process a metadata change: reading everything again")
                await self._sleep(RETRY_SECONDS)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Listen to every change that ``run`` sees, including those of partitioned topics and schemas. Returns a
        function that stops listening.

        A listener is called on the loop, must not block and must not raise.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self, news: list[Changed]) -> None:
        for changed in news:
            for listener in list(self._listeners):
                listener(changed)

    # -- the beginning

    async def ensure_bootstrap(self, clusters: Mapping[str, ClusterRecord]) -> None:
        """Make sure that these clusters, tenant ``public`` and namespace ``public/default`` exist.

        It is idempotent, and several brokers may run it at once. Clusters get the given addresses, and new clusters
        are allowed for ``public``; an existing namespace is left as it is.

        :raises Invalid: this region is not among the clusters.
        """
        if self.region not in clusters:
            raise Invalid(f"this region, {self.region}, is not among {', '.join(sorted(clusters))}")
        for name, record in clusters.items():
            await self._ensure_cluster(name, record)
        try:
            await self.tenants.create(DEFAULT_TENANT, TenantRecord(allowed_clusters=frozenset(clusters)))
        except AlreadyExists:
            tenant = await self.tenants.get(DEFAULT_TENANT)
            allowed = tenant.allowed_clusters | clusters.keys()
            await self.tenants.update(DEFAULT_TENANT, replace(tenant, allowed_clusters=allowed))
        try:
            await self.namespaces.create(
                f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}", NamespaceRecord(replication_clusters=frozenset(clusters))
            )
        except AlreadyExists:
            return

    async def _ensure_cluster(self, name: str, record: ClusterRecord) -> None:
        try:
            known = await self.clusters.get(name)
        except NotFound:
            known = record
        await self.clusters.put(name, replace(record, extra={**known.extra, **record.extra}))
