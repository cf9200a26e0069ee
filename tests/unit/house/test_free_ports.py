# SPDX-License-Identifier: Apache-2.0
"""Concurrent tests get different ports, whether or not anything listens on them at the moment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
PROCESSES = 4
PROGRAM = """
import sys
from support.brokers.free_ports import free_base_port, free_port
bases = [free_base_port(3) for _ in range(30)]
print(*(base + 10 * region for base in bases for region in range(3)), *(free_port() for _ in range(100)), flush=True)
sys.stdin.read()
"""


def test_no_port_is_assigned_twice() -> None:
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM], cwd=TESTS, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for _ in range(PROCESSES)
        ]
        given: list[str] = []
        for one in started:
            assert one.stdout is not None
            given += one.stdout.readline().split()
    assert len(given) == PROCESSES * 190
    assert len(set(given)) == len(given)
