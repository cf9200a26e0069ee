# SPDX-License-Identifier: Apache-2.0
"""Regions of several brokers: links to those of them that own topics, and what follows when a topic changes hands.

A link to a region's address reaches any of its brokers. If the answer to our HELLO names a broker, the region is
divided: that link carries ``Owners`` from then on, and every broker of the region that owns a topic of ours gets a link
of its own. A peer that is new to a topic compares it at once, even with changes in flight: nobody knows what the one
before had confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from meridian_broker.replication.progress.context import ExchangeContext
from meridian_broker.replication.progress.messages import Owners, PeerMessage
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.routes import Moved

WALK_PAUSE_MS: Final = 10
"""Between two steps over the open topics."""
WALK_MS: Final = 5000
"""Between two walks: a topic that was opened and has acknowledged nothing yet finds its peers by the next one."""


class DividedRegions:
    """See the module's docstring."""

    def __init__(
        self,
        context: ExchangeContext,
        add: Callable[[str], None],
        remove: Callable[[str], None],
        on_moved: Callable[[str], None],
    ) -> None:
        """
        :param add: makes a peer, unless its region has too many.
        :param remove: lets go of one.
        :param on_moved: called with a region in which other brokers may own topics now.
        """
        self.open_link: Callable[[str], None] = lambda _: None
        """Set by the owner of links: a peer of a divided region is to be reached."""
        self.close_link: Callable[[str], None] = lambda _: None
        """A peer is gone."""
        self._context = context
        self._add = add
        self._remove = remove
        self._on_moved = on_moved
        self._links: dict[str, Callable[[PeerMessage], None]] = {}
        """Our links to divided regions."""
        self._walk_ms: int | None = None
        self._calling: Counter[str] = Counter()
        """How many links each peer has to us."""

    def wanted(self, name: str) -> None:
        """A peer of a divided region got its first topic."""
        self._add(name)
        peer = self._context.peers.get(name)
        if peer is None:
            return  # its topics wait for no link
        peer.is_awaited = not peer.up
        region = self._context.peers.get(peer.region)
        if region is not None and peer.behind_since_ms is None:
            peer.behind_since_ms = region.behind_since_ms
        self.open_link(name)

    def arrived(self, name: str) -> None:
        """A peer has opened a link to us and said who it is: it is one, even if the directory of its region, which
        comes from another broker of it, does not have it yet."""
        self._calling[name] += 1
        self._add(name)

    def hung_up(self, name: str) -> None:
        """That link is closed."""
        self._calling[name] -= 1
        if self._calling[name] <= 0:
            del self._calling[name]
            if (peer := self._context.peers.get(name)) is not None:
                self._let_go_of_the_gone(peer.region)

    def linked(self, region: Peer, send: Callable[[PeerMessage], None]) -> None:
        """Our link to a divided region is up."""
        self._links[region.name] = send
        region.is_awaited = True

    def unlinked(self, region: Peer) -> None:
        """It is down: the directory that came on it stays in use."""
        self._links.pop(region.name, None)
        region.is_awaited = False

    def divide(self, region: Peer, send: Callable[[PeerMessage], None]) -> None:
        """A region turned out to have several brokers; its own peer is down."""
        region.is_divided = True
        self._context.routes.divide(region.name)
        self._on_moved(region.name)
        self.linked(region, send)

    def unite(self, region: Peer) -> Callable[[PeerMessage], None] | None:
        """A divided region has one broker now, or is no peer any more. Returns our link to it."""
        self._context.routes.unite(region.name)
        region.is_divided = region.is_awaited = False
        for name in [name for name, peer in self._context.peers.items() if peer.region == region.name != name]:
            self._let_go(name)
        self._on_moved(region.name)
        return self._links.pop(region.name, None)

    def take(self, region: Peer, told: Owners) -> None:
        """A divided region reported who owns what."""
        if not region.is_divided:
            return
        routes = self._context.routes
        for moved in routes.take(region.name, told):
            self._moved(moved)
        self._let_go_of_the_gone(region.name)
        self._on_moved(region.name)
        if told.is_last:
            routes.begin_walk(self._context.host.open_topics())
            self._walk_ms = self._context.now_ms

    def _moved(self, moved: Moved) -> None:
        context = self._context
        before, after = context.peers.get(moved.before), context.peers.get(moved.after)
        if after is not None:
            after.give_up(moved.topic)
            if before is not None:
                before.lag.hand_over(moved.topic, after.lag)
            if after.next_digest_ms is not None:
                after.next_digest_ms = context.now_ms
        if before is not None:
            before.leave(moved.topic)
        context.digests.moved(moved.topic, (moved.before, moved.after))

    def _let_go_of_the_gone(self, region: str) -> None:
        """Remove the peers that are not among the region's brokers. One that has a link to us is alive, and stays:
        otherwise nothing that it says there would be heard.
        """
        routes = self._context.routes
        if not routes.is_told(region):
            return
        for name in [name for name, peer in self._context.peers.items() if peer.region == region != name]:
            if routes.broker(name) is None and name not in self._calling:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        self._remove(name)
        self.close_link(name)

    # -- all open topics

    def tick(self) -> None:
        """Route the open topics, some at a time."""
        routes, now_ms = self._context.routes, self._context.now_ms
        if self._walk_ms is None or self._walk_ms > now_ms:
            return
        if not routes.is_divided:
            self._walk_ms = None
            return
        if not routes.is_walking:
            routes.begin_walk(self._context.host.open_topics())
        routes.walk()
        self._walk_ms = now_ms + (WALK_PAUSE_MS if routes.is_walking else WALK_MS)

    def next_deadline(self) -> int | None:
        """When ``tick`` has something to do; None: it has nothing to do."""
        return self._walk_ms
