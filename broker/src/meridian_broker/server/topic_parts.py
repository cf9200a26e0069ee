# SPDX-License-Identifier: Apache-2.0
"""What all topics of a broker share: its opened stores, and what is built from the settings."""

from __future__ import annotations

import asyncio

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.server.opened_stores import OpenedStores
from meridian_broker.server.settings import Settings
from meridian_broker.server.topic_settings import TopicDefaults, cache_bytes, compaction_limits, topic_limits
from meridian_broker.topics.compaction.compaction import CompactionResources
from meridian_broker.topics.directory.schemas import SchemaRegistry
from meridian_broker.topics.lifecycle.labels import Labels
from meridian_broker.topics.lifecycle.parts import BrokerParts
from meridian_broker.topics.lifecycle.unfinished import Unfinished
from meridian_broker.topics.ports import Ownership


def broker_parts(
    settings: Settings,
    defaults: TopicDefaults,
    stores: OpenedStores,
    scheduler: Scheduler,
    ownership: Ownership,
) -> BrokerParts:
    """Build the parts that need no topic.

    :param defaults: follows later changes of settings.
    """
    storage, limits = settings.storage, topic_limits(settings)
    return BrokerParts(
        region=settings.region.cluster_name,
        catalog=stores.catalog,
        store=stores.held,
        scheduler=scheduler,
        clock=stores.clock,
        ownership=ownership,
        defaults=lambda: defaults.rules,
        backlog_quotas=settings.backlog.backlog_quota_check_enabled,
        topic_limits=limits,
        log_limits=LogLimits(
            max_entries=storage.managed_ledger_max_entries_per_ledger,
            max_bytes=storage.managed_ledger_max_size_per_ledger_mbytes << 20,
        ),
        cache=CacheBudget(cache_bytes(settings)),
        new_lock=asyncio.Lock,
        loading=asyncio.Semaphore(settings.limits.max_concurrent_topic_load_request),
        publishing=lambda: defaults.publishing,
        schemas=SchemaRegistry(stores.catalog, limits, scheduler.now_ms),
        labels=_labels(stores),
        compaction_resources=CompactionResources(stores.held, asyncio.Lock(), compaction_limits(settings)),
        unfinished=Unfinished(),
        snapshots=lambda: defaults.snapshots,
        carries_events=stores.metadata_sync.carries_events,
    )


def _labels(stores: OpenedStores) -> Labels:
    if not stores.ledgers.is_apart:
        return Labels(None)
    return Labels(stores.held, stores.ledgers.copied if isinstance(stores.ledgers, OffloadedLedgers) else None)
