# SPDX-License-Identifier: Apache-2.0
"""The fields that name an entry's origin, at the end of its metadata.

Replication appends them without touching existing ones (``append_replication``), so that the receiver can remove them
again and check the rest against the checksum the origin computed (``origin_checksum``, R7).
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from meridian_broker.wire.pulsar.metadata import SOURCE_KEY, Body, BodyError, build_body, metadata_bounds
from meridian_broker.wire.pulsar.varints import varint

_U32: Final = struct.Struct(">I")


def append_replication(
    body: Body, region: str, ledger: int, entry: int, schema_version: bytes | None = None
) -> tuple[bytes, int]:
    """Append an entry's origin to its metadata; existing bytes stay unchanged.

    :param schema_version: the remote's number for the schema, if it differs from ours (R41). The last value of a
        protobuf field counts, so the appended one replaces the client's.
    :returns: the new body with updated size and checksum, and the number of bytes appended to the metadata.
    :raises BodyError: not a valid body.
    """
    start, end = metadata_bounds(body)
    added = _source_fields(region, ledger, entry)
    if schema_version is not None:
        added += b"\x82\x01" + varint(len(schema_version)) + schema_version
    size = _U32.pack(end - start + len(added))
    covered = b"".join((size, body[start:end], added, body[end:]))
    return b"\x0e\x01" + _U32.pack(crc32c(covered)) + covered, len(added)


def _source_fields(region: str, ledger: int, entry: int) -> bytes:
    name = region.encode()
    position = f"{ledger}:{entry}".encode()
    pair = SOURCE_KEY + b"\x12" + varint(len(position)) + position
    return b"\x2a" + varint(len(name)) + name + b"\x22" + varint(len(pair)) + pair


def origin_checksum(body: Body, appended: int) -> int:
    """The CRC32C the body had before ``appended`` bytes were added to its metadata.

    :raises BodyError: not a valid body, or its metadata is shorter than the appended bytes.
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


def appended_bytes(body: Body, region: str, ledger: int, entry: int) -> int:
    """How many bytes ``append_replication`` added to a body's metadata; 0: none, it is as its origin stored it.

    :raises BodyError: no body.
    """
    start, end = metadata_bounds(body)
    at = bytes(body[start:end]).rfind(_source_fields(region, ledger, entry))
    return 0 if at < 0 else end - start - at


def strip_appended(body: Body, appended: int) -> bytes:
    """The body as its origin stored it: ``append_replication`` undone.

    :raises BodyError: as ``origin_checksum``.
    """
    start, end = metadata_bounds(body)
    if not 0 <= appended <= end - start:
        raise BodyError(f"{appended} bytes cannot have been appended to metadata of {end - start}")
    return build_body(bytes(body[start : end - appended]), bytes(body[end:]))
