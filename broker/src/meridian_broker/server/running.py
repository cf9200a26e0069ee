# SPDX-License-Identifier: Apache-2.0
"""One broker process from its start to its end: how the interpreter is tuned, and which signals end it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop

from meridian_broker.engines.local.files import FilePort
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.descriptors import raise_limit
from meridian_broker.server.early import PATIENCE_SECONDS, EarlyPorts
from meridian_broker.server.settings import Settings
from meridian_broker.server.waiting import StartFailed

log = logging.getLogger(__name__)

SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""The thread that makes entries durable gets the interpreter this soon; the default of 5 ms would add to every
receipt's latency."""
GC_THRESHOLD: Final = (50_000, 20, 50)
"""Entries, receipts and acknowledgements form no reference cycles: collecting less often costs a little memory."""
MMAP_THRESHOLD: Final = 64 << 20
M_MMAP_THRESHOLD: Final = -3
M_TRIM_THRESHOLD: Final = -1
"""glibc maps and unmaps every block over 128 KiB; entries of that size would cost three times as much."""


def run_broker(
    settings: Settings,
    files: Callable[[Path], FilePort] | None = None,
    early: EarlyPorts | None = None,
) -> int:
    """Run until SIGTERM or SIGINT, then drain. The exit code: 0 for a clean end.

    :param files: see ``BrokerProcess.start``.
    :param early: ports that are open already.
    :raises Outranked: a later broker with the same id has started.
    """
    _tune()
    raise_limit()
    uvloop.run(_run(settings, files, early))
    return 0


def _tune() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, MMAP_THRESHOLD)
    except (OSError, AttributeError):
        log.info("no glibc here: large messages cost more memory traffic")


async def _run(
    settings: Settings,
    files: Callable[[Path], FilePort] | None,
    early: EarlyPorts | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        if early is not None:
            stack.callback(early.close)
            loop.call_later(PATIENCE_SECONDS, early.close)
        process = await _started(BrokerProcess.start(settings, stack, files, early), stop)
        if process is None:
            return
        log.info("region %s serves %s", process.region, process.listeners)
        gc.collect()
        gc.freeze()  # long-lived objects: collections need not visit them again
        gc.set_threshold(*GC_THRESHOLD)
        await process.serve(stop)
        log.info("draining")
        gc.disable()  # closing many topics would trigger collections of everything, just before the process ends
        await process.drain()
    log.info("stopped")


async def _started(start: Coroutine[Any, Any, BrokerProcess], stop: asyncio.Event) -> BrokerProcess | None:
    """None if it was told to stop before it was up. :raises StartFailed: the stores cannot be reached or read."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    (starting if stop.is_set() and not starting.done() else stopping).cancel()
    await asyncio.wait((starting, stopping))
    try:
        return None if starting.cancelled() else starting.result()
    except (LedgerError, MetadataError) as error:
        raise StartFailed(str(error)) from error
