# SPDX-License-Identifier: Apache-2.0
"""Message metadata where it stands: inside an encoded body.

A *body* is ``0x0e01 | u32 crc32c | u32 metadata size | metadata | payload``: what a SEND carries, what is stored and
what a MESSAGE delivers. Publishing reads a few facts out of it once (``scan``). Replication adds fields at the end of
the metadata without touching what is there (``append_replication``), so that the receiver can take the addition off
again and check the rest against the checksum the origin computed (``origin_checksum``, R7).
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
from meridian_broker.wire.pulsar.encode import varint

MAGIC: Final = 0x0E01
SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""Property that names the origin's position as ``ledger:entry``; the name Pulsar uses."""
LOCAL_ONLY: Final = "__local__"
"""In ``replicate_to``: this entry goes nowhere else."""
MARKER_PRODUCER: Final = "pulsar.marker"

_HEAD: Final = struct.Struct(">HII")
_U32: Final = struct.Struct(">I")
_METADATA_AT: Final = _HEAD.size


class BodyError(ValueError):
    """The bytes are no body, or its metadata is none: whoever published it is at fault."""


class MetadataView(NamedTuple):
    """What the broker wants to know of a message's metadata."""

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    """Of a batch; 0 when absent."""
    publish_time_ms: int
    num_messages: int
    is_batch: bool
    """The payload is a batch, possibly of one."""
    partition_key: str | None
    partition_key_b64: bool
    ordering_key: bytes | None
    replicate_to: tuple[str, ...] | None
    """Regions this may go to; None: everywhere."""
    replicated_from: str | None
    marker_type: int | None
    deliver_at_ms: int | None
    schema_version: bytes | None
    uuid: str | None
    """Common to the chunks of one message."""
    chunk_id: int | None
    num_chunks: int
    total_chunk_bytes: int
    source_position: tuple[int, int] | None
    """From ``SOURCE_POSITION_PROPERTY``."""
    transactional: bool
    encrypted: bool
    payload_offset: int
    """Where the payload begins in the body."""


def metadata_bounds(body: bytes) -> tuple[int, int]:
    """Where the metadata begins and ends in ``body``.

    :raises BodyError: no body.
    """
    if len(body) < _METADATA_AT:
        raise BodyError(f"{len(body)} bytes are no message body: magic, checksum and metadata size take {_METADATA_AT}")
    magic, _, size = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise BodyError(f"a message body begins with 0x0e01, not {magic:#06x}")
    end: int = _METADATA_AT + size
    if end > len(body):
        raise BodyError(f"metadata of {size} bytes in a message body of {len(body)}")
    return _METADATA_AT, end


def parse(body: bytes) -> pb.MessageMetadata:
    """The whole metadata as a protobuf message.

    :raises BodyError: no body, or its metadata is no ``MessageMetadata``.
    """
    start, end = metadata_bounds(body)
    try:
        metadata = pb.MessageMetadata.FromString(body[start:end])
    except DecodeError as error:
        raise BodyError(f"the metadata of {end - start} bytes is no MessageMetadata: {error}") from None
    if not metadata.IsInitialized():
        raise BodyError("the metadata lacks a producer name, a sequence id or a publish time")
    return metadata


def scan(body: bytes) -> MetadataView:
    """Read what the broker needs, once per published entry.

    :raises BodyError: no body, or its metadata is no ``MessageMetadata``.
    """
    return _view(parse(body), metadata_bounds(body)[1])


def _view(metadata: pb.MessageMetadata, payload_offset: int) -> MetadataView:
    has = metadata.HasField
    source = None
    for one in metadata.properties:
        if one.key == SOURCE_POSITION_PROPERTY:
            source = _source_position(one.value)
    return MetadataView(
        metadata.producer_name,
        metadata.sequence_id,
        metadata.highest_sequence_id,
        metadata.publish_time,
        metadata.num_messages_in_batch,
        has("num_messages_in_batch"),
        metadata.partition_key if has("partition_key") else None,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if has("ordering_key") else None,
        tuple(metadata.replicate_to) or None,
        metadata.replicated_from if has("replicated_from") else None,
        metadata.marker_type if has("marker_type") else None,
        metadata.deliver_at_time if has("deliver_at_time") else None,
        metadata.schema_version if has("schema_version") else None,
        metadata.uuid if has("uuid") else None,
        metadata.chunk_id if has("chunk_id") else None,
        metadata.num_chunks_from_msg,
        metadata.total_chunk_msg_size,
        source,
        has("txnid_most_bits") or has("txnid_least_bits"),
        bool(metadata.encryption_keys),
        payload_offset,
    )


def _source_position(text: str) -> tuple[int, int] | None:
    """``"12:7"`` -> (12, 7); anything else is nobody's position and counts as absent."""
    ledger, _, entry = text.partition(":")
    if ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal():
        return int(ledger), int(entry)
    return None


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


def body_checksum(body: bytes) -> int:
    """The CRC32C that stands in the body, unchecked."""
    checksum: int = _HEAD.unpack_from(body)[1]
    return checksum


def build_body(metadata: bytes, payload: bytes) -> bytes:
    """Encoded metadata and payload -> body."""
    covered = _U32.pack(len(metadata)) + metadata + payload
    return b"\x0e\x01" + _U32.pack(crc32c(covered)) + covered


def append_replication(
    body: bytes, region: str, ledger: int, entry: int, schema_version: bytes | None = None
) -> tuple[bytes, int]:
    """Add where an entry comes from to its metadata; what is there stays byte for byte.

    :param schema_version: the remote's number of the schema, when it differs from ours (R41). The last value of a
        protobuf field counts, so the added one replaces what the client wrote.
    :returns: the new body with size and checksum put right, and the number of bytes appended to the metadata.
    :raises BodyError: no body.
    """
    _, end = metadata_bounds(body)
    name = region.encode()
    position = f"{ledger}:{entry}".encode()
    pair = _SOURCE_KEY + b"\x12" + varint(len(position)) + position
    added = b"\x2a" + varint(len(name)) + name + b"\x22" + varint(len(pair)) + pair
    if schema_version is not None:
        added += b"\x82\x01" + varint(len(schema_version)) + schema_version
    size = _U32.pack(end - _METADATA_AT + len(added))
    covered = b"".join((size, body[_METADATA_AT:end], added, body[end:]))
    return b"\x0e\x01" + _U32.pack(crc32c(covered)) + covered, len(added)


_SOURCE_KEY: Final = b"\x0a" + varint(len(SOURCE_POSITION_PROPERTY)) + SOURCE_POSITION_PROPERTY.encode()


def origin_checksum(body: bytes, appended: int) -> int:
    """The CRC32C the body had before ``appended`` bytes were added to its metadata.

    :raises BodyError: no body, or its metadata is shorter than what was appended.
    """
    if appended == 0:
        return crc32c(memoryview(body)[6:])
    start, end = metadata_bounds(body)
    if not 0 < appended <= end - start:
        raise BodyError(f"{appended} bytes cannot have been appended to metadata of {end - start}")
    view = memoryview(body)
    checksum = crc32c(_U32.pack(end - start - appended))
    checksum = crc32c(view[start : end - appended], checksum)
    return crc32c(view[end:], checksum)


def strip_appended(body: bytes, appended: int) -> bytes:
    """The body as its origin stored it: ``append_replication`` undone.

    :raises BodyError: as ``origin_checksum``.
    """
    start, end = metadata_bounds(body)
    if not 0 <= appended <= end - start:
        raise BodyError(f"{appended} bytes cannot have been appended to metadata of {end - start}")
    return build_body(body[start : end - appended], body[end:])
