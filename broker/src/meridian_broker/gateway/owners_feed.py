# SPDX-License-Identifier: Apache-2.0
"""Tells other regions which broker of this one owns which topics: a link that asks gets everything, then the changes.

Each link has a set of namespaces still to be sent, so changes that come while much is under way are merged, and a link
whose other end does not read costs no more than that set.

A broker that has lost its lease, because it is cut off from its metadata, no longer knows who owns what. It closes
these links and accepts no others: the other end finds another broker of the region, or reconnects later."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.replication.progress.codec import encode
from meridian_broker.replication.progress.messages import NamespaceOwners, Owners, RemoteBroker

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connected import Connected

NAMESPACES: Final = 256
"""Namespaces in one message, at most, ..."""
BUNDLES: Final = 8192
"""... and no more than have this many bundles together, but at least one."""
PAUSE_SECONDS: Final = 0.005
"""Between two messages to one link."""
UNREAD_SECONDS: Final = 0.5
"""Pause for a link whose other end does not read."""
UNREAD_BYTES: Final = 1 << 20


class OwnersSource(Protocol):
    """Who owns what in this region."""

    @property
    def is_current(self) -> bool:
        """Whether this broker knows the owners and sees their changes."""
        ...

    def brokers(self, listener: str) -> tuple[RemoteBroker, ...]:
        """The live brokers, with their addresses for clients of a listener."""
        ...

    def namespaces(self) -> Iterable[str]:
        """The namespaces whose bundles are known."""
        ...

    def owners(self, namespace: str) -> NamespaceOwners: ...


@dataclass(slots=True)
class _Link:
    untold: dict[str, None] = field(default_factory=dict)
    """Namespaces still to be sent, oldest first."""
    is_first: bool = True
    """Nothing has been sent yet."""
    is_whole: bool = False
    """Everything has been sent once."""
    is_due: bool = False
    """Something must be sent, if only the list of brokers."""


class OwnersFeed:
    """See the module's docstring. One per broker."""

    def __init__(self, source: OwnersSource) -> None:
        self._source = source
        self._links: dict[Connected, _Link] = {}
        self._timer: asyncio.Handle | None = None

    def __contains__(self, connection: Connected) -> bool:
        return connection in self._links

    def add(self, connection: Connected) -> None:
        """Add a connection that carries nothing else. ``tell`` starts it."""
        self._links[connection] = _Link()

    def discard(self, connection: Connected) -> None:
        """The connection is closed."""
        self._links.pop(connection, None)

    def tell(self, connection: Connected) -> None:
        """Send everything, and from now on the changes."""
        if not self._source.is_current:
            self._cut_off()
            return
        self._links[connection] = _Link(dict.fromkeys(self._source.namespaces()), is_due=True)
        self._soon(0.0)

    def changed(self, namespaces: Collection[str] | None) -> None:
        """Owners in these namespaces changed, or the brokers, or ``is_current``.

        :param namespaces: None: perhaps all of them.
        """
        told = list(self._source.namespaces()) if namespaces is None else namespaces
        for link in self._links.values():
            link.untold |= dict.fromkeys(told)
            link.is_due = True
        self._soon(0.0)

    def _soon(self, seconds: float) -> None:
        if self._timer is None and any(link.is_due for link in self._links.values()):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if not self._source.is_current:
            self._cut_off()
            return
        pause = PAUSE_SECONDS
        for connection, link in self._links.items():
            if connection.transport is None or not link.is_due:
                continue
            if connection.transport.get_write_buffer_size() > UNREAD_BYTES:
                pause = UNREAD_SECONDS
                continue
            connection.write(encode(self._next(connection, link)))
        self._soon(pause)

    def _cut_off(self) -> None:
        for connection in list(self._links):
            connection.end("this broker is cut off from its metadata and does not know who owns which topics")
            self.discard(connection)

    def _next(self, connection: Connected, link: _Link) -> Owners:
        found: list[NamespaceOwners] = []
        bundles = 0
        for namespace in islice(link.untold, NAMESPACES):
            one = self._source.owners(namespace)
            bundles += len(one.owners)
            if found and bundles > BUNDLES:
                break
            found.append(one)
        for one in found:
            del link.untold[one.namespace]
        link.is_due = bool(link.untold)
        is_first, is_last = link.is_first, not link.is_whole and not link.untold
        link.is_first, link.is_whole = False, link.is_whole or is_last
        return Owners(self._source.brokers(connection.listener), tuple(found), is_first, is_last)
