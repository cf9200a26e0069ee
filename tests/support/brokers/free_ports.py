# SPDX-License-Identifier: Apache-2.0
"""Free ports for tests, including series of ports ten apart for several regions.

They are below the kernel's range for outgoing connections, so that no client connects from the port of a broker that is
briefly down. No other test process hands them out: each process reserves whole blocks, listens on the first port of a
block while it lives, and hands out each of the others once.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 10_000
BLOCK: Final = 100
BLOCKS: Final = 200
STEP: Final = 10
"""Distance between the ports of two regions of one ``meridian up``."""
BROKER_STEP: Final = 2
"""Distance between the ports of two brokers of a region."""
_held: Final[list[socket.socket]] = []
_given: Final[set[int]] = set()
"""Ports given by ``free_base_port``; those of additional brokers are in other columns."""


def free_port() -> int:
    """A free loopback port that no other test process hands out."""
    return next(_singles)


def free_base_port(regions: int, brokers: int = 1) -> int:
    """A port p such that p, p + 10, ... are free in the same sense, and so are p + 2, ... for more brokers of each."""
    assert regions <= BLOCK // STEP
    for base in _columns:
        ports = [base + STEP * region + BROKER_STEP * number for region in range(regions) for number in range(brokers)]
        has_room = base % STEP + BROKER_STEP * (brokers - 1) < STEP
        if has_room and _given.isdisjoint(ports) and _are_free(*ports):
            _given.update(ports)
            return base
    raise AssertionError("no block of ports has room for that many brokers")


def _each_column() -> Iterator[int]:
    """First ports of series ten apart, in this process's blocks. The series of a block's first port stays unused."""
    first = random.Random(os.getpid()).randrange(BLOCKS)
    for number in itertools.islice(itertools.count(first), BLOCKS):
        block = FIRST + BLOCK * (number % BLOCKS)
        with contextlib.suppress(OSError):
            _held.append(socket.create_server(("127.0.0.1", block)))
            yield from range(block + 1, block + STEP)
    raise AssertionError(f"every block of ports from {FIRST} to {FIRST + BLOCK * BLOCKS} is taken")


def _each_single() -> Iterator[int]:
    for base in _columns:
        yield from (port for port in range(base, base + BLOCK, STEP) if _are_free(port))


def _are_free(*ports: int) -> bool:
    with contextlib.ExitStack() as stack:
        for port in ports:
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


@atexit.register
def _give_back() -> None:
    """Close the sockets: the interpreter reports those still open at exit among a run's failures."""
    while _held:
        _held.pop().close()


_columns: Final = _each_column()
_singles: Final = _each_single()
