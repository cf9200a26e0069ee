# SPDX-License-Identifier: Apache-2.0
"""Message metadata in place: inside an encoded body.

A *body* is ``0x0e01 | u32 crc32c | u32 metadata size | metadata | payload``: the part of a SEND that is stored and
delivered in a MESSAGE. Publishing reads a few facts out of it once (``scan``). Replication appends fields to
the metadata (``origin_fields.py``).
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final, NamedTuple

import mmh3
from crc32c import crc32c
from google.protobuf.message import DecodeError

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.varints import VARINT_CACHE_ENTRIES, read_varint, varint

MAGIC: Final = 0x0E01
SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""Property that names the origin's position as ``ledger:entry``; the name Pulsar uses."""
SOURCE_KEY: Final = b"\x0a" + varint(len(SOURCE_POSITION_PROPERTY)) + SOURCE_POSITION_PROPERTY.encode()
"""The same as it begins in encoded metadata."""

_HEAD: Final = struct.Struct(">HII")
_U32: Final = struct.Struct(">I")
_METADATA_AT: Final = _HEAD.size


Body = bytes | memoryview
"""A memoryview must be over ``bytes``: it may be a dict key, so its content must not change."""


class BodyError(ValueError):
    """The bytes are not a valid body or metadata: the publisher is at fault."""


class MetadataView(NamedTuple):
    """The facts of a message's metadata that the broker needs."""

    producer_name: str
    sequence_id: int
    publish_time_ms: int
    num_messages: int
    is_batch: bool
    """The payload is a batch, possibly of one."""
    highest_sequence_id: int
    """For a batch; 0 when absent."""
    partition_key: str | None
    partition_key_b64: bool
    ordering_key: bytes | None
    schema_version: bytes | None
    payload_offset: int
    """Where the payload begins in the body."""
    compression: int = 0
    """As ``CompressionType`` numbers them; 0: none."""
    uncompressed_bytes: int = 0
    """Size of the payload before compression, as its producer states it."""
    event_time_ms: int = 0
    """The application's own time; 0: none."""
    replicate_to: tuple[str, ...] | None = None
    """Regions this may go to; None: everywhere."""
    replicated_from: str | None = None
    marker_type: int | None = None
    deliver_at_ms: int | None = None
    uuid: str | None = None
    """Common to the chunks of one message."""
    chunk_id: int | None = None
    num_chunks: int = 0
    total_chunk_bytes: int = 0
    transactional: bool = False
    encrypted: bool = False


def metadata_bounds(body: Body) -> tuple[int, int]:
    """Where the metadata begins and ends in ``body``.

    :raises BodyError: no body.
    """
    if len(body) < _METADATA_AT:
        raise BodyError(f"{len(body)} bytes are not a message body, whose head takes {_METADATA_AT}")
    magic, _, size = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise BodyError(f"a message body begins with 0x0e01, not {magic:#06x}")
    end: int = _METADATA_AT + size
    if end > len(body):
        raise BodyError(f"metadata of {size} bytes in a message body of {len(body)}")
    return _METADATA_AT, end


def parse(body: Body) -> pb.MessageMetadata:
    """The whole metadata as a protobuf message.

    :raises BodyError: not a valid body, or its metadata is not a ``MessageMetadata``.
    """
    start, end = metadata_bounds(body)
    try:
        metadata = pb.MessageMetadata.FromString(bytes(body[start:end]))
    except DecodeError as error:
        raise BodyError(f"the metadata of {end - start} bytes is not a MessageMetadata: {error}") from None
    if not metadata.IsInitialized():
        raise BodyError("the metadata lacks a producer name, a sequence id or a publish time")
    return metadata


def plain_start(producer_name: str) -> bytes:
    """How the metadata of this producer's messages begins, for ``plain_facts``."""
    name = producer_name.encode()
    return b"\x0a" + varint(len(name)) + name + b"\x10"


def begins_with(body: Body, start: bytes) -> bool:
    """Whether the message is from the producer whose ``plain_start`` is ``start``. False: unknown, use ``scan``."""
    return body[_METADATA_AT : _METADATA_AT + len(start)] == start


def plain_facts(body: Body, start: bytes) -> tuple[int, int] | None:
    """Publish time and stored checksum of a message whose metadata is the three required fields and nothing else.

    A producer's messages look like that unless they are batched or keyed, and this costs a fourth of ``scan``.
    None: use ``scan``.

    :param start: ``plain_start`` of the producer.
    """
    at = _METADATA_AT + len(start)
    if body[_METADATA_AT:at] != start:
        return None
    magic, checksum, size = _HEAD.unpack_from(body)
    try:
        if body[at] < 0x80:
            at += 1
        elif body[at + 1] < 0x80:
            at += 2
        else:
            _, at = read_varint(body, at)
        end = at + _TIME_FIELD_BYTES
        if magic != MAGIC or _METADATA_AT + size != end:
            return None
        field = body[at:end]
        time = _time_fields.get(field)
        if time is None:
            time, stop = read_varint(field, 1)
            if field[0] != 0x18 or stop != _TIME_FIELD_BYTES:
                return None
            if len(_time_fields) >= VARINT_CACHE_ENTRIES:
                _time_fields.clear()
            _time_fields[bytes(field)] = time
    except IndexError:
        return None
    return time, checksum


_TIME_FIELD_BYTES: Final = 7
"""Tag and six bytes: times from 1971 to 2109."""
_time_fields: dict[Body, int] = {}
"""Recent publish times by their encoded field: at most a thousand new ones per second."""


def scan(body: Body) -> MetadataView:
    """Read the facts that the broker needs, once per published entry.

    :raises BodyError: not a valid body, or its metadata is not a ``MessageMetadata``.
    """
    view = _scan_common(body)
    return view if view is not None else _view(parse(body), metadata_bounds(body)[1])


def _scan_common(body: Body) -> MetadataView | None:
    """Metadata as clients write it for ordinary messages, read by hand; None for any other.

    Fields of a chunk, a marker, a replicated, encrypted or delayed message are left to the parser.
    """
    try:
        magic, _, size = _HEAD.unpack_from(body)
        end = _METADATA_AT + size
        at = _METADATA_AT + 2 + body[_METADATA_AT + 1]
        if magic != MAGIC or end > len(body) or body[_METADATA_AT] != 0x0A or at > _METADATA_AT + 0x81:
            return None
        name = str(body[_METADATA_AT + 2 : at], "utf-8")
        if body[at] != 0x10:
            return None
        sequence_id = body[at + 1]
        at += 2
        if sequence_id >= 0x80:
            sequence_id, at = read_varint(body, at - 1)
        low, high = body[at + 1], body[at + 2]
        if body[at] != 0x18:
            return None
        publish_time = _times.get(body[at + 3 : at + 7])
        if publish_time is not None and low >= 0x80 and high >= 0x80:
            publish_time |= low & 0x7F | (high & 0x7F) << 7
            at += 7
        else:
            publish_time, at = _publish_time(body, at + 1)
        if at == end:
            return _new(
                MetadataView,
                (name, sequence_id, publish_time, 1, False, 0, None, False, None, None, end, 0, 0, 0, *_RARE),
            )
        return _scan_options(body, at, end, (name, sequence_id, publish_time))
    except (IndexError, UnicodeDecodeError, struct.error):
        return None


_times: dict[Body, int] = {}
"""The upper bits of times of these days, by the last four of their six bytes: they change every sixteen seconds."""


def _publish_time(body: Body, at: int) -> tuple[int, int]:
    """A time not among the recent ones."""
    number, end = read_varint(body, at)
    if end - at == 6:
        if len(_times) >= VARINT_CACHE_ENTRIES:
            _times.clear()
        _times[bytes(body[at + 2 : end])] = number & ~0x3FFF
    return number, end


_RARE: Final = tuple(MetadataView._field_defaults.values())[3:]
"""Defaults of the fields that only the parser reads."""
_new: Final = tuple.__new__


def _scan_options(body: Body, at: int, end: int, known: tuple[str, int, int]) -> MetadataView | None:
    """The fields after the required ones, as far as ordinary messages have them."""
    messages, is_batch, highest = 1, False, 0
    key: str | None = None
    base64_key = False
    ordering_key: bytes | None = None
    schema_version: bytes | None = None
    compression = uncompressed = event_time = 0
    while at < end:
        tag = body[at]
        if tag == 0x58:
            messages, at = read_varint(body, at + 1)
            is_batch = True
        elif tag == 0x48:
            uncompressed, at = read_varint(body, at + 1)
        elif tag == 0x40:
            compression, at = read_varint(body, at + 1)
        elif tag == 0x60:
            event_time, at = read_varint(body, at + 1)
        elif tag == 0x22:
            length, at = read_varint(body, at + 1)
            stop = at + length
            if body[at] != 0x0A or body[at : at + len(SOURCE_KEY)] == SOURCE_KEY:
                return None
            length, at = read_varint(body, at + 1)
            at += length
            if body[at] != 0x12:
                return None
            length, at = read_varint(body, at + 1)
            at += length
            if at != stop:
                return None
        elif tag == 0x32:
            length, at = read_varint(body, at + 1)
            key = str(body[at : at + length], "utf-8")
            at += length
        elif tag >= 0x80 and body[at + 1] == 1:
            at += 2
            if tag == 0xC0:
                highest, at = read_varint(body, at)
            elif tag == 0x88 and body[at] <= 1:
                base64_key = body[at] == 1
                at += 1
            elif tag in (0x82, 0x92):
                length, at = read_varint(body, at)
                if tag == 0x82:
                    schema_version = bytes(body[at : at + length])
                else:
                    ordering_key = bytes(body[at : at + length])
                at += length
            else:
                return None
        else:
            return None
    if at != end or messages > _INT32_MAX or compression > _LAST_COMPRESSION or uncompressed > _UINT32_MAX:
        return None
    common = (messages, is_batch, highest, key, base64_key, ordering_key, schema_version, end)
    return _new(MetadataView, (*known, *common, compression, uncompressed, event_time, *_RARE))


_INT32_MAX: Final = (1 << 31) - 1
_UINT32_MAX: Final = (1 << 32) - 1
_LAST_COMPRESSION: Final = 4
"""Values beyond these are left to the parser."""


def _view(metadata: pb.MessageMetadata, payload_offset: int) -> MetadataView:
    has = metadata.HasField
    texts = (metadata.producer_name, metadata.partition_key, metadata.replicated_from, metadata.uuid)
    if not all(isinstance(text, str) for text in (*texts, *metadata.replicate_to)):
        raise BodyError("the metadata holds a name or key that is not UTF-8 text")
    return MetadataView(
        metadata.producer_name,
        metadata.sequence_id,
        metadata.publish_time,
        metadata.num_messages_in_batch,
        has("num_messages_in_batch"),
        metadata.highest_sequence_id,
        metadata.partition_key if has("partition_key") else None,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if has("ordering_key") else None,
        metadata.schema_version if has("schema_version") else None,
        payload_offset,
        metadata.compression,
        metadata.uncompressed_size,
        metadata.event_time,
        tuple(metadata.replicate_to) or None,
        metadata.replicated_from if has("replicated_from") else None,
        metadata.marker_type if has("marker_type") else None,
        metadata.deliver_at_time if metadata.deliver_at_time > 0 else None,
        metadata.uuid if has("uuid") else None,
        metadata.chunk_id if has("chunk_id") else None,
        metadata.num_chunks_from_msg,
        metadata.total_chunk_msg_size,
        has("txnid_most_bits") or has("txnid_least_bits"),
        bool(metadata.encryption_keys),
    )


def key_hash(view: MetadataView) -> int:
    """Murmur3_32 of the key, seed 0, made non-negative: the number Key_Shared and partition routing work with.

    The key is the ordering key, else the partition key (decoded when it is base64), else producer name and sequence
    id, so that messages without a key spread evenly.
    """
    key = view.ordering_key
    if key is None:
        if view.partition_key is None:
            key = f"{view.producer_name}-{view.sequence_id}".encode()
        elif view.partition_key_b64:
            try:
                key = base64.b64decode(view.partition_key, validate=True)
            except (binascii.Error, ValueError):
                key = view.partition_key.encode()
        else:
            key = view.partition_key.encode()
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def body_checksum(body: Body) -> int:
    """The CRC32C recorded in the body, unchecked."""
    checksum: int = _HEAD.unpack_from(body)[1]
    return checksum


def checksum_everywhere(body: Body, view: MetadataView) -> int:
    """The checksum of a message that a region of Apache Pulsar sends to several others: the same in each, although each
    numbers the schemas in its own order (R41).

    :param view: what the metadata says.
    :raises BodyError: not a valid body.
    """
    if view.schema_version is None:
        return body_checksum(body)
    said = parse(body)
    said.ClearField("schema_version")
    return body_checksum(build_body(said.SerializeToString(deterministic=True), bytes(body[view.payload_offset :])))


def with_schema_version(body: Body, version: bytes) -> bytes:
    """The body with another schema number. :raises BodyError: not a valid body."""
    _, end = metadata_bounds(body)
    said = parse(body)
    said.schema_version = version
    return build_body(said.SerializeToString(deterministic=True), bytes(body[end:]))


def build_body(metadata: bytes, payload: bytes) -> bytes:
    """Encoded metadata and payload -> body."""
    covered = _U32.pack(len(metadata)) + metadata + payload
    return b"\x0e\x01" + _U32.pack(crc32c(covered)) + covered
