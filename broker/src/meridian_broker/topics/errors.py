# SPDX-License-Identifier: Apache-2.0
"""Errors for clients of a topic, by situation. The gateway maps each to the wire's error code."""

from __future__ import annotations

from typing import Final

NO_TRANSACTIONS: Final = "transactions are not supported by Meridian"
NOT_FROM_CLIENTS: Final = "markers, origins and message ids are set by brokers of other regions only"


class TopicError(Exception):
    """Base: a request on a topic was refused. The message says what to do."""


class TopicNotFound(TopicError):
    """The topic does not exist and must not be created automatically."""


class NotInThisRegion(TopicError):
    """The topic's namespace exists in other regions only: messages published here would reach no consumer."""


class TopicUnreadable(TopicError):
    """The stored topic cannot be read: a newer broker wrote it, or it is damaged."""


class SubscriptionNotFound(TopicError):
    """The subscription does not exist and must not be created automatically."""


class SubscriptionInUse(TopicError):
    """The subscription has consumers: close them or force."""


class SubscriptionExists(TopicError):
    """A subscription of that name exists already."""


class ConsumerBusy(TopicError):
    """An exclusive consumer is connected, or consumers of another type are."""


class ConsumerAssignError(TopicError):
    """The key ranges that a consumer asks for are not valid, or overlap another consumer's."""


class ProducerBusy(TopicError):
    """A producer of that name is connected."""


class ProducerFenced(TopicError):
    """Another producer has exclusive access to the topic, or had it since this one was admitted."""


class BacklogQuotaHold(TopicError):
    """The backlog exceeds its quota: the client retries, and keeps its messages meanwhile."""


class BacklogQuotaException(TopicError):
    """The backlog exceeds its quota: the client reports it to its application."""


class CannotTellRepeat(TopicError):
    """The message arrived before and is not durable yet, so whether this is a repeat is unknown."""


class TopicFenced(TopicError):
    """The topic is closing, moving or lost its ledger: the client should look it up again."""


class TopicElsewhere(TopicFenced):
    """Another broker of the region owns the topic."""


class TopicTerminated(TopicError):
    """The topic accepts no more messages."""


class OtherKind(TopicError):
    """Another region has a topic of this name with partitions, and this region one without, or the reverse."""


class NotAllowed(TopicError):
    """Not allowed for this client, or not on this topic."""


class LimitReached(NotAllowed):
    """The limit set by a policy is reached."""


class MessageTooLarge(NotAllowed):
    """Larger than the announced maximum."""


class GapNotAcceptable(TopicError):
    """Entries missing from another region may still be found, or differ from those whose loss is being accepted
    (R4).
    """


class ReplicationGap(TopicError):
    """A replicated entry is not the next one of its origin (R4)."""


class OriginConflict(TopicError):
    """An entry with the same origin arrived with different bytes (R7)."""


class OffloadRunning(TopicError):
    """Ledgers of the topic are being offloaded already."""


class CompactionRunning(TopicError):
    """The topic is being compacted already."""


class TopicInUse(TopicError):
    """Clients are connected: close them or force."""


class TooManyWatchers(TopicError):
    """The broker's limit of watchers is reached."""


class InvalidName(TopicError):
    """The name is not a valid topic name."""


class IncompatibleSchema(TopicError):
    """The schema cannot be added to the existing ones."""
