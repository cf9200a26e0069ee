# SPDX-License-Identifier: Apache-2.0
"""The four codecs with which clients compress payloads.

Only compaction looks inside a client's payload. What comes out of a payload is never larger than its metadata says and
its reader allows: a payload that would be is damaged, or made to hurt.
"""

from __future__ import annotations

import zlib

import cramjam

from meridian_broker.wire.proto import pulsar_pb2 as pb


class CompressionError(ValueError):
    """The payload is not what its metadata says, or its codec is not known here."""


def decompress(codec: int, payload: bytes, size: int, limit: int) -> bytes:
    """The payload as its client wrote it.

    :param codec: ``MessageMetadata.compression``.
    :param size: ``MessageMetadata.uncompressed_size``, in bytes.
    :param limit: largest size that is allowed, in bytes.
    :raises CompressionError: another size comes out, or nothing that makes sense.
    """
    if codec == pb.NONE:
        return payload
    if size > limit:
        raise CompressionError(f"{size} bytes uncompressed, {limit} are allowed")
    whole = bytearray(size)
    try:
        if codec == pb.ZLIB:
            reader = zlib.decompressobj()
            found = reader.decompress(payload, size or 1)
            if len(found) != size or not reader.eof:
                raise CompressionError(f"zlib gives other than the {size} bytes announced")
            return found
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
    if written != size:
        raise CompressionError(f"{written} bytes uncompressed, {size} were announced")
    return bytes(whole)


def compress(codec: int, payload: bytes) -> bytes:
    """The payload as a client with this codec would send it."""
    if codec == pb.NONE:
        return payload
    if codec == pb.ZLIB:
        return zlib.compress(payload)
    if codec == pb.LZ4:
        return bytes(cramjam.lz4.compress_block(payload, store_size=False))
    if codec == pb.ZSTD:
        return bytes(cramjam.zstd.compress(payload))
    if codec == pb.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(payload))
    raise CompressionError(f"compression {codec} is not known")
