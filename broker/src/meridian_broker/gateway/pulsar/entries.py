# SPDX-License-Identifier: Apache-2.0
"""ENTRIES_WANTED: another region asks for entries that it lost, or that their origin cannot deliver (R5, R6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.positions.position import LATEST, Position
from meridian_broker.topics.backfill.questions import Want
from meridian_broker.topics.service import answering
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection


def wanted(connection: Connection, command: Any) -> None:
    """From brokers of other regions only (R7)."""
    if not connection.is_peer:
        connection.end("a peer command from a client")
        return
    if command[1].region != connection.peer_name:
        connection.end(f"region {connection.peer_name} asks for entries as {command[1].region!r}")
        return
    connection.run(_answer(connection, command[1]))


async def _answer(connection: Connection, asked: peer_pb2.EntriesWanted) -> None:
    before = Position(asked.before_ledger, asked.before_entry) if asked.HasField("before_ledger") else LATEST
    after = Position(asked.after_ledger, asked.after_entry)
    want = Want(asked.topic, asked.incarnation, asked.origin, after, before)
    try:
        found = await answering.answer(connection.broker.service.opener, asked.region, want)
    except REFUSALS as error:
        connection.fail(asked.request_id, error)
        return
    answer = peer_pb2.EntriesFound(
        request_id=asked.request_id,
        entries=found.entries,
        chained=found.is_chained,
        complete=found.is_complete,
        last_ledger=found.last.ledger,
        last_entry=found.last.entry,
        outside=found.is_outside,
    )
    answer.origins.extend(sorted(found.origins))
    if found.feed is not None:
        feed = found.feed
        answer.feed.CopyFrom(
            peer_pb2.Feed(
                confirmed_ledger=feed.confirmed.ledger,
                confirmed_entry=feed.confirmed.entry,
                end_ledger=feed.end.ledger,
                end_entry=feed.end.entry,
                behind=feed.behind,
                held=feed.held,
                subscriptions=feed.subscriptions,
            )
        )
    if connection.transport is not None:
        connection.write(encode.simple(pb.BaseCommand.ENTRIES_FOUND, answer))
