# SPDX-License-Identifier: Apache-2.0
"""The tables of commands and their handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.pulsar import (
    consumers,
    entries,
    handshake,
    lookups,
    producers,
    subscribing,
    topic_lists,
)
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.frames import ACK, ACK_OF_MANY, FLOW, FLOW_OF_MANY

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection, Handler, RunHandler

_T: Final = pb.BaseCommand
PEER_COMMANDS: Final = range(1000, 1100)


def _peer(connection: Connection, command: Any) -> None:
    """Commands of the peer protocol, from connections of proven peers only (R7)."""
    if not connection.is_peer:
        connection.end("a peer command from a client")
        return
    connection.broker.peers.received(connection, command[0], command[1])


HANDLERS: Final[dict[int, Handler]] = {
    _T.CONNECT: handshake.connect,
    _T.AUTH_RESPONSE: handshake.auth_response,
    _T.PING: handshake.ping,
    _T.PONG: handshake.nothing,
    _T.LOOKUP: lookups.lookup,
    _T.PARTITIONED_METADATA: lookups.partitions,
    _T.GET_TOPICS_OF_NAMESPACE: topic_lists.topics_of_namespace,
    _T.WATCH_TOPIC_LIST: topic_lists.watch,
    _T.WATCH_TOPIC_LIST_CLOSE: topic_lists.close_watcher,
    _T.GET_SCHEMA: lookups.get_schema,
    _T.GET_OR_CREATE_SCHEMA: lookups.get_or_create_schema,
    _T.PRODUCER: producers.producer,
    _T.CLOSE_PRODUCER: producers.close_producer,
    _T.SUBSCRIBE: subscribing.subscribe,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumers.redeliver,
    _T.CLOSE_CONSUMER: consumers.close_consumer,
    _T.UNSUBSCRIBE: consumers.unsubscribe,
    _T.SEEK: consumers.seek,
    _T.GET_LAST_MESSAGE_ID: consumers.last_message_id,
    _T.CONSUMER_STATS: consumers.consumer_stats,
    _T.SUCCESS: handshake.nothing,
    _T.ERROR: handshake.nothing,
    **dict.fromkeys((*range(50, 62, 2), 62), lookups.no_transactions),
    **dict.fromkeys(PEER_COMMANDS, _peer),
    _T.ENTRIES_WANTED: entries.wanted,
}
RUN_HANDLERS: Final[dict[int, RunHandler]] = dict.fromkeys(
    (ACK, FLOW, ACK_OF_MANY, FLOW_OF_MANY), consumers.acks_and_flows
)
