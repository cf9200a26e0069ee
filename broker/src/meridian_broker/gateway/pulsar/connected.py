# SPDX-License-Identifier: Apache-2.0
"""The interface of a connection for the broker and the progress exchange, which need not know its class."""

from __future__ import annotations

import asyncio
from typing import Protocol

from meridian_broker.gateway.pulsar.expiry import Expiring


class Connected(Expiring, Protocol):
    """An accepted connection; ``connection.Connection`` is the only kind."""

    transport: asyncio.Transport | None
    """None: it is closed."""
    address: str
    """The client's, without the port."""
    is_peer: bool
    """A broker of another region proved that it is one (R7)."""
    peer_name: str
    """The region that it proved to be."""
    peer_region: str
    """The same, once it has sent HELLO; empty before."""
    peer_secret: bytes
    """Id of the secret that it proved to know."""

    @property
    def owes_receipts(self) -> bool:
        """Are messages of it being stored?"""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Send it with whatever else leaves in this turn of the loop."""
        ...

    def keep_alive(self) -> None:
        """Ping it when it is silent; close it when it did not answer the last ping."""
        ...

    def pause(self, reason: int) -> None:
        """Read nothing more from it, for this reason too (``flow.py``)."""
        ...

    def read_on(self, reason: int) -> None:
        """This reason to read nothing from it is over."""
        ...
