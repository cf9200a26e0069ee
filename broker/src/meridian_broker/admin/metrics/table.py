# SPDX-License-Identifier: Apache-2.0
"""Every metric of a broker: its name, what it says, its labels."""

from __future__ import annotations

from typing import Final

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
        "Paths that have differed since before metadata was shared, still undecided",
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
