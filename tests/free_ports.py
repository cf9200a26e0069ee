# SPDX-License-Identifier: Apache-2.0
"""Ports for tests, also for those that start several regions, which want them ten apart.

They lie below the range from which the kernel takes ports for outgoing connections, so that no client connects from the
port of a broker that is down for a moment. Each process counts on from a place of its own: two that test at once rarely
meet, and a port is not given again soon.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from typing import Final

FIRST: Final = 10_000
COUNT: Final = 10_000
STEP: Final = 100
"""Regions start in blocks of so many ports."""
_random = random.Random(os.getpid())
_singles = itertools.count(_random.randrange(COUNT))
_blocks = itertools.count(_random.randrange(COUNT // STEP))


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    for number in itertools.islice(_singles, COUNT):
        port = FIRST + number % COUNT
        if _are_free(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT} is free")


def free_base_port(regions: int) -> int:
    """A port p such that p, p + 10, p + 20, ... are free. Another process may still take one, which fails the test."""
    for number in itertools.islice(_blocks, COUNT // STEP):
        base = FIRST + COUNT + number % (COUNT // STEP) * STEP
        if _are_free(*(base + 10 * region for region in range(regions))):
            return base
    raise AssertionError(f"no ports from {FIRST + COUNT} to {FIRST + 2 * COUNT} are free")


def _are_free(*ports: int) -> bool:
    with contextlib.ExitStack() as stack:
        for port in ports:
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
