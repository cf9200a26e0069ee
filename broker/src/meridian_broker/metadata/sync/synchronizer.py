# SPDX-License-Identifier: Apache-2.0
"""The port to the event topic: PIP-136's ``MetadataEventSynchronizer``.

The topic is an ordinary replicated one, so it keeps each region's messages in their order and delivers each at least
once; how far this region has read is a subscription, which survives whoever reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Listener = Callable[[Sequence[tuple[str, bytes]]], Awaitable[None]]
"""Gets the messages in order, as many as are there, this region's own included, each with the region that published it.
One that can never be applied is set apart, once the listener has raised ``Poison`` for it, and those behind it come
again. If the listener raises anything else, all come again."""


class MetadataEventSynchronizer(Protocol):
    async def notify(self, message: bytes) -> None:
        """Publish; returns once the message is durable in the topic.

        :raises MetadataError: it may or may not be. Publishing it again is right.
        """
        ...

    def register_sync_listener(self, listener: Listener) -> None: ...

    @property
    def cluster_name(self) -> str:
        """This region."""
        ...

    async def close(self) -> None: ...
