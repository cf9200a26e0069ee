# SPDX-License-Identifier: Apache-2.0
"""The hostile streams of the unit tests, until the time is up (``FUZZ_SECONDS``, default 60).

Each round starts from another seed. A finding is shrunk and printed with the bytes.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support.protocol.wire_streams import check_body, check_stream, mutated_streams, near_frames, near_metadata

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
ROUND = settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(SECONDS + 120)
def test_fuzz_frames() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        number = random.randrange(1 << 32)
        print(f"seed {number}")

        @seed(number)
        @ROUND
        @given(
            mutated_streams(),
            near_frames(),
            st.lists(st.integers(0, 1 << 16), max_size=5),
            near_metadata(),
            st.binary(),
        )
        def round_of(stream: bytes, near: bytes, cuts: list[int], body: bytes, noise: bytes) -> None:
            if time.monotonic() > end:
                return
            check_stream(stream, cuts)
            check_stream(near + stream, cuts)
            check_body(body)
            check_body(b"\x0e\x01" + bytes(4) + len(noise).to_bytes(4, "big") + noise)

        round_of()
