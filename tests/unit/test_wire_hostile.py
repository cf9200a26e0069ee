# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes come: commands or a ``FrameError``, the same by hand, by the parser and in any split.

``make fuzz`` runs the same for longer.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from wire_streams import check_body, check_stream, mutated_streams, near_frames, near_metadata


@settings(max_examples=1000, deadline=None)
@given(mutated_streams(), st.lists(st.integers(0, 1 << 16), max_size=5))
def test_hostile_streams(stream: bytes, cuts: list[int]) -> None:
    check_stream(stream, cuts)


@settings(max_examples=800, deadline=None)
@given(near_frames(), near_frames())
def test_commands_nearly_as_clients_write_them(frame: bytes, after: bytes) -> None:
    check_stream(frame + after, [])


@settings(max_examples=800, deadline=None)
@given(near_metadata())
def test_metadata_nearly_as_clients_write_it(body: bytes) -> None:
    check_body(body)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_hostile_bodies(noise: bytes, long: bool) -> None:
    check_body(noise)
    check_body(b"\x0e\x01" + bytes(4) + len(noise).to_bytes(4, "big") + noise + (b"payload" if long else b""))
