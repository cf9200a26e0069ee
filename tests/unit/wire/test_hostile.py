# SPDX-License-Identifier: Apache-2.0
"""Any bytes give commands or a ``FrameError``, the same by hand, by protobuf's parser and in any split.

``make fuzz`` runs the same for longer.
"""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol.wire_streams import check_body, check_stream, decoded, mutated_streams, near_frames, near_metadata


@settings(max_examples=500, deadline=None)
@given(mutated_streams(), st.lists(st.integers(0, 1 << 16), max_size=5))
def test_hostile_streams(stream: bytes, cuts: list[int]) -> None:
    check_stream(stream, cuts)


@settings(max_examples=500, deadline=None)
@given(near_frames(), near_frames())
def test_commands_almost_as_clients_write_them(frame: bytes, after: bytes) -> None:
    check_stream(frame + after, [])


@settings(max_examples=500, deadline=None)
@given(near_metadata())
def test_metadata_almost_as_clients_write_it(body: bytes) -> None:
    check_body(body)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_hostile_bodies(noise: bytes, long: bool) -> None:
    check_body(noise)
    check_body(b"\x0e\x01" + bytes(4) + len(noise).to_bytes(4, "big") + noise + (b"payload" if long else b""))


COVERED = b"\0\0\0\x0a\x0a\x01p\x10\x01\x18\x80\x80\x80\x01payload"
BODY = b"\x0e\x01" + struct.pack(">I", crc32c(COVERED)) + COVERED
LEDGER = "fb c0 d3 dc ef c3 aa 01"


@pytest.mark.parametrize(
    "command",
    [
        "08 06 32 06 08 80 80 10 10 05",  # a producer of three bytes, the last of which looks like the next tag
        "08 06 32 07 08 80 80 10 10 18 07",
        "08 0b 5a 05 08 80 80 10 10",
        "08 06 32 04 08 80 10 05",  # a producer that swallows the tag
        "08 06 32 0d 08 01 11 01 02 03 04 05 06 07 08 10 02",  # another wire type for the same field
        "08 06 32 04 08 01 10 05 18 07",  # a field of the envelope that looks like one of the command
        "08 06 32 06 08 01 10 05 18 07 30 09",
        "08 06 32 0a 08 01 10 05 18 80 80 80 80 08",  # a negative count of messages
        "08 06 32 0a 08 01 10 05 18 ff ff ff ff 07",
        "08 06 32 06 08 01 10 05 38 02",  # a boolean of two
        "08 06 32 05 08 01 10 05 80",
        "08 06 32 09 08 01 10 80 80 80 80 80 01",
        "08 0b 5a 04 08 01 10 05 10 06",
        "08 0b 5a 06 08 80 80 10 10 05",
        "08 0b 5a 09 08 01 10 ff ff ff ff ff 01",  # more permits than fit
        f"08 0a 52 11 08 01 10 00 1a 0b 08 {LEDGER} 18 07",  # no entry
        f"08 0a 52 13 08 01 10 00 1a 0d 08 {LEDGER} 10 07 18 01",
        f"08 0a 52 11 08 01 10 00 1a 0b 10 {LEDGER} 08 07",  # entry before ledger
        f"08 0a 52 11 08 01 10 00 1a 0b 08 {LEDGER} 10 07 40 05",  # a request id outside the command
        f"08 0a 52 13 08 01 10 00 1a 0b 08 {LEDGER} 10 07 40 05",
        f"08 0a 52 11 08 01 10 00 1a 0c 08 {LEDGER} 10 07",  # an id longer than the command
        f"08 0a 52 11 08 01 10 00 1a 0a 08 {LEDGER} 10 07",
    ],
)
def test_traps(command: str) -> None:
    """Commands that a careless fast path would take for ordinary ones, after one that fills the decoder's memory."""
    known = bytes.fromhex(f"08 0a 52 11 08 01 10 00 1a 0b 08 {LEDGER} 10 07")
    trap = bytes.fromhex(command)
    payload = BODY if trap[1] == 6 else b""
    stream = struct.pack(">II", len(known) + 4, len(known)) + known
    stream += struct.pack(">II", len(trap) + 4 + len(payload), len(trap)) + trap + payload
    assert len(decoded([stream[:30]])[0]) == 1
    check_stream(stream, [3, 30])
    check_stream(stream + stream, [40])
