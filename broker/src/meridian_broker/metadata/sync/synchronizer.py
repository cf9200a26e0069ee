# SPDX-License-Identifier: Apache-2.0
"""The port to the event topic: PIP-136's ``MetadataEventSynchronizer``.

The topic is an ordinary replicated one, so it keeps each region's messages in their order and delivers each at least
once; how far this region has read is a subscription, which outlives its reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Listener = Callable[[Sequence[tuple[str, bytes]]], Awaitable[None]]
"""Gets the messages in order, as many as have arrived, this region's own included, each with the region that published
it. A message for which the listener raises ``Poison`` goes to the dead-letter topic, and those behind it come again.
After any other exception, all come again."""


class MetadataEventSynchronizer(Protocol):
    async def notify(self, message: bytes) -> None:
        """Publish; returns once the message is durable in the topic.

        :raises MetadataError: it may or may not be durable. Publishing it again is safe.
        """
        ...

    def register_sync_listener(self, listener: Listener) -> None: ...

    @property
    def cluster_name(self) -> str:
        """This region."""
        ...

    async def close(self) -> None: ...
