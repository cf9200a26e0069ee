# SPDX-License-Identifier: Apache-2.0
"""What can go wrong for a client of a topic, by situation. The gateway maps each to the wire's error code."""

from __future__ import annotations

from typing import Final

NO_TRANSACTIONS: Final = "transactions are not supported by Meridian"
NOT_FROM_CLIENTS: Final = "markers, origins and message ids are set by brokers of other regions only"


class TopicError(Exception):
    """Base: a request on a topic was refused. The message says what to do."""


class TopicNotFound(TopicError):
    """There is no such topic, and it may not be made by itself."""


class NotInThisRegion(TopicError):
    """The topic's namespace lives in other regions only: what is published here would reach nobody."""


class TopicUnreadable(TopicError):
    """What is stored of the topic cannot be read: a newer broker wrote it, or it is damaged."""


class SubscriptionNotFound(TopicError):
    """There is no such subscription, and it may not be made by itself."""


class SubscriptionInUse(TopicError):
    """The subscription has consumers: close them or force."""


class SubscriptionExists(TopicError):
    """There is one of that name already."""


class ConsumerBusy(TopicError):
    """The subscription's place is taken: an exclusive consumer is there, or consumers of another type."""


class ConsumerAssignError(TopicError):
    """The key ranges a consumer asks for are no ranges, or another consumer's."""


class ProducerBusy(TopicError):
    """A producer of that name is connected."""


class ProducerFenced(TopicError):
    """Another producer is alone on the topic, or was since this one was let in."""


class BacklogQuotaHold(TopicError):
    """Too much waits on the topic: the client tries again, and keeps its messages meanwhile."""


class BacklogQuotaException(TopicError):
    """Too much waits on the topic: the client tells its application."""


class CannotTellRepeat(TopicError):
    """The message came before and is not durable yet: nobody can say whether this is a repeat."""


class TopicFenced(TopicError):
    """The topic is closing, moving or lost its ledger: the client should look it up again."""


class TopicTerminated(TopicError):
    """The topic takes no more messages."""


class OtherKind(TopicError):
    """Another region has the name for a topic with partitions, and this one for a topic without, or the reverse."""


class NotAllowed(TopicError):
    """Not for this client, or not on this topic."""


class LimitReached(NotAllowed):
    """A policy says how many there may be, and so many are there."""


class MessageTooLarge(NotAllowed):
    """Larger than the announced maximum."""


class GapNotAcceptable(TopicError):
    """What is missing of another region may still be found, or is not what whoever accepts its loss has seen (R4)."""


class ReplicationGap(TopicError):
    """A replicated entry is not the next one of its origin (R4)."""


class OriginConflict(TopicError):
    """The same origin came with other bytes (R7)."""


class CompactionRunning(TopicError):
    """The topic is being compacted already."""


class TopicInUse(TopicError):
    """Clients are connected: close them or force."""


class TooManyWatchers(TopicError):
    """As many watchers as the broker takes are there."""


class InvalidName(TopicError):
    """The name is not one a topic can have."""


class IncompatibleSchema(TopicError):
    """The schema cannot be added beside the ones that exist."""
