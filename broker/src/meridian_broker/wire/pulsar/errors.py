# SPDX-License-Identifier: Apache-2.0
"""Errors on the wire: the protocol's numbers, and how a client is expected to react to each."""

from __future__ import annotations

from enum import IntEnum


class ServerError(IntEnum):
    """Code of an ERROR, SEND_ERROR or failed response. Names and numbers are the protocol's."""

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


class WireError(Exception):
    """An error that is sent to the client: ``code`` goes on the wire with the message.

    Each subclass names a situation; upper layers raise them, and only the gateway turns them into frames.
    The message says what happened, whose fault it is and what to do.
    """

    code: ServerError = ServerError.UNKNOWN


class MetadataError(WireError):
    """The metadata store did not answer, or refused."""

    code = ServerError.METADATA


class ServiceNotReadyError(WireError):
    """This broker does not serve the topic (now); look it up again."""

    code = ServerError.SERVICE_NOT_READY


class ChecksumError(WireError):
    """The message changed in transit."""

    code = ServerError.CHECKSUM


class ConsumerNotFoundError(WireError):
    """This connection has no such consumer."""

    code = ServerError.CONSUMER_NOT_FOUND


class TooManyRequestsError(WireError):
    """A bounded queue is full; try later."""

    code = ServerError.TOO_MANY_REQUESTS


class InvalidTopicNameError(WireError, ValueError):
    """The text is not a topic name."""

    code = ServerError.INVALID_TOPIC_NAME


class NotAllowedError(WireError):
    """The request is understood and refused: feature off, or not for this role."""

    code = ServerError.NOT_ALLOWED


class AuthorizationError(WireError):
    """The client's role has no permission for it."""

    code = ServerError.AUTHORIZATION
