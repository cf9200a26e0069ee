# SPDX-License-Identifier: Apache-2.0
"""Reads the numbers: on the loop, a few topics per turn, and never by walking entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.metrics.table import STORAGE_COUNTERS, STORAGE_GAUGES
from meridian_broker.gateway.metadata_session import Session
from meridian_broker.ledgers.storage import StorageFigures
from meridian_broker.metadata.sync.converging import Verdict
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

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
    if admin.metadata_sync.session is not None:
        _metadata_sync(reading, admin.metadata_sync.session)
    return reading


def _metadata_sync(reading: Reading, session: Session) -> None:
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
    return filled(CounterMetricFamily(name, text, labels=("cluster",)), {(cluster,): value})


def filled(family: Any, values: dict[Labels, float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    metric: Metric = family
    return metric
