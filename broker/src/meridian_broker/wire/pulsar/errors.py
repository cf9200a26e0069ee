# SPDX-License-Identifier: Apache-2.0
"""Errors on the wire: the protocol's numbers, and what a client of each is expected to do."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ServerError(IntEnum):
    """What an ERROR, SEND_ERROR or failed response carries. Names and numbers are the protocol's."""

    UNKNOWN = 0
    METADATA = 1
    """The metadata store failed; also "consumer not found" and "encryption required"."""
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    """Exclusive subscription taken, type mismatch, or too many consumers."""
    SERVICE_NOT_READY = 6
    """Not the owner (any more), or not yet: the client looks the topic up again and retries."""
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    """Backlog quota with policy hold: the client waits."""
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    """The name is taken, or too many producers."""
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


RETRYABLE: Final = frozenset({ServerError.SERVICE_NOT_READY, ServerError.TOO_MANY_REQUESTS, ServerError.METADATA})
"""After one of these a client tries again by itself; every other error reaches its caller at once."""


class WireError(Exception):
    """An error that is answered to the client: ``code`` goes on the wire with the message.

    Subclasses give each situation a name; rooms above raise those, and only the gateway turns them into frames.
    The message says what happened, whose fault it is and what to do.
    """

    code: ServerError = ServerError.UNKNOWN


class MetadataError(WireError):
    """The metadata store did not answer, or refused."""

    code = ServerError.METADATA


class PersistenceError(WireError):
    """The ledger could not be written or read."""

    code = ServerError.PERSISTENCE


class AuthenticationError(WireError):
    """The client did not prove who it is."""

    code = ServerError.AUTHENTICATION


class AuthorizationError(WireError):
    """The client's role may not do this."""

    code = ServerError.AUTHORIZATION


class ConsumerBusyError(WireError):
    """Another consumer holds the subscription, in another way or alone."""

    code = ServerError.CONSUMER_BUSY


class ServiceNotReadyError(WireError):
    """This broker does not serve the topic (now); look it up again."""

    code = ServerError.SERVICE_NOT_READY


class ProducerHeldError(WireError):
    """Backlog quota: the producer is to wait until the backlog shrinks."""

    code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR


class ProducerRefusedError(WireError):
    """Backlog quota: the producer is told so."""

    code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION


class ChecksumError(WireError):
    """The message changed on its way here."""

    code = ServerError.CHECKSUM


class UnsupportedVersionError(WireError):
    """The client's protocol is too old for what the topic needs."""

    code = ServerError.UNSUPPORTED_VERSION


class TopicNotFoundError(WireError):
    """There is no such topic, namespace or tenant, and none is made."""

    code = ServerError.TOPIC_NOT_FOUND


class SubscriptionNotFoundError(WireError):
    """There is no such subscription, and none is made."""

    code = ServerError.SUBSCRIPTION_NOT_FOUND


class ConsumerNotFoundError(WireError):
    """This connection has no such consumer."""

    code = ServerError.CONSUMER_NOT_FOUND


class TooManyRequestsError(WireError):
    """A bounded queue is full; try later."""

    code = ServerError.TOO_MANY_REQUESTS


class TopicTerminatedError(WireError):
    """The topic was ended: it can be read, not written."""

    code = ServerError.TOPIC_TERMINATED


class ProducerBusyError(WireError):
    """Another producer has the name, or there are too many."""

    code = ServerError.PRODUCER_BUSY


class InvalidTopicNameError(WireError, ValueError):
    """The text is no topic name."""

    code = ServerError.INVALID_TOPIC_NAME


class IncompatibleSchemaError(WireError):
    """The schema does not fit those the topic has."""

    code = ServerError.INCOMPATIBLE_SCHEMA


class ConsumerAssignError(WireError):
    """Key ranges of sticky consumers overlap."""

    code = ServerError.CONSUMER_ASSIGN


class NotAllowedError(WireError):
    """The request is understood and refused: feature off, or not for this role."""

    code = ServerError.NOT_ALLOWED


class ProducerFencedError(WireError):
    """Another producer got exclusive access."""

    code = ServerError.PRODUCER_FENCED


def _situations() -> dict[ServerError, type[WireError]]:
    table: dict[ServerError, type[WireError]] = {ServerError.UNKNOWN: WireError}
    for situation in WireError.__subclasses__():
        table.setdefault(situation.code, situation)
    return table


SITUATIONS: Final = _situations()
"""Wire code to error class, for the client role; codes without a class of their own are plain ``WireError``."""


def from_code(code: int, message: str) -> WireError:
    """The error a peer answered, as an exception. Unknown codes become ``WireError``, their number in the text."""
    try:
        known = ServerError(code)
    except ValueError:
        return WireError(f"{message} (error code {code}, which this version does not know)")
    error = SITUATIONS.get(known, WireError)(message)
    error.code = known
    return error
