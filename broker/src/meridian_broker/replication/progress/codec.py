# SPDX-License-Identifier: Apache-2.0
"""Messages of the progress exchange <-> commands of the wire (``peer.proto``).

Decoding trusts nothing: everything from a peer that has the right types, and no more parts than brokers send, becomes a
message that the exchange can judge; everything else is a ``PeerFormatError``. Encoded progress and records pass through
undecoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.replication.leases import codec
from meridian_broker.replication.leases.messages import (
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    VotersAnswer,
    VotersAsk,
)
from meridian_broker.replication.progress.counts import check_counts
from meridian_broker.replication.progress.greeting_codec import put_hello, put_owners, read_hello, read_owners
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Delta,
    DeltaAck,
    DeltaItem,
    Digest,
    EndsSlice,
    Fetch,
    Hello,
    KeyDigest,
    OriginEnds,
    Owners,
    Parts,
    PeerMessage,
    Question,
    Refusal,
    State,
    StateItem,
    SubscriptionDigest,
    Summary,
    TopicDigest,
    TopicEnd,
)
from meridian_broker.wire.proto import peer_pb2 as pb
from meridian_broker.wire.proto.pulsar_pb2 import BaseCommand
from meridian_broker.wire.pulsar.encode import simple


class PeerFormatError(ValueError):
    """A peer sent an invalid exchange command: the peer's fault, or a version that is too different."""


def encode(message: PeerMessage) -> bytes:
    """The frame to put on the link."""
    return simple(*command(message))


def command(message: PeerMessage) -> tuple[int, Any]:
    """The ``BaseCommand.Type`` and the protobuf message of its field."""
    kind, write = _WRITERS[type(message)]
    return kind, write(message)


def decode(kind: int, message: Any) -> PeerMessage:
    """The message in a command: ``kind`` is its ``BaseCommand.Type``, ``message`` the protobuf message of its field.

    :raises PeerFormatError: it is not a command of the exchange.
    """
    try:
        check_counts(kind, message)
        return _READERS[kind](message)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise PeerFormatError(
            f"command {kind} from a peer region is not a message of the progress exchange: {error!r}"
        ) from error


# -- keys


def _put_keys(out: pb.ProgressKeys, keys: Iterable[KeyDigest]) -> None:
    for (epoch, region, ledger), digest in ((item.key, item.digest) for item in keys):
        out.keys.add(
            epoch_time_ms=epoch.time_ms,
            epoch_counter=epoch.counter,
            epoch_region=epoch.region,
            region=region,
            ledger=ledger,
            digest=digest,
        )


def _take_keys(message: pb.ProgressKeys) -> tuple[KeyDigest, ...]:
    return tuple(
        KeyDigest(
            (Stamp(key.epoch_time_ms, key.epoch_counter, key.epoch_region), key.region, key.ledger),
            key.digest,
        )
        for key in message.keys
    )


# -- writing


def _delta(message: Delta) -> pb.Delta:
    return pb.Delta(
        number=message.number,
        items=[
            pb.DeltaItem(
                topic=item.topic,
                subscription=item.subscription,
                incarnation=item.incarnation,
                progress=item.progress,
                record=item.record,
                unreached=item.unreached,
                passed_on=item.passed_on,
            )
            for item in message.items
        ],
    )


def _delta_ack(message: DeltaAck) -> pb.DeltaAck:
    return pb.DeltaAck(
        number=message.number,
        refusals=[
            pb.DeltaAck.Refusal(index=refusal.index, code=refusal.code, reason=refusal.reason)
            for refusal in message.refusals
        ],
    )


def _digest(message: Digest) -> pb.Digest:
    out = pb.Digest(sent=message.sent, applied=message.applied, answer=message.answer)
    if message.summary is not None:
        out.summary.digest, out.summary.in_flux = message.summary.digest, message.summary.in_flux
        out.summary.buckets_in_flux.extend(message.summary.buckets_in_flux)
    out.differing.extend(message.differing)
    if message.ends is not None:
        out.ends.origin, out.ends.bits, out.ends.first = message.ends.origin, message.ends.bits, message.ends.first
        out.ends.numbers.extend(message.ends.numbers)
    for topic in message.topics:
        listing = out.topics.add(
            topic=topic.topic,
            incarnation=topic.incarnation,
            digest=topic.digest,
            in_flux=topic.in_flux,
            forced=topic.forced,
            listed=topic.subscriptions is not None,
        )
        for item in topic.subscriptions or ():
            entry = listing.subscriptions.add(subscription=item.subscription, digest=item.digest, record=item.record)
            if item.keys is not None:
                entry.keys.SetInParent()
                _put_keys(entry.keys, item.keys)
    return out


def _fetch(message: Fetch) -> pb.Fetch:
    out = pb.Fetch(buckets=message.buckets, buckets_in_flux=message.buckets_in_flux)
    for part in message.parts:
        out.parts.add(bucket=part.bucket, numbers=part.numbers)
    for question in message.questions:
        entry = out.questions.add(topic=question.topic, subscription=question.subscription, state=question.state)
        if question.keys is not None:
            entry.keys.SetInParent()
            _put_keys(entry.keys, (KeyDigest(key, 0) for key in question.keys))
    return out


def _state(message: State) -> pb.State:
    out = pb.State(
        items=[
            pb.State.Item(
                topic=item.topic,
                subscription=item.subscription,
                incarnation=item.incarnation,
                record=item.record,
                progress=item.progress,
            )
            for item in message.items
        ]
    )
    if message.ends is not None:
        out.ends.origin = message.ends.origin
        for end in message.ends.topics:
            ledger, entry = end.end
            out.ends.topics.add(topic=end.topic, incarnation=end.incarnation, ledger=ledger, entry=entry)
    return out


def _barrier(message: Barrier) -> pb.Barrier:
    out = pb.Barrier(
        number=message.number,
        topic=message.topic,
        subscription=message.subscription,
        incarnation=message.incarnation,
        wants_record=message.wants_record,
    )
    if message.keys is not None:
        out.keys.SetInParent()
        _put_keys(out.keys, message.keys)
    return out


def _barrier_done(message: BarrierDone) -> pb.BarrierDone:
    return pb.BarrierDone(
        number=message.number,
        progress=message.progress,
        record=message.record,
        reason=message.reason,
    )


_WRITERS: Final[dict[type, tuple[int, Callable[[Any], Any]]]] = {
    Hello: (BaseCommand.PROGRESS_HELLO, put_hello),
    Owners: (BaseCommand.OWNERS, put_owners),
    Delta: (BaseCommand.DELTA, _delta),
    DeltaAck: (BaseCommand.DELTA_ACK, _delta_ack),
    Digest: (BaseCommand.DIGEST, _digest),
    Fetch: (BaseCommand.FETCH, _fetch),
    State: (BaseCommand.STATE, _state),
    Barrier: (BaseCommand.BARRIER, _barrier),
    BarrierDone: (BaseCommand.BARRIER_DONE, _barrier_done),
    LeaseAsk: (BaseCommand.LEASE_ASK, codec.put_ask),
    LeaseAnswer: (BaseCommand.LEASE_ANSWER, codec.put_answer),
    LeaseRelease: (BaseCommand.LEASE_RELEASE, codec.put_release),
    LeaseRenewal: (BaseCommand.LEASE_RENEWAL, codec.put_renewal),
    LeaseRenewed: (BaseCommand.LEASE_RENEWED, codec.put_renewed),
    VotersAsk: (BaseCommand.VOTERS_ASK, codec.put_voters),
    VotersAnswer: (BaseCommand.VOTERS_ANSWER, codec.put_voters),
}


# -- reading


def _read_delta(message: pb.Delta) -> Delta:
    return Delta(
        message.number,
        tuple(
            DeltaItem(
                item.topic,
                item.subscription,
                item.incarnation,
                item.progress,
                item.record if item.HasField("record") else None,
                tuple(item.unreached),
                item.passed_on,
            )
            for item in message.items
        ),
    )


def _read_delta_ack(message: pb.DeltaAck) -> DeltaAck:
    return DeltaAck(
        message.number,
        tuple(Refusal(refusal.index, refusal.code, refusal.reason) for refusal in message.refusals),
    )


def _read_topic(message: pb.TopicDigest) -> TopicDigest:
    subscriptions = None
    if message.listed:
        subscriptions = tuple(
            SubscriptionDigest(
                item.subscription,
                item.digest,
                item.record,
                _take_keys(item.keys) if item.HasField("keys") else None,
            )
            for item in message.subscriptions
        )
    return TopicDigest(
        message.topic,
        message.incarnation,
        message.digest,
        message.in_flux,
        message.forced,
        subscriptions,
    )


def _read_summary(message: pb.TopicsSummary) -> Summary:
    return Summary(message.digest, message.in_flux, tuple(message.buckets_in_flux))


def _read_ends(message: pb.EndsSlice) -> EndsSlice:
    return EndsSlice(message.origin, message.bits, message.first, tuple(message.numbers))


def _read_digest(message: pb.Digest) -> Digest:
    return Digest(
        message.sent,
        message.applied,
        tuple(_read_topic(topic) for topic in message.topics),
        message.answer,
        _read_summary(message.summary) if message.HasField("summary") else None,
        tuple(message.differing),
        _read_ends(message.ends) if message.HasField("ends") else None,
    )


def _read_fetch(message: pb.Fetch) -> Fetch:
    return Fetch(
        tuple(
            Question(
                question.topic,
                question.subscription if question.HasField("subscription") else None,
                question.state,
                tuple(item.key for item in _take_keys(question.keys)) if question.HasField("keys") else None,
            )
            for question in message.questions
        ),
        tuple(message.buckets),
        tuple(Parts(part.bucket, tuple(part.numbers)) for part in message.parts),
        tuple(message.buckets_in_flux),
    )


def _read_state(message: pb.State) -> State:
    return State(
        tuple(
            StateItem(item.topic, item.subscription, item.incarnation, item.record, item.progress)
            for item in message.items
        ),
        _read_origin_ends(message.ends) if message.HasField("ends") else None,
    )


def _read_origin_ends(message: pb.OriginEnds) -> OriginEnds:
    ends = (TopicEnd(end.topic, end.incarnation, Position(end.ledger, end.entry)) for end in message.topics)
    return OriginEnds(message.origin, tuple(ends))


def _read_barrier(message: pb.Barrier) -> Barrier:
    return Barrier(
        message.number,
        message.topic,
        message.subscription,
        message.incarnation,
        _take_keys(message.keys) if message.HasField("keys") else None,
        message.wants_record,
    )


def _read_barrier_done(message: pb.BarrierDone) -> BarrierDone:
    return BarrierDone(
        message.number,
        message.progress,
        message.record if message.HasField("record") else None,
        message.reason,
    )


_READERS: Final[dict[int, Callable[[Any], PeerMessage]]] = {
    BaseCommand.PROGRESS_HELLO: read_hello,
    BaseCommand.OWNERS: read_owners,
    BaseCommand.DELTA: _read_delta,
    BaseCommand.DELTA_ACK: _read_delta_ack,
    BaseCommand.DIGEST: _read_digest,
    BaseCommand.FETCH: _read_fetch,
    BaseCommand.STATE: _read_state,
    BaseCommand.BARRIER: _read_barrier,
    BaseCommand.BARRIER_DONE: _read_barrier_done,
    BaseCommand.LEASE_ASK: codec.take_ask,
    BaseCommand.LEASE_ANSWER: codec.take_answer,
    BaseCommand.LEASE_RELEASE: codec.take_release,
    BaseCommand.LEASE_RENEWAL: codec.take_renewal,
    BaseCommand.LEASE_RENEWED: codec.take_renewed,
    BaseCommand.VOTERS_ASK: codec.take_voters_ask,
    BaseCommand.VOTERS_ANSWER: codec.take_voters_answer,
}
