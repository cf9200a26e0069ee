# SPDX-License-Identifier: Apache-2.0
"""The four codecs with which clients compress payloads.

Only compaction looks inside a client's payload. A payload never decompresses to more than its metadata announces and
its reader allows: one that would is damaged or malicious. The size is checked before memory is allocated.

Both directions are generators: they do a bounded amount of work, yield its cost, and return the result at the end. So
the caller decides when other tasks run. zlib is the slow codec and is processed in pieces; the other formats cannot be
split in a way that all clients read, but handle 8 MiB in some 30 ms.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Final

import cramjam

from meridian_broker.wire.proto import pulsar_pb2 as pb

PIECE_BYTES: Final = 256 << 10
"""Uncompressed bytes that zlib processes at a time."""
STEP_BYTES: Final = 4096
"""Bytes that count as one step: a few microseconds."""

Steps = Generator[int, None, bytes]
"""Work in pieces. Yields the steps that each piece took, and returns the bytes."""


class CompressionError(ValueError):
    """The payload does not match its metadata, or the codec is unknown."""


def decompress(codec: int, payload: bytes, size: int, limit: int) -> Steps:
    """The payload as its client wrote it.

    :param codec: ``MessageMetadata.compression``.
    :param size: ``MessageMetadata.uncompressed_size``, in bytes.
    :param limit: largest size that is allowed, in bytes.
    :raises CompressionError: the size differs, or the payload cannot be decompressed.
    """
    if codec == pb.NONE:
        return payload
    if size > limit:
        raise CompressionError(f"{size} bytes uncompressed; the limit is {limit}")
    try:
        if codec == pb.ZLIB:
            return (yield from _inflate(payload, size))
        whole = bytearray(size)
        if codec == pb.LZ4:
            written = cramjam.lz4.decompress_block_into(payload, whole)
        elif codec == pb.ZSTD:
            written = cramjam.zstd.decompress_into(payload, whole)
        elif codec == pb.SNAPPY:
            written = cramjam.snappy.decompress_raw_into(payload, whole)
        else:
            raise CompressionError(f"compression {codec} is not known")
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CompressionError(f"the payload cannot be decompressed: {error}") from error
    yield size // STEP_BYTES
    if written != size:
        raise CompressionError(f"{written} bytes uncompressed, {size} were announced")
    return bytes(whole)


def _inflate(payload: bytes, size: int) -> Steps:
    reader, found, rest = zlib.decompressobj(), bytearray(), payload
    while not reader.eof:
        piece = reader.decompress(rest, PIECE_BYTES)
        found += piece
        rest = reader.unconsumed_tail
        if len(found) > size or not (piece or rest or reader.eof):
            break
        yield len(piece) // STEP_BYTES
    if len(found) != size or not reader.eof:
        raise CompressionError(f"zlib does not yield the {size} bytes announced")
    return bytes(found)


def compress(codec: int, payload: bytes) -> Steps:
    """The payload as a client with this codec would send it."""
    if codec == pb.NONE:
        return payload
    if codec == pb.ZLIB:
        return (yield from _deflate(payload))
    yield len(payload) // STEP_BYTES
    if codec == pb.LZ4:
        return bytes(cramjam.lz4.compress_block(payload, store_size=False))
    if codec == pb.ZSTD:
        return bytes(cramjam.zstd.compress(payload))
    if codec == pb.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(payload))
    raise CompressionError(f"compression {codec} is not known")


def _deflate(payload: bytes) -> Steps:
    writer, made = zlib.compressobj(), bytearray()
    for at in range(0, len(payload), PIECE_BYTES):
        piece = payload[at : at + PIECE_BYTES]
        made += writer.compress(piece)
        yield 4 * len(piece) // STEP_BYTES
    return bytes(made + writer.flush())
