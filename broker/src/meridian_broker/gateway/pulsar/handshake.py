# SPDX-License-Identifier: Apache-2.0
"""CONNECT and keep-alive. Before CONNECT no other command is accepted."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.authentication import METHOD, SCOPES, NotAuthenticated
from meridian_broker.gateway.client_options import PEER_AUTH_METHOD
from meridian_broker.gateway.pulsar.sources import belongs_to_pulsar
from meridian_broker.gateway.tls import channel_binding
from meridian_broker.topics.policies import METADATA_BYTES
from meridian_broker.wire.peer_proof import WITHIN, NotProven
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.versions import PEER_PROTOCOL_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection

NO_REQUEST: Final = -1
SERVER_VERSION: Final = "Meridian 0.1"


def connect(connection: Connection, command: Any) -> None:
    """Answer CONNECT. A peer is asked for a proof; no other connection is ever treated as a peer (R7)."""
    asked: pb.CommandConnect = command.message
    broker = connection.broker
    if connection.started or connection.proving is not None or connection in broker.waiting:
        connection.end("a second CONNECT")
        return
    if broker.draining:
        _turn_away(connection, ServerError.SERVICE_NOT_READY, "this broker is shutting down: look the topic up again")
        return
    if asked.auth_method_name == PEER_AUTH_METHOD:
        _challenge(connection, asked)
    elif not broker.ready:
        if not broker.lets_wait(connection, partial(connect, connection, command)):
            _turn_away(connection, ServerError.SERVICE_NOT_READY, "this broker is starting: try again in a moment")
    elif not broker.authentication.required or _authenticated(connection, asked):
        _welcome(connection, asked)


def _challenge(connection: Connection, asked: pb.CommandConnect) -> None:
    """Prove our region to a client that says it is a broker of one, and ask for its proof."""
    if connection.transport is None:
        return
    try:
        answering = connection.broker.identity.answer(channel_binding(connection.transport))
        challenge = answering.challenge(asked.auth_data)
    except (NotProven, ssl.SSLError) as error:
        _turn_away(connection, ServerError.AUTHENTICATION, str(error))
        return
    connection.proving = answering, asked
    data = pb.AuthData(auth_method_name=PEER_AUTH_METHOD, auth_data=challenge)
    connection.write(
        encode.simple(
            pb.BaseCommand.AUTH_CHALLENGE,
            pb.CommandAuthChallenge(server_version=SERVER_VERSION, challenge=data, protocol_version=PROTOCOL_VERSION),
        )
    )


def auth_response(connection: Connection, command: Any) -> None:
    """The answer to AUTH_CHALLENGE."""
    if connection.proving is None:
        _refresh(connection, command.message.response)
        return
    (answering, asked), connection.proving = connection.proving, None
    try:
        connection.peer_name = answering.check(command.message.response.auth_data)
    except NotProven as error:
        _turn_away(connection, ServerError.AUTHENTICATION, str(error))
        return
    connection.peer_secret = answering.key
    connection.is_own_broker = answering.purpose == WITHIN
    connection.is_peer = not connection.is_own_broker
    _welcome(connection, asked)


def _refresh(connection: Connection, answer: pb.AuthData) -> None:
    """A client sent a new token."""
    if not connection.broker.expiries.was_asked(connection):
        connection.end("an unexpected AUTH_RESPONSE")
        return
    try:
        _grant(connection, answer.auth_data)
    except NotAuthenticated as error:
        _turn_away(connection, ServerError.AUTHENTICATION, str(error))


def _welcome(connection: Connection, asked: pb.CommandConnect) -> None:
    broker = connection.broker
    problem = broker.let_in(connection)
    if problem is not None:
        _turn_away(connection, ServerError.NOT_ALLOWED, problem)
        return
    connection.started_with(broker.max_message_bytes)
    connection.names_sources = asked.feature_flags.supports_repl_dedup_by_lid_and_eid
    connection.client_version = asked.client_version
    connection.can_refresh = asked.feature_flags.supports_auth_refresh
    connection.protocol_version = min(asked.protocol_version, PROTOCOL_VERSION)
    features = pb.FeatureFlags(
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watchers=broker.pattern_length > 0,
        supports_topic_watcher_reconcile=broker.pattern_length > 0,
        supports_repl_dedup_by_lid_and_eid=True,
    )
    if connection.is_peer and asked.feature_flags.peer_protocol_version:
        connection.peer_version = min(asked.feature_flags.peer_protocol_version, PEER_PROTOCOL_VERSION)
        features.peer_protocol_version = PEER_PROTOCOL_VERSION
    answer = pb.CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=connection.protocol_version,
        max_message_size=_largest(connection),
        feature_flags=features,
    )
    connection.write(encode.simple(3, answer))


def _largest(connection: Connection) -> int:
    """Bytes of the largest message that the client may send. Pulsar's brokers count what they add to a message before
    they send it on, and silently drop it if it is then too large: a chunk of the full size, for example."""
    added = METADATA_BYTES if belongs_to_pulsar(connection) else 0
    return connection.broker.max_message_bytes + added


def _authenticated(connection: Connection, asked: pb.CommandConnect) -> bool:
    """Whether the client authenticated. If not, the refusal has been sent."""
    try:
        if asked.auth_method_name != METHOD:
            raise NotAuthenticated(f"this region requires authentication by {METHOD}: give the client a token")
        _grant(connection, asked.auth_data)
    except NotAuthenticated as error:
        _turn_away(connection, ServerError.AUTHENTICATION, str(error))
        return False
    return True


def _grant(connection: Connection, token: bytes) -> None:
    """:raises NotAuthenticated: the token is not valid, or not valid for this connection."""
    granted = connection.broker.authentication.check(token)
    if granted.scope is not None:
        raise NotAuthenticated(
            f"this token is for the {SCOPES[granted.scope]} only: it can neither produce nor consume"
        )
    if connection.started and granted.role != connection.role:
        raise NotAuthenticated("the new token is for another role than the previous one")
    connection.role = granted.role
    connection.broker.expiries.watch(connection, granted.expires, granted.key)


def _turn_away(connection: Connection, code: ServerError, text: str) -> None:
    connection.write(encode.error(NO_REQUEST, code, text))
    connection.end(text)


def ping(connection: Connection, command: Any) -> None:
    del command
    connection.write(encode.PONG)


def nothing(connection: Connection, command: Any) -> None:
    """PONG and other commands that need no answer: receiving them is enough."""
    del connection, command
