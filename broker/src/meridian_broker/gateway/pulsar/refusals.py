# SPDX-License-Identifier: Apache-2.0
"""The one place where situations become the wire's error codes."""

from __future__ import annotations

from typing import Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics import errors as situations
from meridian_broker.wire.pulsar.errors import ServerError, WireError
from meridian_broker.wire.pulsar.metadata import BodyError

REFUSALS: Final = (situations.TopicError, WireError, LedgerError, MetadataError)
"""Expected failures of a request; any other exception is a bug and ends the connection."""

CODES: Final[dict[type[Exception], ServerError]] = {
    situations.TopicNotFound: ServerError.TOPIC_NOT_FOUND,
    situations.OtherKind: ServerError.TOPIC_NOT_FOUND,
    situations.NotInThisRegion: ServerError.NOT_ALLOWED,
    situations.TopicUnreadable: ServerError.PERSISTENCE,
    situations.SubscriptionNotFound: ServerError.SUBSCRIPTION_NOT_FOUND,
    situations.SubscriptionInUse: ServerError.METADATA,
    situations.ConsumerBusy: ServerError.CONSUMER_BUSY,
    situations.ConsumerAssignError: ServerError.CONSUMER_ASSIGN,
    situations.ProducerBusy: ServerError.PRODUCER_BUSY,
    situations.ProducerFenced: ServerError.PRODUCER_FENCED,
    situations.BacklogQuotaHold: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    situations.BacklogQuotaException: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
    situations.TopicFenced: ServerError.SERVICE_NOT_READY,
    situations.TopicTerminated: ServerError.TOPIC_TERMINATED,
    situations.MessageTooLarge: ServerError.NOT_ALLOWED,
    situations.NotAllowed: ServerError.NOT_ALLOWED,
    situations.ReplicationGap: ServerError.PRODUCER_FENCED,
    situations.OriginConflict: ServerError.CHECKSUM,
    situations.TooManyWatchers: ServerError.TOO_MANY_REQUESTS,
    situations.InvalidName: ServerError.INVALID_TOPIC_NAME,
    situations.IncompatibleSchema: ServerError.INCOMPATIBLE_SCHEMA,
    BodyError: ServerError.CHECKSUM,
    LedgerError: ServerError.SERVICE_NOT_READY,
    MetadataError: ServerError.METADATA,
}


def code_of(error: Exception) -> ServerError:
    """The wire's code for a situation."""
    if isinstance(error, WireError):
        return ServerError(error.code)
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return ServerError.UNKNOWN
