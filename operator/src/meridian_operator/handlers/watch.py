# SPDX-License-Identifier: Apache-2.0
"""A task that keeps data from Kubernetes up to date, and signals when its first attempt to read it is over."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Watch(ABC):
    """Runs from its construction, which takes place in a running loop, until ``close``."""

    def __init__(self, name: str) -> None:
        """:param name: of the task, for logs."""
        self._tried = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=name)

    async def tried(self) -> None:
        """Return once everything was read, or could not be. Until then, missing data means nothing."""
        await self._tried.wait()

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _run(self) -> None:
        """Read forever; set ``_tried`` after the first attempt."""
