# SPDX-License-Identifier: Apache-2.0
"""CONNECT, and staying alive. Before CONNECT nothing else is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.authentication import METHOD, NotAuthenticated
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.versions import PEER_PROTOCOL_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection

PEER_METHOD: Final = "meridian-peer"
"""Authentication method of brokers of other regions: the shared token as data."""
NO_REQUEST: Final = -1
SERVER_VERSION: Final = "Meridian 0.1"


def connect(connection: Connection, command: Any) -> None:
    """Answer CONNECT; a peer shows its token here and nowhere else (R7)."""
    asked: pb.CommandConnect = command.message
    broker = connection.broker
    if connection.started:
        connection.end("a second CONNECT")
        return
    if broker.draining:
        _turn_away(connection, ServerError.SERVICE_NOT_READY, "this broker is shutting down: look the topic up again")
        return
    if asked.auth_method_name == PEER_METHOD:
        if not broker.authentication.is_peer(asked.auth_data):
            text = "the peer token is not this region's: all regions need the same peerTokenFile"
            _turn_away(connection, ServerError.AUTHENTICATION, text)
            return
        connection.is_peer = True
    elif not broker.ready:
        _turn_away(connection, ServerError.SERVICE_NOT_READY, "this broker is starting: try again in a moment")
        return
    elif broker.authentication.required and not _authenticated(connection, asked):
        return
    connection.started_with(broker.max_message_bytes)
    connection.client_version = asked.client_version
    connection.protocol_version = min(asked.protocol_version, PROTOCOL_VERSION)
    features = pb.FeatureFlags(
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watchers=broker.pattern_length > 0,
        supports_topic_watcher_reconcile=broker.pattern_length > 0,
    )
    if connection.is_peer and asked.feature_flags.peer_protocol_version:
        connection.peer_version = min(asked.feature_flags.peer_protocol_version, PEER_PROTOCOL_VERSION)
        features.peer_protocol_version = PEER_PROTOCOL_VERSION
    answer = pb.CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=connection.protocol_version,
        max_message_size=broker.max_message_bytes,
        feature_flags=features,
    )
    connection.write(encode.simple(3, answer))


def _authenticated(connection: Connection, asked: pb.CommandConnect) -> bool:
    """Is this client who it says? If not, it has been told so."""
    try:
        if asked.auth_method_name != METHOD:
            raise NotAuthenticated(f"this region asks for authentication by {METHOD}: give the client a token")
        connection.broker.authentication.role(asked.auth_data)
    except NotAuthenticated as error:
        _turn_away(connection, ServerError.AUTHENTICATION, str(error))
        return False
    return True


def _turn_away(connection: Connection, code: ServerError, text: str) -> None:
    connection.write(encode.error(NO_REQUEST, code, text))
    connection.end(text)


def ping(connection: Connection, command: Any) -> None:
    del command
    connection.write(encode.PONG)


def nothing(connection: Connection, command: Any) -> None:
    """PONG and other commands that need no answer: hearing them is enough."""
    del connection, command
