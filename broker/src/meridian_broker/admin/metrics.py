# SPDX-License-Identifier: Apache-2.0
"""``/metrics``: Prometheus text. Pulsar's names where Pulsar has the metric, ``meridian_`` for our own.

Numbers are read on the loop, a few topics per turn, and never by walking entries; the text is rendered in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from meridian_broker.admin.export.export import EXPORTS
from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.gateway.metadata_session import Session
from meridian_broker.ledgers.storage import StorageFigures
from meridian_broker.metadata.sync.converging import Verdict
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

TOPIC: Final = ("cluster", "namespace", "topic")
NAMESPACE: Final = ("cluster", "namespace")
SUBSCRIPTION: Final = (*TOPIC, "subscription")
REMOTE: Final = (*TOPIC, "remote_cluster")
PAIR: Final = (*SUBSCRIPTION, "remote_cluster")
LINK: Final = ("cluster", "remote_cluster")
WORK: Final = ("cluster", "work")

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "pulsar_topics_count": ("Topics and partitions open here", NAMESPACE),
    "pulsar_subscriptions_count": ("Subscriptions", TOPIC),
    "pulsar_producers_count": ("Connected producers, not counting replicators of other regions", TOPIC),
    "pulsar_consumers_count": ("Connected consumers", TOPIC),
    "pulsar_storage_size": ("Bytes of messages stored", TOPIC),
    "pulsar_subscription_back_log": (
        "Entries from the first unacknowledged one to the last, including acknowledged ones in between",
        SUBSCRIPTION,
    ),
    "pulsar_subscription_unacked_messages": ("Messages sent to consumers and not acknowledged", SUBSCRIPTION),
    "pulsar_replication_backlog": ("Entries stored here and not confirmed by the region", REMOTE),
    "pulsar_replication_connected_count": ("1 while the replicator is connected", REMOTE),
    "pulsar_replication_delay_in_seconds": ("Age of the oldest entry waiting for the region", REMOTE),
    "pulsar_replicated_subscriptions_pending_snapshots": (
        "Subscription snapshots in progress (snapshot mode)",
        TOPIC,
    ),
    "meridian_unreplicated_entries": (
        "Entries first stored here, of all topics, that the region has not confirmed",
        LINK,
    ),
    "meridian_unreplicated_tail_entries": (
        "Entries first stored here, of the topic, that the region has not confirmed",
        REMOTE,
    ),
    "meridian_unreplicated_tail_bytes": ("Approximate bytes of the entries that the region has not confirmed", REMOTE),
    "meridian_unreplicated_tail_seconds": ("Age of the oldest entry that the region has not confirmed", REMOTE),
    "meridian_progress_lag_entries": (
        "Entries acknowledged here since startup that the region has not confirmed, over all subscriptions",
        REMOTE,
    ),
    "meridian_progress_lag_seconds": ("Age of the oldest progress change that the region has not confirmed", REMOTE),
    "meridian_subscription_progress_lag_entries": (
        "As meridian_progress_lag_entries, per subscription (exposeSubscriptionSyncMetricsInPrometheus)",
        PAIR,
    ),
    "meridian_subscription_progress_lag_seconds": (
        "As meridian_progress_lag_seconds, per subscription (exposeSubscriptionSyncMetricsInPrometheus)",
        PAIR,
    ),
    "meridian_subscription_in_sync": (
        "1 while the region can follow the subscription (exposeSubscriptionSyncMetricsInPrometheus)",
        PAIR,
    ),
    "meridian_subscription_progress_set_size": (
        "Entry ids and partly acked batches remembered above floors (exposeSubscriptionSyncMetricsInPrometheus)",
        SUBSCRIPTION,
    ),
    "meridian_damaged_entries": (
        "Entries damaged by the disk, neither replaced from another region nor given up",
        TOPIC,
    ),
    "meridian_lost_progress_records": (
        "Records of the topic's progress log damaged by the disk, found within the last day",
        TOPIC,
    ),
    "meridian_held_for_regions_bytes": (
        "Bytes of ledgers kept beyond their retention because another region lacks entries in them",
        TOPIC,
    ),
    "meridian_progress_link_up": ("1 while the link that carries progress to the region is up", LINK),
    "meridian_periodic_work_failing": ("1 if the last run of the periodic work failed", WORK),
    "meridian_periodic_work_seconds_since_success": (
        "Seconds since the last successful run of the periodic work",
        WORK,
    ),
    "meridian_metadata_outbox": ("Changes of shared metadata waiting to be published", ("cluster",)),
    "meridian_metadata_conflicts": ("Paths that two regions wrote concurrently", ("cluster",)),
    "meridian_metadata_parked": ("Paths with a timestamp in the future", ("cluster",)),
    "meridian_metadata_lag_seconds": (
        "Time from the write in the region to its application here, of the last applied event",
        LINK,
    ),
    "meridian_metadata_differences": (
        "Paths that have differed since before metadata were shared, still undecided",
        LINK,
    ),
    "meridian_metadata_clock_offset_seconds": ("How far the region's clock is ahead of this one's", LINK),
    "meridian_connections": ("Client and peer connections", ("cluster",)),
    "meridian_export_snapshots": ("Export snapshots that can be read", ("cluster",)),
    "meridian_ledger_pending_bytes": ("Bytes of entries not durable yet", ("cluster",)),
    "meridian_ledgers": ("Ledgers of all topics; with BookKeeper, all that its etcd lists", ("cluster",)),
    "meridian_bookies": ("Bookies that take new entries", ("cluster",)),
    "meridian_offloaded_ledgers": ("Ledgers with a copy in the object store", ("cluster",)),
    "meridian_offloaded_bytes": ("Bytes of entries in the object store", ("cluster",)),
    "meridian_offload_cache_bytes": ("Bytes of entries read from the object store and kept in memory", ("cluster",)),
    "meridian_ledger_segments": ("Segment files of the log", ("cluster",)),
    "meridian_ledger_log_bytes": ("Bytes of all segment files", ("cluster",)),
    "meridian_ledger_live_bytes": ("Bytes of closed segment files that a ledger still needs", ("cluster",)),
    "meridian_ledger_index_entries": ("Entry locations in memory", ("cluster",)),
    "meridian_ledger_recovery_seconds": ("Time it took to read the log at startup", ("cluster",)),
}
COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "pulsar_in_messages_total": ("Messages stored, from clients and other regions", TOPIC),
    "pulsar_in_bytes_total": ("Bytes stored, from clients and other regions", TOPIC),
    "pulsar_out_messages_total": ("Messages sent to consumers", TOPIC),
    "pulsar_out_bytes_total": ("Bytes sent to consumers", TOPIC),
    "pulsar_subscription_msg_out_total": ("Messages sent to consumers of the subscription", SUBSCRIPTION),
    "pulsar_replicated_subscriptions_timedout_snapshots_total": (
        "Subscription snapshots that a region did not answer in time",
        TOPIC,
    ),
    "meridian_replicated_subscriptions_updates_total": ("Positions announced to other regions by snapshots", TOPIC),
    "meridian_replicated_subscriptions_refused_markers_total": (
        "Markers of other regions that had no effect",
        TOPIC,
    ),
    "meridian_replicated_in_messages_total": ("Messages stored from other regions", TOPIC),
    "meridian_replicated_out_messages_total": ("Messages the region confirmed", REMOTE),
    "meridian_replicated_out_bytes_total": ("Bytes the region confirmed", REMOTE),
    "meridian_held_for_regions_given_up_total": (
        "Entries trimmed although another region may lack them (entriesHeldForRegionsMinutes)",
        TOPIC,
    ),
    "meridian_replication_holes_given_up_total": (
        "Ranges of entries that a region may have lost, for which this region stopped waiting",
        TOPIC,
    ),
    "meridian_periodic_work_failures_total": ("Failed runs of the periodic work", WORK),
    "meridian_damaged_entries_replaced_total": (
        "Damaged entries replaced by copies from another region",
        TOPIC,
    ),
    "meridian_metadata_published_total": ("Events of shared metadata published", ("cluster",)),
    "meridian_metadata_events_total": ("Events from other regions, by outcome", ("cluster", "verdict")),
    "meridian_metadata_overwritten_total": ("Conflicts since the broker started", ("cluster",)),
    "meridian_metadata_dead_letters_total": ("Events that could not be applied", ("cluster",)),
    "meridian_progress_link_connections_total": ("Times the link to the region was established", LINK),
}
SNAPSHOT_MS: Final = "pulsar_replicated_subscriptions_snapshot_ms"
STORAGE_COUNTERS: Final = {
    "appends": "Entries that became durable",
    "append_bytes": "Bytes of entries that became durable",
    "written_bytes": "Bytes given to the log",
    "write_failures": "Batches that the disk refused; with BookKeeper, ledgers whose writer failed",
    "reads": "Reads of stored entries",
    "read_entries": "Entries read",
    "read_bytes": "Bytes of entries read",
    "index_loads": "Indexes read back from files",
    "damaged_entries": "Entries found damaged",
    "moved_bytes": "Bytes copied to free old segments",
    "segments_removed": "Segment files removed",
    "checkpoints": "Index checkpoints written",
    "recovered_bytes": "Bytes of log read at startup",
    "offload_cache_hits": "Blocks of offloaded ledgers found in memory or already being read",
    "offload_cache_misses": "Blocks of offloaded ledgers read from the object store",
}
STORAGE_GAUGES: Final = {
    "pending_bytes": "meridian_ledger_pending_bytes",
    "ledgers": "meridian_ledgers",
    "segments": "meridian_ledger_segments",
    "log_bytes": "meridian_ledger_log_bytes",
    "live_bytes": "meridian_ledger_live_bytes",
    "index_entries": "meridian_ledger_index_entries",
    "recovery_seconds": "meridian_ledger_recovery_seconds",
    "bookies": "meridian_bookies",
    "offloaded_ledgers": "meridian_offloaded_ledgers",
    "offloaded_bytes": "meridian_offloaded_bytes",
    "offload_cache_bytes": "meridian_offload_cache_bytes",
}

Labels = tuple[str, ...]


@dataclass(slots=True)
class Reading:
    """Numbers of one moment; a new object for each scrape."""

    cluster: str
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    snapshots: dict[Labels, tuple[int, int]] = field(default_factory=dict)
    """A topic's complete snapshots, and the milliseconds that they took in total."""
    families: list[Metric] = field(default_factory=list)

    def put(self, name: str, labels: Labels, value: float) -> None:
        self.values.setdefault(name, {})[(self.cluster, *labels)] = value

    def add(self, name: str, labels: Labels, value: float) -> None:
        known = self.values.setdefault(name, {})
        known[(self.cluster, *labels)] = known.get((self.cluster, *labels), 0) + value


class _Read(Collector):
    """A reading as a collector."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterable[Metric]:
        for name, (text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            yield _filled(gauge, self._reading.values.get(name, {}))
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            yield _filled(counter, self._reading.values.get(name, {}))
        took = SummaryMetricFamily(SNAPSHOT_MS, "Milliseconds that complete snapshots took", labels=TOPIC)
        for of, (count, sum_ms) in self._reading.snapshots.items():
            took.add_metric(of, count, sum_ms)
        yield took
        yield from self._reading.families


def _filled(family: Any, values: dict[Labels, float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    metric: Metric = family
    return metric


async def metrics(request: web.Request) -> web.Response:
    """Metrics of this broker as Prometheus text."""

    async def text() -> bytes:
        reading = await read(state(request))
        reading.put("meridian_export_snapshots", (), request.app[EXPORTS].count)
        return await asyncio.to_thread(_text, reading)

    body = await request.app[SCRAPES].take(text)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class Scrapes:
    """One scrape at a time: a request that arrives during one gets the same text.

    Anybody may ask, and the numbers of 100,000 topics take hundreds of megabytes.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Future[bytes | None] | None = None
        """The scrape in progress; its result is None if it failed."""

    async def take(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The text from ``make``, called for this caller or another one."""
        while (others := self._under_way) is not None:
            if (text := await asyncio.shield(others)) is not None:
                return text
        mine = self._under_way = asyncio.get_running_loop().create_future()
        made: bytes | None = None
        try:
            made = await make()
            return made
        finally:
            self._under_way = None
            mine.set_result(made)


SCRAPES: Final = web.AppKey("scrapes", Scrapes)


def _text(reading: Reading) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Read(reading))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def read(admin: AdminState) -> Reading:
    """All numbers, in several turns of the loop."""
    reading = Reading(admin.region)
    lags = admin.exchange.lags()
    async for topic in in_turns(admin.service.topics.values()):
        await _topic(reading, admin, topic, lags)
    for remote, link in admin.exchange.links.status().items():
        reading.put("meridian_progress_link_up", (remote,), int(link.connected))
        reading.put("meridian_progress_link_connections_total", (remote,), link.connections)
        reading.add("meridian_unreplicated_entries", (remote,), 0)
    for work in admin.work():
        reading.put("meridian_periodic_work_failing", (work.name,), int(work.problem is not None))
        reading.put("meridian_periodic_work_seconds_since_success", (work.name,), work.seconds_since_success)
        reading.put("meridian_periodic_work_failures_total", (work.name,), work.failures)
    reading.put("meridian_connections", (), len(admin.gateway.connections))
    for name, value in asdict(admin.exchange.core.counters).items():
        text = f"Progress exchange: {name.replace('_', ' ')}"
        reading.families.append(_counter(f"meridian_progress_{name}", text, admin.region, value))
    _storage(reading, admin.ledgers.figures())
    if admin.sharing.session is not None:
        _sharing(reading, admin.sharing.session)
    return reading


def _sharing(reading: Reading, session: Session) -> None:
    applier = session.applier
    reading.put("meridian_metadata_outbox", (), session.owed)
    reading.put("meridian_metadata_conflicts", (), len(session.kept.conflicts))
    reading.put("meridian_metadata_parked", (), session.kept.parked_paths)
    reading.put("meridian_metadata_published_total", (), session.publisher.published)
    reading.put("meridian_metadata_overwritten_total", (), applier.counts.conflicts)
    reading.put("meridian_metadata_dead_letters_total", (), session.topic.dead_letters)
    for verdict in Verdict:
        reading.put("meridian_metadata_events_total", (verdict.value,), applier.counts.verdicts[verdict])
    for region, latest in applier.latest.items():
        lag_ms = max(0, latest.applied_ms - latest.written_ms)
        reading.put("meridian_metadata_lag_seconds", (region,), lag_ms / 1000)
    for region, peer in session.comparisons.peers.items():
        reading.put("meridian_metadata_differences", (region,), peer.differences)
        reading.put("meridian_metadata_clock_offset_seconds", (region,), peer.clock_offset_ms / 1000)


async def _topic(
    reading: Reading, admin: AdminState, topic: Topic, lags: Mapping[tuple[str, str], tuple[int, int]]
) -> None:
    labels = (topic_name.parse(topic.name).namespace_name, topic.name)
    log = topic.log
    producers = sum(1 for one in topic.producers.values() if one.remote_region is None)
    consumers, out, out_bytes = (
        0,
        topic.subscription_registry.messages_out_before,
        topic.subscription_registry.bytes_out_before,
    )
    async for one in in_turns(topic.subscriptions.values()):
        own = (*labels, one.name)
        consumers += len(one.consumers)
        out += one.messages_out
        out_bytes += one.bytes_out
        reading.put("pulsar_subscription_back_log", own, log.distance(one.cursor.mark_delete, log.last_confirmed))
        reading.put("pulsar_subscription_unacked_messages", own, one.unacked_messages)
        reading.put("pulsar_subscription_msg_out_total", own, one.messages_out)
        if admin.sync_metrics and one.replicated:
            _pairs(reading, admin, labels, one)
    reading.add("pulsar_topics_count", labels[:1], 1)
    reading.put("pulsar_subscriptions_count", labels, len(topic.subscriptions))
    reading.put("pulsar_producers_count", labels, producers)
    reading.put("pulsar_consumers_count", labels, consumers)
    reading.put("pulsar_storage_size", labels, log.size)
    messages, size = topic.received_totals()
    reading.put("pulsar_in_messages_total", labels, messages)
    reading.put("pulsar_in_bytes_total", labels, size)
    reading.put("pulsar_out_messages_total", labels, out)
    reading.put("pulsar_out_bytes_total", labels, out_bytes)
    reading.put("meridian_replicated_in_messages_total", labels, topic.stored.messages_replicated_in)
    reading.put("meridian_held_for_regions_bytes", labels, topic.retention_holds.bytes_held)
    reading.put("meridian_held_for_regions_given_up_total", labels, topic.retention_holds.entries_let_go)
    reading.put("meridian_replication_holes_given_up_total", labels, topic.log.holes.given_up)
    reading.put("meridian_damaged_entries", labels, len(topic.log.damage.damaged))
    reading.put("meridian_lost_progress_records", labels, topic.subscription_registry.lost_records.records)
    reading.put("meridian_damaged_entries_replaced_total", labels, topic.repair.replaced)
    _snapshots(reading, topic, labels)
    for remote, status in admin.replication.status(topic.name).items():
        far = (*labels, remote)
        reading.put("pulsar_replication_backlog", far, status.backlog)
        reading.put("pulsar_replication_connected_count", far, int(status.connected))
        reading.put("pulsar_replication_delay_in_seconds", far, status.delay_ms / 1000)
        reading.put("meridian_replicated_out_messages_total", far, status.messages_out)
        reading.put("meridian_replicated_out_bytes_total", far, status.bytes_out)
        tail = lagging.tail(topic, status)
        reading.put("meridian_unreplicated_tail_entries", far, tail.entries)
        reading.put("meridian_unreplicated_tail_bytes", far, tail.size)
        reading.put("meridian_unreplicated_tail_seconds", far, tail.age_ms / 1000)
        reading.add("meridian_unreplicated_entries", (remote,), tail.entries)
        lag_entries, lag_ms = lags.get((topic.name, remote), (0, 0))
        reading.put("meridian_progress_lag_entries", far, lag_entries)
        reading.put("meridian_progress_lag_seconds", far, lag_ms / 1000)


def _snapshots(reading: Reading, topic: Topic, labels: Labels) -> None:
    """Only for topics that take snapshots, or answer them."""
    snapshots = topic.snapshots
    if not isinstance(snapshots, TopicSnapshots) or (controller := snapshots.controller) is None:
        return
    counts = controller.counts
    reading.put("pulsar_replicated_subscriptions_pending_snapshots", labels, controller.pending)
    reading.snapshots[reading.cluster, *labels] = counts.completed, counts.completed_ms
    reading.put("pulsar_replicated_subscriptions_timedout_snapshots_total", labels, counts.timed_out)
    reading.put("meridian_replicated_subscriptions_updates_total", labels, controller.updates_written)
    reading.put("meridian_replicated_subscriptions_refused_markers_total", labels, snapshots.refused)


def _pairs(reading: Reading, admin: AdminState, labels: Labels, subscription: Subscription) -> None:
    """One series per subscription and region: only if a setting enables it."""
    for peer in lagging.peers(admin, subscription):
        far = (*labels, subscription.name, peer.region)
        reading.put("meridian_subscription_progress_lag_entries", far, peer.lag_entries)
        reading.put("meridian_subscription_progress_lag_seconds", far, peer.lag_ms / 1000)
        reading.put("meridian_subscription_in_sync", far, int(not peer.reason))
    size = subscription.cursor.progress.count_detail()
    reading.put("meridian_subscription_progress_set_size", (*labels, subscription.name), size)


def _storage(reading: Reading, figures: StorageFigures) -> None:
    for name, value in figures.gauges.items():
        reading.put(STORAGE_GAUGES[name], (), value)
    for name, value in figures.counters.items():
        text = STORAGE_COUNTERS.get(name)
        if text is not None:
            reading.families.append(_counter(f"meridian_ledger_{name}", text, reading.cluster, value))
    if figures.sync_buckets:
        seen, buckets = 0, []
        for bound, count in figures.sync_buckets.items():
            seen += count
            buckets.append((bound, float(seen)))
        syncs = HistogramMetricFamily("meridian_ledger_sync_seconds", "Calls of fdatasync", labels=("cluster",))
        syncs.add_metric((reading.cluster,), buckets, figures.sync_seconds)
        reading.families.append(syncs)


def _counter(name: str, text: str, cluster: str, value: float) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=("cluster",)), {(cluster,): value})
