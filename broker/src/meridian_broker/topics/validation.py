# SPDX-License-Identifier: Apache-2.0
"""Validation of what clients send: the one place that judges the numbers, names and sizes in their commands.

Every function here takes the content of a command and either returns it in the form that the broker works with, or
raises the reason for refusing it. None of them does I/O, reads a clock or changes anything, so a refused command
leaves no trace: callers validate before they append, claim or announce anything. The limits, each with its reason,
are the table in ``bounds/clients.py``.

Some decisions need more than the command and are made elsewhere: who the client is (``gateway/authentication.py``),
what a topic's policies allow (``policies.py``), and repeats (``publishing/deduplication.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.bounds.clients import (
    ACK_SET_WORDS,
    ACK_WORDS,
    BATCH_MESSAGES,
    BATCHED_MESSAGE_BYTES,
    CHUNKS,
    CLIENT_PROPERTIES_BYTES,
    CLIENTS_PER_CONNECTION,
    LATEST_TIME_MS,
    MESSAGE_METADATA_BYTES,
    NAME_BYTES,
    REPLICATE_TO_BYTES,
    SUBSCRIPTION_PROPERTIES_BYTES,
    UNCOMPRESSED_BYTES,
)
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.errors import NO_TRANSACTIONS, NOT_FROM_CLIENTS, InvalidName, MessageTooLarge, NotAllowed
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.shown import is_name

if TYPE_CHECKING:
    from meridian_broker.wire.proto import pulsar_pb2 as pb
    from meridian_broker.wire.pulsar.frames import Send
    from meridian_broker.wire.pulsar.metadata import MetadataView
    from meridian_broker.wire.pulsar.topic_name import TopicName

_INT32_MAX: Final = (1 << 31) - 1
_ABSENT: Final = 1 << 63
"""From here on, numbers are negative values in a u64 field."""
_NO_NAME: Final = "it is . or .., or contains a control character, a line separator or a bidirectional control"


# -- SEND ------------------------------------------------------------------------------------------------------------


def message(send: Send, largest: int, longest_delay: int) -> MetadataView:
    """The metadata of a message that may be stored and delivered.

    A source position among its properties is accepted: clients that copy a message to a dead-letter or retry topic
    copy its properties, including that of a message from another region. It is never read: origins are set by peers
    (R7).

    :param largest: bytes that the topic allows for metadata and payload.
    :param longest_delay: milliseconds that the topic allows between publishing and delivery.
    :raises NotAllowed: a count, size, time or name is out of bounds, or only brokers of other regions may set it.
    :raises BodyError: it is not a valid message.
    """
    if send.marker or send.message_id is not None or send.origin is not None:
        raise NotAllowed(NOT_FROM_CLIENTS)
    if send.transactional:
        raise NotAllowed(NO_TRANSACTIONS)
    body = send.body
    if len(body) > largest:
        raise MessageTooLarge(f"{len(body)} bytes with its metadata; the limit is {largest}")
    start, end = metadata.metadata_bounds(body)
    if end - start > MESSAGE_METADATA_BYTES:
        raise MessageTooLarge(f"{end - start} bytes of metadata; the limit is {MESSAGE_METADATA_BYTES}")
    view = metadata.scan(body)
    if view.marker_type is not None or view.replicated_from is not None:
        raise NotAllowed(NOT_FROM_CLIENTS)
    _check_count(send.num_messages, view, len(body) - end, max(UNCOMPRESSED_BYTES, largest))
    _check_times(view, longest_delay)
    if view.replicate_to is not None:
        _check_regions(view.replicate_to)
    if send.is_chunk or view.chunk_id is not None:
        _check_chunk(view)
    return view


def _check_count(count: int, view: MetadataView, payload_bytes: int, most_uncompressed: int) -> None:
    """Command, metadata and payload must agree on the number of messages.

    A compressed payload is not decompressed here, so the size in its metadata counts. It is bounded, except for
    chunks, which have the size of the whole message; a consumer reassembles it knowing that it is large.
    """
    if count != view.num_messages:
        raise NotAllowed(
            f"SEND announces {count} messages, their metadata {view.num_messages}: num_messages must be "
            "num_messages_in_batch, or 1 when there is none"
        )
    if not 1 <= count <= BATCH_MESSAGES:
        raise NotAllowed(f"a batch of {count} messages; it must have 1 to {BATCH_MESSAGES}")
    unpacked = view.uncompressed_bytes if view.compression else payload_bytes
    if unpacked > most_uncompressed and view.chunk_id is None:
        raise MessageTooLarge(f"{unpacked} bytes uncompressed; the limit is {most_uncompressed}")
    if count > 1 and count * BATCHED_MESSAGE_BYTES > unpacked:
        raise NotAllowed(f"a batch of {unpacked} bytes cannot hold {count} messages: num_messages is wrong")


def _check_times(view: MetadataView, longest_delay: int) -> None:
    times = (("publish", view.publish_time_ms), ("event", view.event_time_ms), ("delivery", view.deliver_at_ms or 0))
    for what, time_ms in times:
        if time_ms > LATEST_TIME_MS:
            raise NotAllowed(f"its {what} time is after the year 9999; the unit is milliseconds since 1970")
    if view.deliver_at_ms is not None and view.deliver_at_ms - view.publish_time_ms > longest_delay:
        raise NotAllowed(f"its delivery is delayed by more than {longest_delay} ms")


def _check_regions(names: tuple[str, ...]) -> None:
    size = sum(len(name.encode()) + 1 for name in names)
    if size > REPLICATE_TO_BYTES:
        raise NotAllowed(f"{size} bytes of region names to replicate to; the limit is {REPLICATE_TO_BYTES}")


def _check_chunk(view: MetadataView) -> None:
    chunk, count = view.chunk_id, view.num_chunks
    if chunk is None or not 0 <= chunk < count <= CHUNKS or not 0 <= view.total_chunk_bytes <= _INT32_MAX:
        raise NotAllowed(f"chunk {chunk} of {count}: chunks count from 0, and a message has at most {CHUNKS}")
    if len((view.uuid or "").encode()) > NAME_BYTES:
        raise NotAllowed(f"the id shared by its chunks is longer than {NAME_BYTES} bytes")


# -- ids and ACK -----------------------------------------------------------------------------------------------------


def position(wire: pb.MessageIdData) -> Position:
    """A message id of the wire, with any numbers; its sentinels become ours."""
    if wire.ledgerId >= _ABSENT:
        return EARLIEST
    if wire.ledgerId == _ABSENT - 1:
        return LATEST
    return Position(wire.ledgerId, wire.entryId if wire.entryId < _ABSENT else -1)


def end(ledger: int, entry: int) -> Position:
    """The position up to which a cumulative acknowledgement reaches. Entry -1 means before a ledger's first entry,
    not after its last.
    """
    return Position(ledger, entry if entry < _ABSENT else -1)


def unacked_parts(ack: pb.CommandAck) -> dict[Position, int]:
    """For partly acknowledged entries, the bits of their messages that are *not* acknowledged, as on the wire (R18).
    Not every client sends the batch's size. Bits beyond the batch are harmless: code that counts them knows its size.

    C++ clients name an entry twice, with different bits, if messages of it were redelivered: what any of the ids
    acknowledges counts.

    :raises NotAllowed: there are more bits than any batch has, or more in total than a client needs to send.
    """
    sizes = [len(one.ack_set) for one in ack.message_id]
    if max(sizes, default=0) > ACK_SET_WORDS or sum(sizes) > ACK_WORDS:
        raise NotAllowed(
            f"an ACK whose sets have {sum(sizes)} words, the largest {max(sizes)}; the limits: {ACK_WORDS} in all, "
            f"{ACK_SET_WORDS} for one batch"
        )
    parts: dict[Position, int] = {}
    whole: list[Position] = []
    for one, size in zip(ack.message_id, sizes, strict=True):
        at = position(one)
        if size:
            unacked = int.from_bytes(struct.pack(f"<{size}q", *one.ack_set), "little")
            parts[at] = unacked & parts.get(at, unacked)
        else:
            whole.append(at)
    if parts:
        for at in whole:
            parts.pop(at, None)
    return parts


# -- topics ----------------------------------------------------------------------------------------------------------


def new_topic(name: TopicName) -> None:
    """A topic that a client may create. Existing topics are served whatever their name, and topics of other regions
    are created here as well, because their messages need a place.

    :raises InvalidName: its name would not be displayed as it is.
    """
    if not is_name(name.local_name):
        raise InvalidName(f"{name.local_name[:80]!r} is not a valid topic name: {_NO_NAME}")


# -- PRODUCER and SUBSCRIBE ------------------------------------------------------------------------------------------


def producer(asked: pb.CommandProducer, clients: int) -> None:
    """A producer that may be created.

    :param clients: number of producers and consumers of its connection.
    :raises NotAllowed: a name or its metadata is out of bounds, or its connection has reached its limit of clients.
    """
    _check_room(clients)
    _check_name("a producer", asked.producer_name)
    _check_name("a subscription", asked.initial_subscription_name)
    _check_pairs("a producer", ((pair.key, pair.value) for pair in asked.metadata), CLIENT_PROPERTIES_BYTES)


def consumer(asked: pb.CommandSubscribe, clients: int) -> None:
    """A consumer that may be created; parameters and errors as for ``producer``."""
    _check_room(clients)
    _check_name("a consumer", asked.consumer_name)
    _check_pairs("a consumer", ((pair.key, pair.value) for pair in asked.metadata), CLIENT_PROPERTIES_BYTES)
    subscription(asked.subscription, ((pair.key, pair.value) for pair in asked.subscription_properties))


def subscription(name: str, properties: Iterable[tuple[str, str]]) -> None:
    """A subscription that may be created, by whatever request: its record has to be readable here, and to fit into a
    frame to every other region.

    :raises NotAllowed: the name or the properties are out of bounds.
    """
    _check_name("a subscription", name)
    _check_pairs("a subscription", properties, SUBSCRIPTION_PROPERTIES_BYTES)


def _check_room(clients: int) -> None:
    if clients >= CLIENTS_PER_CONNECTION:
        raise NotAllowed(
            f"this connection has {clients} producers and consumers, its limit: close some, or use another connection"
        )


def _check_name(whose: str, name: str) -> None:
    if not is_name(name):
        raise NotAllowed(f"{name[:80]!r} is not a valid name of {whose}: {_NO_NAME}")
    size = len(name.encode())
    if size > NAME_BYTES:
        raise NotAllowed(f"the name of {whose} has {size} bytes; the limit is {NAME_BYTES}")


def _check_pairs(whose: str, pairs: Iterable[tuple[str, str]], most: int) -> None:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in pairs)
    if size > most:
        raise NotAllowed(f"the properties of {whose} have {size} bytes in all; the limit is {most}")
