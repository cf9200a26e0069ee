# SPDX-License-Identifier: Apache-2.0
"""Settings of the traffic between regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from meridian_broker.server.setting_fields import DYNAMIC, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Messages and acknowledgements on their way to the other regions."""

    replicate_subscription_state: bool = field(default=False, metadata=DYNAMIC)
    """New durable subscriptions are replicated, unless their consumer or a policy of the topic or its namespace says
    otherwise. Existing ones stay as they are."""

    subscription_sync: Literal["exact", "snapshot"] = field(default="exact", metadata=DYNAMIC)
    """How Meridian regions keep replicated subscriptions in step, unless a policy of the topic or its namespace says
    otherwise (`subscriptionSync`). `exact`: every acknowledgement travels. `snapshot`: they learn only the position
    up to which everything is acknowledged, by snapshots as Pulsar takes them (PIP-33). Regions that run Pulsar always
    follow by snapshots."""

    enable_replicated_subscriptions: bool = field(default=True, metadata=DYNAMIC)
    """Snapshots are taken and answered. Without them, subscriptions in snapshot mode do not move in other regions, and
    no other region's snapshot of such a topic is completed."""

    replicated_subscriptions_snapshot_frequency_millis: int = whole(1000, 100, 3_600_000)
    """Milliseconds between the beginnings of two snapshots of one topic. A topic to which nothing is published takes
    none. After a failover, a consumer in snapshot mode may get the messages of this time again."""

    replicated_subscriptions_snapshot_timeout_seconds: int = whole(30, 1, 3600)
    """Seconds after which a snapshot that some region has not answered is given up."""

    replicated_subscriptions_snapshot_max_cached_per_subscription: int = whole(30, 3, 10_000)
    """Snapshots kept for a subscription, past its position. If there are more, those that leave the smallest gaps are
    dropped."""

    expose_subscription_sync_metrics_in_prometheus: bool = False
    """`/metrics` also shows how far each other region is behind with each replicated subscription: one series per
    subscription and region. The figure per topic and region is always shown."""

    replication_producer_queue_size: int = whole(1000, 1, 100_000)
    """Unconfirmed messages per topic that may be on their way to a remote region."""

    barrier_timeout_millis: int = whole(250, 0, 60_000)
    """Longest wait, in milliseconds, for the newest progress of the other regions before the first message goes to a
    subscription that had no consumers here, and for their confirmation before a consumer's close is answered."""

    dispatch_lease_seconds: int = whole(6, 2, 600)
    """For subscriptions with dispatch scope `origin`: how long, in seconds, after a region fails another one takes over
    its stream, and how long after a crash a region waits for its own. Leases are renewed after a third of it, with one
    message to each region."""

    progress_coalesce_millis: int = whole(2, 0, 1000)
    """Longest time, in milliseconds, for which acknowledgements wait to travel together while others are under way to
    the same region."""

    digest_interval_seconds: int = whole(3, 1, 3600)
    """Seconds between two comparisons of a topic's progress with another region's."""
