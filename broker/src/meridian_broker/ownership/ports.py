# SPDX-License-Identifier: Apache-2.0
"""What the owner of bundles needs from topics, and what it notes about a bundle that it hands over."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from meridian_broker.ownership.bundles import Bundle


class Heir(NamedTuple):
    """The broker that a bundle is being handed to."""

    broker: str
    fence: int = 0
    """The fence of its term; 0: none was reserved, so it has to acquire the bundle."""


NOBODY: Final = Heir("")


class BundleTopics(Protocol):
    """The open topics of this broker."""

    def gained(self, bundle: Bundle) -> None:
        """This broker owns a bundle from this turn of the loop on. Must not raise."""
        ...

    async def open(self, bundle: Bundle) -> None:
        """Open the topics of a bundle that another broker handed over: their clients wait. Must not raise."""
        ...

    async def close(self, bundle: Bundle) -> None:
        """Close a bundle's topics cleanly. None of them is reopened unless the bundle is acquired again."""
        ...

    async def drop(self, bundle: Bundle) -> None:
        """Drop a bundle's topics without writing anything: another broker may own them."""
        ...
