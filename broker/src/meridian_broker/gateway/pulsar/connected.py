# SPDX-License-Identifier: Apache-2.0
"""The interface of a connection for the broker and the progress exchange, which need not know its class."""

from __future__ import annotations

import asyncio
from typing import Protocol

from meridian_broker.gateway.pulsar.expiry import Expiring


class Connected(Expiring, Protocol):
    """An accepted connection; ``connection.Connection`` is the only kind."""

    transport: asyncio.Transport | None
    """None once it is closed."""
    listener: str
    """Name of the listener that accepted it; empty: the default one."""
    address: str
    """The client's address, without the port."""
    is_peer: bool
    """Whether it is a broker of another region that has proven its region (R7)."""
    is_own_broker: bool
    """Whether it has proven to be a broker of this region."""
    peer_name: str
    """The region that it has proven to be."""
    peer_region: str
    """The peer's name (``replication/progress/routes.py``), once it has sent HELLO; empty before."""
    peer_secret: bytes
    """Id of the secret that it has proven to know."""

    def write(self, data: bytes | memoryview) -> None:
        """Send data together with all other output of this turn of the loop."""
        ...

    def keep_alive(self) -> None:
        """Ping it if it is silent; close it if it did not answer the last ping."""
        ...

    def pause(self, reason: int) -> None:
        """Stop reading from it, for this reason in addition to others (``flow.py``)."""
        ...

    def read_on(self, reason: int) -> None:
        """This reason to stop reading is gone; reading resumes once no reason is left."""
        ...
