# SPDX-License-Identifier: Apache-2.0
"""The table of policies that have a path of their own, of namespaces and of topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meridian_broker.metadata import policy_table as policies


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one policy is read and set. An empty path: not at that level."""

    policy: str
    namespace: str
    topic: str
    what: str
    """What it holds; completes "Read ..."."""
    everywhere: bool = False
    """Setting it in one region sets it in all, unless ``?region=`` names that one alone."""
    verb: str = "POST"
    """The HTTP method that sets it."""
    unset: int | None = None
    """The answer when it is not set; None: an empty one."""


ENDPOINTS: Final = (
    Endpoint(policies.RETENTION, "retention", "retention", "how long acknowledged messages are kept"),
    Endpoint(policies.MESSAGE_TTL, "messageTTL", "messageTTL", "the seconds after which messages expire"),
    Endpoint(
        policies.DEDUPLICATION, "deduplication", "deduplicationEnabled", "whether duplicates from producers are dropped"
    ),
    Endpoint(policies.ENCRYPTION_REQUIRED, "encryptionRequired", "", "whether producers must encrypt"),
    Endpoint(
        policies.REPLICATE_SUBSCRIPTIONS,
        "replicateSubscriptionState",
        "replicateSubscriptionState",
        "whether new subscriptions are replicated, unless their creator says otherwise",
        everywhere=True,
    ),
    Endpoint(
        policies.SUBSCRIPTION_SYNC,
        "subscriptionSync",
        "subscriptionSync",
        "how replicated subscriptions are kept in step between Meridian regions: exact, or snapshot (PIP-33)",
        everywhere=True,
    ),
    Endpoint(policies.MAX_PRODUCERS, "maxProducersPerTopic", "maxProducers", "how many producers a topic may have"),
    Endpoint(
        policies.PUBLISH_RATE, "publishRate", "publishRate", "how much may be published per second, in this region"
    ),
    Endpoint(
        policies.DISPATCH_RATE, "dispatchRate", "dispatchRate", "how much may be sent to all consumers, in this region"
    ),
    Endpoint(
        policies.SUBSCRIPTION_DISPATCH_RATE,
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "how much may be sent to the consumers of each subscription, in this region",
    ),
    Endpoint(
        policies.REPLICATOR_DISPATCH_RATE,
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "how much may be sent from this region to each other region",
    ),
    Endpoint(
        policies.DELAYED_DELIVERY,
        "delayedDelivery",
        "delayedDelivery",
        "whether messages may be delayed, and by how much",
    ),
    Endpoint(
        policies.INACTIVE_TOPICS, "inactiveTopicPolicies", "inactiveTopicPolicies", "when unused topics are removed"
    ),
    Endpoint(
        policies.COMPACTION_THRESHOLD,
        "compactionThreshold",
        "compactionThreshold",
        "how many uncompacted bytes trigger a topic's compaction",
    ),
    Endpoint(policies.MAX_CONSUMERS, "maxConsumersPerTopic", "maxConsumers", "how many consumers a topic may have"),
    Endpoint(
        policies.MAX_CONSUMERS_PER_SUBSCRIPTION,
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "how many consumers a subscription may have",
    ),
    Endpoint(
        policies.MAX_SUBSCRIPTIONS,
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        "how many subscriptions a topic may have",
    ),
    Endpoint(policies.MAX_TOPICS, "maxTopicsPerNamespace", "", "how many topics the namespace may have"),
    Endpoint(
        policies.MAX_UNACKED_PER_CONSUMER,
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "how many messages a consumer may have without acknowledging them",
    ),
    Endpoint(
        policies.MAX_UNACKED_PER_SUBSCRIPTION,
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "how many messages all consumers of a subscription may have without acknowledging them",
    ),
    Endpoint(
        policies.MAX_MESSAGE_SIZE, "", "maxMessageSize", "how many bytes a message may have, including its metadata"
    ),
    Endpoint(
        policies.OFFLOAD_THRESHOLD,
        "offloadThreshold",
        "",
        "how many bytes of a topic may stay out of the object store; -1: no limit",
        verb="PUT",
        unset=-1,
    ),
    Endpoint(
        policies.OFFLOAD_THRESHOLD_SECONDS,
        "offloadThresholdInSeconds",
        "",
        "the age at which ledgers are copied to the object store; -1: never",
        verb="PUT",
        unset=-1,
    ),
    Endpoint(
        policies.OFFLOAD_LAG,
        "offloadDeletionLagMs",
        "",
        "how long ledgers stay in their original storage after being copied to the object store",
        verb="PUT",
    ),
    Endpoint(
        policies.ENABLED_TYPES,
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        "the allowed subscription types",
    ),
    Endpoint(
        policies.SUBSCRIPTION_EXPIRATION,
        "subscriptionExpirationTime",
        "",
        "the minutes without a consumer after which a subscription is deleted",
    ),
    Endpoint(
        policies.AUTO_TOPICS, "autoTopicCreation", "", "whether clients create topics by using them, and of which kind"
    ),
    Endpoint(
        policies.AUTO_SUBSCRIPTIONS,
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        "whether consumers create subscriptions by using them",
    ),
)
