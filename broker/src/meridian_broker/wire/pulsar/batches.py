# SPDX-License-Identifier: Apache-2.0
"""Opens a client's batch, and rebuilds it with fewer messages.

Everywhere else a batch is one opaque entry. Compaction opens it because each of its messages has its own key.
A removed message leaves a placeholder marked ``compacted_out``, so all other messages keep their batch index, and
thus their ids. A batch stays as it is if it is encrypted, malformed or too large.

A few hundred bytes may decompress to a million messages. So nothing here holds a protobuf object per message, and both
directions are generators like those of ``compression``: they yield the cost of their work and can be abandoned
anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Generator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from meridian_broker.bounds.clients import BATCH_MESSAGES
from meridian_broker.bounds.compaction import COMPACTED_METADATA_BYTES
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.compression import STEP_BYTES, CompressionError, Steps, compress, decompress
from meridian_broker.wire.pulsar.metadata import build_body, metadata_bounds

_U32: Final = struct.Struct(">I")
SOME: Final = 500
"""Messages looked at before other tasks may run."""

_blank = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_REMOVED: Final = _U32.pack(len(_blank)) + _blank
"""Placeholder for a removed message."""


class Single(NamedTuple):
    """One message of a batch: the facts that compaction needs, and its place in the payload."""

    key: str | None
    is_empty: bool
    is_removed: bool
    """An earlier compaction took it out."""
    start: int
    payload_at: int
    end: int


class Batch(NamedTuple):
    """A batch, opened."""

    payload: bytes
    """Uncompressed."""
    singles: list[Single]


def open_batch(body: bytes, metadata: pb.MessageMetadata, limit: int) -> Generator[int, None, Batch | None]:
    """The messages of a batch; None: it cannot be opened.

    :param metadata: the body's, parsed.
    :param limit: largest uncompressed size of a compressed batch, in bytes.
    """
    count = metadata.num_messages_in_batch
    if metadata.encryption_keys or not 0 < count <= BATCH_MESSAGES:
        return None
    try:
        compressed = body[metadata_bounds(body)[1] :]
        payload = yield from decompress(metadata.compression, compressed, metadata.uncompressed_size, limit)
        singles = yield from _split(payload, count)
    except (CompressionError, DecodeError, struct.error, ValueError):
        return None
    return None if singles is None else Batch(payload, singles)


def _split(payload: bytes, count: int) -> Generator[int, None, list[Single] | None]:
    found: list[Single] = []
    at = cost = 0
    for _ in range(count):
        (size,) = _U32.unpack_from(payload, at)
        payload_at = at + _U32.size + size
        if size > COMPACTED_METADATA_BYTES:
            return None
        metadata = pb.SingleMessageMetadata.FromString(payload[at + _U32.size : payload_at])
        end = payload_at + metadata.payload_size
        if not metadata.HasField("payload_size") or metadata.payload_size < 0 or end > len(payload):
            return None
        key: Any = metadata.partition_key if metadata.HasField("partition_key") else None
        if key is not None and not isinstance(key, str):
            return None  # the parser returns bytes for a string that is not UTF-8
        found.append(Single(key, end == payload_at, metadata.compacted_out, at, payload_at, end))
        at = end
        cost += 1 + 32 * size // STEP_BYTES
        if cost >= SOME:
            yield cost
            cost = 0
    yield cost
    return found if at == len(payload) else None


def remake(metadata: pb.MessageMetadata, batch: Batch, kept: Container[int]) -> Steps:
    """A body with only the messages whose indexes are in ``kept``, at the same indexes, compressed like the
    original."""
    payload, parts = batch.payload, []
    for index, single in enumerate(batch.singles):
        parts.append(payload[single.start : single.end] if index in kept else _REMOVED)
        if index % SOME == SOME - 1:
            yield SOME // 4
    whole = b"".join(parts)
    made = pb.MessageMetadata()
    made.CopyFrom(metadata)
    if made.compression != pb.NONE or made.HasField("uncompressed_size"):
        made.uncompressed_size = len(whole)
    return build_body(made.SerializeToString(), (yield from compress(made.compression, whole)))
