# SPDX-License-Identifier: Apache-2.0
"""Ports for a test that starts several regions, which want them ten apart."""

from __future__ import annotations

import contextlib
import socket


def free_base_port(regions: int) -> int:
    """A port p such that p, p + 10, p + 20, ... are free. Another process may still take one, which fails the test."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for region in range(1, regions):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + 10 * region))
            except (OSError, OverflowError):
                continue
            return port
