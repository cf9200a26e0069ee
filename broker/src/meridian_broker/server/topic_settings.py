# SPDX-License-Identifier: Apache-2.0
"""What a broker's settings mean for its topics: their bounds, and the rules that policies override."""

from __future__ import annotations

from collections.abc import Callable

from meridian_broker.ledgers.throttling import Rate, Throttle, throttle_for
from meridian_broker.metadata.policy_values import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    Retention,
)
from meridian_broker.metadata.rules import Rules
from meridian_broker.replication.snapshots.ports import SnapshotRules
from meridian_broker.server.settings import Settings
from meridian_broker.server.settings_backlog import BacklogSettings
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.topics.snapshots.host import SnapshotSettings


class TopicDefaults:
    """What holds for all topics where no policy says otherwise, by settings that may be changed while they are open."""

    def __init__(self, settings: Settings, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.publishing: Throttle | None = None
        """Keeps all clients together within their rate; None: no limit."""
        self.follow(settings)

    def follow(self, settings: Settings) -> None:
        """Call it when settings may have changed."""
        limits = settings.limits
        rate = Rate(
            limits.broker_publisher_throttling_max_message_rate, limits.broker_publisher_throttling_max_byte_rate
        )
        self.publishing = throttle_for(rate, self.publishing, self._now_ms())
        self.rules = default_rules(settings)
        self.snapshots = snapshot_settings(settings)


def cache_bytes(settings: Settings) -> int:
    """How many bytes of their newest entries all topics together may keep in memory."""
    return settings.storage.managed_ledger_cache_size_mb << 20


def topic_limits(settings: Settings) -> TopicLimits:
    """Bounds of every topic."""
    topics = settings.topics
    return TopicLimits(
        message_bytes=settings.network.max_message_size,
        schema_bytes=topics.max_schema_bytes_per_topic,
        schema_bytes_in_namespace=topics.max_schema_bytes_per_namespace,
        new_schemas_per_minute=topics.max_new_schemas_per_minute,
        dedup_producers=topics.broker_deduplication_max_number_of_producers,
        dedup_entries=topics.broker_deduplication_entries_interval,
        dedup_idle_minutes=topics.broker_deduplication_producer_inactivity_timeout_minutes,
        shadow_reset_backlog=topics.shadow_replicator_auto_reset_backlog_entries,
        entries_held_minutes=topics.entries_held_for_regions_minutes,
        closed_seconds=topics.forced_unsubscribe_closed_seconds,
        failover_delay_seconds=topics.active_consumer_failover_delay_time_millis / 1000,
    )


def snapshot_settings(settings: Settings) -> SnapshotSettings:
    """What holds for snapshots of subscriptions."""
    replication = settings.replication
    return SnapshotSettings(
        enabled=replication.enable_replicated_subscriptions,
        rules=SnapshotRules(
            interval_ms=replication.replicated_subscriptions_snapshot_frequency_millis,
            timeout_ms=replication.replicated_subscriptions_snapshot_timeout_seconds * 1000,
            cached=replication.replicated_subscriptions_snapshot_max_cached_per_subscription,
        ),
    )


def compaction_limits(settings: Settings) -> CompactionLimits:
    """Bounds of every compaction."""
    storage = settings.storage
    return CompactionLimits(
        bytes_per_second=storage.compaction_rate_in_mb_per_second << 20,
        keep_keyless=storage.topic_compaction_retain_null_key,
    )


def default_rules(settings: Settings) -> Rules:
    """Rules for topics where neither they nor their namespaces have a policy."""
    unused = settings.removal
    topics, storage, limits, offload = settings.topics, settings.storage, settings.limits, settings.offload
    return Rules(
        publish_rate=PublishRate(
            limits.max_publish_rate_per_topic_in_messages, limits.max_publish_rate_per_topic_in_bytes
        ),
        dispatch_rate=DispatchRate(
            limits.dispatch_throttling_rate_per_topic_in_msg, limits.dispatch_throttling_rate_per_topic_in_byte
        ),
        subscription_dispatch_rate=DispatchRate(
            limits.dispatch_throttling_rate_per_subscription_in_msg,
            limits.dispatch_throttling_rate_per_subscription_in_byte,
        ),
        replicator_dispatch_rate=DispatchRate(
            limits.dispatch_throttling_rate_per_replicator_in_msg,
            limits.dispatch_throttling_rate_per_replicator_in_byte,
        ),
        retention=Retention(storage.default_retention_time_in_minutes, storage.default_retention_size_in_mb),
        message_ttl_seconds=storage.ttl_duration_default_in_seconds,
        backlog_quotas=_quotas(settings.backlog),
        deduplication=topics.broker_deduplication_enabled,
        replicate_subscriptions=settings.replication.replicate_subscription_state,
        subscription_sync=settings.replication.subscription_sync,
        max_producers=topics.max_producers_per_topic,
        max_consumers=topics.max_consumers_per_topic,
        max_consumers_per_subscription=topics.max_consumers_per_subscription,
        max_subscriptions=topics.max_subscriptions_per_topic,
        max_topics=topics.max_topics_per_namespace,
        max_unacked_per_consumer=topics.max_unacked_messages_per_consumer,
        max_unacked_per_subscription=topics.max_unacked_messages_per_subscription,
        delayed_delivery=DelayedDelivery(
            topics.delayed_delivery_enabled, max_delay_ms=topics.delayed_delivery_max_delay_in_millis
        ),
        inactive_topics=InactiveTopics(
            unused.broker_delete_inactive_topics_enabled,
            unused.broker_delete_inactive_topics_mode,
            unused.broker_delete_inactive_topics_max_inactive_duration_seconds
            or unused.broker_delete_inactive_topics_frequency_seconds,
        ),
        offload_threshold_bytes=offload.managed_ledger_offload_auto_trigger_size_threshold_bytes,
        offload_threshold_seconds=offload.managed_ledger_offload_threshold_in_seconds,
        offload_deletion_lag_ms=offload.managed_ledger_offload_deletion_lag_ms,
        subscription_expiration_minutes=unused.subscription_expiration_time_minutes,
        compaction_threshold_bytes=storage.broker_service_compaction_threshold_in_bytes,
        auto_topic_creation=AutoTopicCreation(
            topics.allow_auto_topic_creation,
            topics.allow_auto_topic_creation_type == "partitioned",
            topics.default_num_partitions,
        ),
        auto_subscription_creation=AutoSubscriptionCreation(topics.allow_auto_subscription_creation),
    )


def _quotas(backlog: BacklogSettings) -> dict[str, BacklogQuota]:
    policy, found = backlog.backlog_quota_default_retention_policy, {}
    if backlog.backlog_quota_default_limit_bytes >= 0:
        found[backlog_quotas.SIZE] = BacklogQuota(backlog.backlog_quota_default_limit_bytes, -1, policy)
    if backlog.backlog_quota_default_limit_second > 0:
        found[backlog_quotas.AGE] = BacklogQuota(-1, backlog.backlog_quota_default_limit_second, policy)
    return found
