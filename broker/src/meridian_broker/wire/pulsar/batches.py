# SPDX-License-Identifier: Apache-2.0
"""A client's batch, opened and made again with fewer messages in it.

A batch is one opaque entry everywhere but here. Compaction opens it because each of its messages has a key of its own.
What is taken out leaves an empty place marked ``compacted_out``, so every other message keeps its batch index, and with
it its id. An encrypted batch cannot be opened, nor can one whose bytes make no sense: both stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.compression import CompressionError, compress, decompress
from meridian_broker.wire.pulsar.metadata import build_body, metadata_bounds

_U32: Final = struct.Struct(">I")
MAX_MESSAGES: Final = 1_000_000
"""More in one batch is no batch."""


class Single(NamedTuple):
    """One message of a batch."""

    metadata: pb.SingleMessageMetadata
    payload: bytes

    @property
    def key(self) -> str | None:
        return self.metadata.partition_key if self.metadata.HasField("partition_key") else None


def open_batch(body: bytes, metadata: pb.MessageMetadata, limit: int) -> list[Single] | None:
    """The messages of a batch; None: it cannot be opened.

    :param metadata: the body's, parsed.
    :param limit: largest uncompressed size, in bytes.
    """
    count = metadata.num_messages_in_batch
    if metadata.encryption_keys or not 0 < count <= MAX_MESSAGES:
        return None
    try:
        payload = decompress(metadata.compression, body[metadata_bounds(body)[1] :], metadata.uncompressed_size, limit)
        return _split(payload, count)
    except (CompressionError, DecodeError, struct.error, ValueError):
        return None


def _split(payload: bytes, count: int) -> list[Single] | None:
    found: list[Single] = []
    at = 0
    for _ in range(count):
        (size,) = _U32.unpack_from(payload, at)
        at += _U32.size
        metadata = pb.SingleMessageMetadata.FromString(payload[at : at + size])
        at += size
        end = at + metadata.payload_size
        if metadata.payload_size < 0 or end > len(payload) or not metadata.IsInitialized():
            return None
        found.append(Single(metadata, payload[at:end]))
        at = end
    return found if at == len(payload) else None


def remake(metadata: pb.MessageMetadata, messages: list[Single], kept: Container[int]) -> bytes:
    """A body with the messages whose index is in ``kept``, each at its index, compressed as before."""
    parts: list[bytes] = []
    for index, message in enumerate(messages):
        single, payload = message
        if index not in kept:
            single, payload = pb.SingleMessageMetadata(payload_size=0, compacted_out=True), b""
        encoded = single.SerializeToString()
        parts += (_U32.pack(len(encoded)), encoded, payload)
    whole = b"".join(parts)
    made = pb.MessageMetadata()
    made.CopyFrom(metadata)
    if made.compression != pb.NONE or made.HasField("uncompressed_size"):
        made.uncompressed_size = len(whole)
    return build_body(made.SerializeToString(), compress(made.compression, whole))
