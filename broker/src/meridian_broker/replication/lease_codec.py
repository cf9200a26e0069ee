# SPDX-License-Identifier: Apache-2.0
"""Messages about leases <-> the wire's own (``peer.proto``); ``exchange_codec`` puts them into commands."""

from __future__ import annotations

from meridian_broker.replication.lease_messages import (
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    Stream,
)
from meridian_broker.wire.proto import peer_pb2 as pb


def _put_stream(stream: Stream) -> pb.LeaseStream:
    topic, subscription, origin = stream
    return pb.LeaseStream(topic=topic, subscription=subscription, origin=origin)


def _take_stream(message: pb.LeaseStream) -> Stream:
    return message.topic, message.subscription, message.origin


def put_ask(message: LeaseAsk) -> pb.LeaseAsk:
    """Most streams have the same voters, so each list of them is written once."""
    out = pb.LeaseAsk(number=message.number, holder=message.holder, duration_ms=message.duration_ms)
    lists: dict[tuple[str, ...], int] = {}
    for item in message.items:
        at = lists.setdefault(item.voters, len(lists))
        if at == len(out.voters):
            out.voters.add(names=item.voters)
        out.items.add(stream=_put_stream(item.stream), term=item.term, voters=at)
    return out


def take_ask(message: pb.LeaseAsk) -> LeaseAsk:
    """:raises IndexError: it names voters that it does not list."""
    lists = [tuple(voters.names) for voters in message.voters]
    items = tuple(AskItem(_take_stream(item.stream), item.term, lists[item.voters]) for item in message.items)
    return LeaseAsk(message.number, message.holder, message.duration_ms, items)


def put_answer(message: LeaseAnswer) -> pb.LeaseAnswer:
    out = pb.LeaseAnswer(number=message.number)
    for item in message.items:
        out.items.add(
            stream=_put_stream(item.stream),
            term=item.term,
            granted=item.granted,
            known_term=item.known_term,
            left_ms=item.left_ms,
            holder=item.holder,
            reason=item.reason,
        )
    return out


def take_answer(message: pb.LeaseAnswer) -> LeaseAnswer:
    return LeaseAnswer(
        message.number,
        tuple(
            AnswerItem(
                _take_stream(item.stream),
                item.term,
                item.granted,
                item.known_term,
                item.left_ms,
                item.holder,
                item.reason,
            )
            for item in message.items
        ),
    )


def put_release(message: LeaseRelease) -> pb.LeaseRelease:
    out = pb.LeaseRelease(holder=message.holder)
    for stream, term in message.items:
        out.items.add(stream=_put_stream(stream), term=term)
    return out


def take_release(message: pb.LeaseRelease) -> LeaseRelease:
    return LeaseRelease(message.holder, tuple((_take_stream(item.stream), item.term) for item in message.items))
