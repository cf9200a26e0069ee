# SPDX-License-Identifier: Apache-2.0
"""Lease messages to and from ``peer.proto``; ``replication/progress/codec.py`` puts them into commands."""

from __future__ import annotations

from meridian_broker.positions import ZERO, Stamp
from meridian_broker.replication.leases.grant_digests import DIGEST_BYTES
from meridian_broker.replication.leases.messages import (
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    Stream,
    VotersAnswer,
    VotersAsk,
    VotersItem,
)
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.wire.proto import peer_pb2 as pb


def _put_stream(stream: Stream) -> pb.LeaseStream:
    topic, subscription, origin = stream
    return pb.LeaseStream(topic=topic, subscription=subscription, origin=origin)


def _take_stream(message: pb.LeaseStream) -> Stream:
    return message.topic, message.subscription, message.origin


def put_ask(message: LeaseAsk) -> pb.LeaseAsk:
    """Preferred holders are few, so each is written once, in a list of the message."""
    out = pb.LeaseAsk(number=message.number, holder=message.holder, duration_ms=message.duration_ms)
    preferred: dict[str, int] = {}
    for item in message.items:
        at = preferred.setdefault(item.preferred, len(preferred))
        out.items.add(stream=_put_stream(item.stream), term=item.term, mark=item.mark, preferred=at)
    out.preferred.extend(preferred)
    return out


def take_ask(message: pb.LeaseAsk) -> LeaseAsk:
    """:raises IndexError: it names a preferred holder that it does not list."""
    preferred = list(message.preferred)
    items = tuple(
        AskItem(_take_stream(item.stream), item.term, item.mark, preferred[item.preferred]) for item in message.items
    )
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


def put_renewal(message: LeaseRenewal) -> pb.LeaseRenewal:
    digests = b"".join(digest.to_bytes(DIGEST_BYTES, "big") for _, digest in message.parts)
    parts = [index for index, _ in message.parts]
    return pb.LeaseRenewal(number=message.number, holder=message.holder, parts=parts, digests=digests)


def take_renewal(message: pb.LeaseRenewal) -> LeaseRenewal:
    """:raises ValueError: it has not one digest for each part."""
    size = DIGEST_BYTES
    if len(message.digests) != size * len(message.parts):
        raise ValueError(f"{len(message.digests)} bytes of digests for {len(message.parts)} parts")
    parts = tuple(
        (index, int.from_bytes(message.digests[at * size : (at + 1) * size], "big"))
        for at, index in enumerate(message.parts)
    )
    return LeaseRenewal(message.number, message.holder, parts)


def put_renewed(message: LeaseRenewed) -> pb.LeaseRenewed:
    return pb.LeaseRenewed(number=message.number, differing=message.differing)


def take_renewed(message: pb.LeaseRenewed) -> LeaseRenewed:
    return LeaseRenewed(message.number, tuple(message.differing))


def put_release(message: LeaseRelease) -> pb.LeaseRelease:
    out = pb.LeaseRelease(holder=message.holder)
    for stream, term in message.items:
        out.items.add(stream=_put_stream(stream), term=term)
    return out


def take_release(message: pb.LeaseRelease) -> LeaseRelease:
    return LeaseRelease(message.holder, tuple((_take_stream(item.stream), item.term) for item in message.items))


def put_voters(message: VotersAsk | VotersAnswer) -> pb.Voters:
    out = pb.Voters()
    for item in message.items:
        one = out.items.add(topic=item.topic, subscription=item.subscription, wanted=item.wanted)
        for stamp, names in item.known.lists:
            one.lists.add(said=str(stamp), names=names)
        if item.known.committed != ZERO:
            one.committed = str(item.known.committed)
        if item.is_clean:
            one.is_clean = True
    return out


def take_voters_ask(message: pb.Voters) -> VotersAsk:
    """:raises ValueError: a stamp is not valid."""
    return VotersAsk(_take_voters(message))


def take_voters_answer(message: pb.Voters) -> VotersAnswer:
    """:raises ValueError: a stamp is not valid."""
    return VotersAnswer(_take_voters(message))


def _take_voters(message: pb.Voters) -> tuple[VotersItem, ...]:
    return tuple(
        VotersItem(
            item.topic,
            item.subscription,
            VoterSets(
                tuple((Stamp.parse(one.said), tuple(sorted(set(one.names)))) for one in item.lists),
                Stamp.parse(item.committed) if item.committed else ZERO,
            ),
            tuple(item.wanted),
            item.is_clean,
        )
        for item in message.items
    )
