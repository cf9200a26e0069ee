# SPDX-License-Identifier: Apache-2.0
"""Settings of topics and their clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from meridian_broker.server.setting_fields import DYNAMIC, whole

TopicCreationType = Literal["partitioned", "non-partitioned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Creation of topics and subscriptions, and delivery to consumers."""

    allow_auto_topic_creation: bool = field(default=True, metadata=DYNAMIC)
    """A producer or consumer that names a topic which does not exist creates it."""

    allow_auto_topic_creation_type: TopicCreationType = field(default="non-partitioned", metadata=DYNAMIC)
    """Kind of topic that is created then."""

    default_num_partitions: int = whole(1, 1, 1000, dynamic=True)
    """Partitions of a partitioned topic that is created that way."""

    default_number_of_namespace_bundles: int = whole(4, 1, 1024, dynamic=True)
    """Bundles of a namespace that is created without saying how many. Brokers of a region own topics by bundle."""

    allow_auto_subscription_creation: bool = field(default=True, metadata=DYNAMIC)
    """A consumer that names a subscription which does not exist creates it."""

    subscription_pattern_max_length: int = whole(50, 0, 1000)
    """Longest pattern over topic names that the broker evaluates for a client, in characters. With a longer one the
    client gets all names and filters them itself, and cannot watch for new topics. 0: clients evaluate every pattern
    themselves."""

    max_unacked_messages_per_consumer: int = whole(50_000, 0, 10_000_000, dynamic=True)
    """Number of unacknowledged messages at which delivery to one consumer of a Shared subscription pauses. 0: no
    limit."""

    max_unacked_messages_per_subscription: int = whole(200_000, 0, 100_000_000, dynamic=True)
    """The same for all consumers of a subscription together. 0: no limit."""

    max_producers_per_topic: int = whole(0, 0, 10_000, dynamic=True)
    """Producers of one topic or partition, replicators of other regions not counted. A namespace's own policy comes
    first. 0: 10000, which is also the most."""

    max_consumers_per_topic: int = whole(0, 0, 1_000_000, dynamic=True)
    """Consumers of one topic or partition, including readers. 0: no limit. As with all policies, the topic's or its
    namespace's comes first."""

    max_consumers_per_subscription: int = whole(0, 0, 1_000_000, dynamic=True)
    """Consumers of one subscription of a topic or partition. 0: no limit."""

    max_subscriptions_per_topic: int = whole(0, 0, 1_000_000, dynamic=True)
    """Subscriptions of one topic or partition; those of readers do not count. 0: no limit."""

    max_topics_per_namespace: int = whole(0, 0, 1_000_000, dynamic=True)
    """Topics of one namespace; each partition counts. Topics that are replicated from other regions are created
    regardless. 0: no limit."""

    max_schema_bytes_per_topic: int = whole(16 << 20, 0, 1 << 40)
    """Bytes that the schemas of one topic may take in the metadata store. Schemas from other regions are stored
    regardless. 0: no limit."""

    max_schema_bytes_per_namespace: int = whole(64 << 20, 0, 1 << 40)
    """The same for all topics of one namespace. A full etcd accepts no writes of any kind."""

    max_new_schemas_per_minute: int = whole(600, 0, 1_000_000)
    """New schemas that one role may add in a minute, or one address where clients have no roles. 0: no limit."""

    delayed_delivery_enabled: bool = field(default=True, metadata=DYNAMIC)
    """Messages may ask to be delivered later. If not, they are delivered at once."""

    delayed_delivery_max_delay_in_millis: int = whole(0, 0, 1 << 50, dynamic=True)
    """Longest delay, in milliseconds after publishing, that a message may ask for. A longer one is refused. 0: no
    limit."""

    broker_deduplication_enabled: bool = field(default=False, metadata=DYNAMIC)
    """Messages that a producer sends again under the same name with the same sequence id are stored once. A namespace's
    own policy comes first."""

    broker_deduplication_max_number_of_producers: int = whole(10_000, 1, 1_000_000)
    """Producer names per topic whose last sequence id is remembered. Beyond that, the least recently used names are
    forgotten; connected ones stay."""

    broker_deduplication_entries_interval: int = whole(1000, 1, 1_000_000)
    """Entries of a topic after which the last sequence ids are written. After a restart at most this many are read to
    restore the rest."""

    broker_deduplication_producer_inactivity_timeout_minutes: int = whole(360, 1, 10_000_000)
    """Minutes for which the last sequence id of a disconnected producer is remembered."""

    active_consumer_failover_delay_time_millis: int = whole(1000, 0, 600_000)
    """Milliseconds a Failover subscription waits before another consumer becomes active, so that the acknowledgements
    of the one before can arrive."""

    forced_unsubscribe_closed_seconds: int = whole(30, 0, 86_400)
    """Seconds for which clients cannot recreate a subscription that was deleted by force, in any region, so that a
    consumer that reconnects does not bring it back. The admin API can recreate it at once."""

    shadow_replicator_auto_reset_backlog_entries: int = whole(0, 0, 1_000_000_000)
    """For shadows whose source another broker serves: once a shadow's broker has more unread entries than this, its
    replicator goes on from the end of the source. Unread entries of a ledger that is full by then are not read ahead
    for all shadows together, but only when a subscription asks for them. No subscription loses any. 0: never."""

    entries_held_for_regions_minutes: int = whole(1440, 0, 525_600)
    """Minutes for which entries of another region are kept beyond their retention because a third region lacks them,
    or cannot be reached: this region may have to forward them. 0: they are not kept for that."""
