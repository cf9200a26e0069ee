# SPDX-License-Identifier: Apache-2.0
"""Markers of replicated subscriptions: what brokers say to each other in the log of a topic (PIP-33).

A marker is an entry whose metadata has a marker type (field 20) and which no client ever sees. Four types belong to
replicated subscriptions; transactions have others, and later versions may add more, so an unknown type is not an error.

A marker comes from another region, which may run any version or be broken: ``read`` validates it, and nothing after
that checks names, counts or positions again. A position that does not exist yet, before the first entry of a topic, is
-1 as in Pulsar, which writes it as an unsigned number of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from meridian_broker.bounds.clients import NAME_BYTES
from meridian_broker.bounds.snapshots import MARKER_BYTES, MARKER_REGIONS, SNAPSHOT_ID_BYTES
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import markers_pb2 as pb
from meridian_broker.wire.proto import pulsar_pb2
from meridian_broker.wire.pulsar.metadata import MAGIC, Body, BodyError, MetadataView, scan
from meridian_broker.wire.shown import is_name, shown

REQUEST: Final[int] = pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST
"""The marker type of a request."""
RESPONSE: Final[int] = pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE
RECEIPT: Final = 1 << 63
"""In place of the highest sequence id: marks the receipt of a marker, where others name entries by their source."""
PRODUCER_NAME: Final = "pulsar.marker"
"""The producer of all markers, as Pulsar calls it."""

_U64: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_COVERED: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">HI")


class MarkerError(BodyError):
    """The marker cannot be used: whoever wrote it is at fault."""


class Place(NamedTuple):
    """A position in the log of one region."""

    region: str
    position: Position


class SnapshotRequest(NamedTuple):
    """``source`` asks every other region for the last position of its log."""

    snapshot_id: str
    source: str


class SnapshotResponse(NamedTuple):
    """The answer of one region."""

    snapshot_id: str
    place: Place


class Snapshot(NamedTuple):
    """Acknowledging everything up to ``position`` here means acknowledging up to each of ``places`` elsewhere."""

    snapshot_id: str
    position: Position
    """In the region that took the snapshot, which alone stores it."""
    places: tuple[Place, ...]
    """Of the other regions."""


class SubscriptionUpdate(NamedTuple):
    """A subscription has acknowledged everything up to these places."""

    subscription: str
    places: tuple[Place, ...]


Marker: TypeAlias = SnapshotRequest | SnapshotResponse | Snapshot | SubscriptionUpdate


def marker_body(marker: Marker, publish_time_ms: int, only_to: str | None = None) -> bytes:
    """The body of a marker's entry, as Pulsar writes it.

    :param only_to: the only region it is for, which may be its writer's own; None: all.
    """
    kind, content = _content(marker)
    metadata = pulsar_pb2.MessageMetadata(
        producer_name=PRODUCER_NAME, sequence_id=0, publish_time=publish_time_ms, marker_type=kind
    )
    if only_to is not None:
        metadata.replicate_to.append(only_to)
    encoded = metadata.SerializeToString()
    covered = _COVERED.pack(len(encoded)) + encoded + content.SerializeToString()
    return _HEAD.pack(MAGIC, crc32c(covered)) + covered


def kind(body: Body) -> int | None:
    """The type of a stored marker; None: it is not a marker."""
    return scan(body).marker_type


def read(body: Body, view: MetadataView) -> Marker | None:
    """The marker in the body of an entry; None for other entries, and for markers of other features.

    :param view: what ``metadata.scan`` says of ``body``.
    :raises MarkerError: it is beyond a limit, or its content is not what its type says.
    """
    known = _READERS.get(view.marker_type or 0)
    if known is None:
        return None
    if view.compression or view.encrypted or view.is_batch or view.chunk_id is not None:
        raise MarkerError("a marker is neither compressed nor encrypted, and neither a batch nor a chunk")
    content = body[view.payload_offset :]
    if len(content) > MARKER_BYTES:
        raise MarkerError(f"a marker of {len(content)} bytes: {MARKER_BYTES} is the limit")
    message, reader = known
    try:
        parsed = message.FromString(bytes(content))
    except DecodeError as error:
        raise MarkerError(f"a marker's {len(content)} bytes are not a {message.DESCRIPTOR.name}: {error}") from None
    if not parsed.IsInitialized():
        raise MarkerError(f"a {message.DESCRIPTOR.name} lacks a required field")
    return reader(parsed)


# -- values -> messages


def _content(marker: Marker) -> tuple[int, Message]:
    match marker:
        case SnapshotRequest(snapshot_id, source):
            return pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST, pb.ReplicatedSubscriptionsSnapshotRequest(
                snapshot_id=snapshot_id, source_cluster=source
            )
        case SnapshotResponse(snapshot_id, place):
            return pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE, pb.ReplicatedSubscriptionsSnapshotResponse(
                snapshot_id=snapshot_id, cluster=_cluster(place)
            )
        case Snapshot(snapshot_id, position, places):
            return pb.REPLICATED_SUBSCRIPTION_SNAPSHOT, pb.ReplicatedSubscriptionsSnapshot(
                snapshot_id=snapshot_id, local_message_id=_id(position), clusters=map(_cluster, places)
            )
        case SubscriptionUpdate(subscription, places):
            return pb.REPLICATED_SUBSCRIPTION_UPDATE, pb.ReplicatedSubscriptionsUpdate(
                subscription_name=subscription, clusters=map(_cluster, places)
            )


def _cluster(place: Place) -> pb.ClusterMessageId:
    return pb.ClusterMessageId(cluster=place.region, message_id=_id(place.position))


def _id(position: Position) -> pb.MarkersMessageIdData:
    return pb.MarkersMessageIdData(ledger_id=position.ledger & _U64, entry_id=position.entry & _U64)


# -- messages -> values


def _request(message: pb.ReplicatedSubscriptionsSnapshotRequest) -> SnapshotRequest:
    return SnapshotRequest(_snapshot_id(message.snapshot_id), _name(message.source_cluster, "a region"))


def _response(message: pb.ReplicatedSubscriptionsSnapshotResponse) -> SnapshotResponse:
    if not message.HasField("cluster"):
        raise MarkerError("the answer to a snapshot without a position")
    return SnapshotResponse(_snapshot_id(message.snapshot_id), _place(message.cluster))


def _snapshot(message: pb.ReplicatedSubscriptionsSnapshot) -> Snapshot:
    if not message.HasField("local_message_id"):
        raise MarkerError("a snapshot without a position in its own region")
    position = _position(message.local_message_id)
    return Snapshot(_snapshot_id(message.snapshot_id), position, _places(message.clusters))


def _update(message: pb.ReplicatedSubscriptionsUpdate) -> SubscriptionUpdate:
    return SubscriptionUpdate(_name(message.subscription_name, "a subscription"), _places(message.clusters))


_READERS: Final[dict[int, tuple[type[Message], Callable[[Any], Marker]]]] = {
    pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST: (pb.ReplicatedSubscriptionsSnapshotRequest, _request),
    pb.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE: (pb.ReplicatedSubscriptionsSnapshotResponse, _response),
    pb.REPLICATED_SUBSCRIPTION_SNAPSHOT: (pb.ReplicatedSubscriptionsSnapshot, _snapshot),
    pb.REPLICATED_SUBSCRIPTION_UPDATE: (pb.ReplicatedSubscriptionsUpdate, _update),
}


def _snapshot_id(text: str) -> str:
    return _text(text, SNAPSHOT_ID_BYTES, "the id of a snapshot")


def _name(text: str, what: str) -> str:
    _text(text, NAME_BYTES, f"the name of {what}")
    if not is_name(text):
        raise MarkerError(f"{shown(text)} cannot be the name of {what}")
    return text


def _text(text: Any, most: int, what: str) -> str:
    """:param text: protobuf has bytes here if they are not UTF-8."""
    if not isinstance(text, str):
        raise MarkerError(f"{what} is not UTF-8")
    if not 0 < len(text.encode()) <= most:
        raise MarkerError(f"{what} has 1 to {most} bytes, not {len(text.encode())}")
    return text


def _places(clusters: Iterable[pb.ClusterMessageId]) -> tuple[Place, ...]:
    found: dict[str, Place] = {}
    for cluster in clusters:
        if len(found) == MARKER_REGIONS:
            raise MarkerError(f"a marker names more than {MARKER_REGIONS} regions")
        place = _place(cluster)
        if place.region in found:
            raise MarkerError(f"a marker names region {shown(place.region)} twice")
        found[place.region] = place
    return tuple(found.values())


def _place(cluster: pb.ClusterMessageId) -> Place:
    return Place(_name(cluster.cluster, "a region"), _position(cluster.message_id))


def _position(message: pb.MarkersMessageIdData) -> Position:
    """A position of ``EARLIEST`` or later."""
    ledger, entry = ((number ^ _SIGN) - _SIGN for number in (message.ledger_id, message.entry_id))
    if ledger < -1 or entry < -1:
        raise MarkerError(f"{message.ledger_id}:{message.entry_id} is not a position")
    return Position(ledger, entry)
