# SPDX-License-Identifier: Apache-2.0
"""Which peer a topic has in each other region: the region, or that one of its brokers which serves the topic.

A region of one broker is one peer, named like the region. A region of several is *divided*: each of its brokers is a
peer, ``REGION/BROKER``, and each topic has one of them. Such a region reports who owns which bundles when it is asked,
and what changes from then on, so its *directory* here is as new as the link on which it comes. A topic whose bundle
nobody owns, as far as known, is routed to the name of the region, where no peer can be reached.

Nothing depends on a directory being right. A broker answers for topics that it owns, by its own clock, and refuses the
others (``NOT_OWNER``); what it has stored is protected by fences (R10).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from meridian_broker.bounds.regions import DIRECTORY_BUNDLES, DIRECTORY_NAMESPACES
from meridian_broker.ownership.bundles import place_of
from meridian_broker.replication.peers import peer_name, region_of
from meridian_broker.replication.progress.messages import NamespaceOwners, Owners, RemoteBroker
from meridian_broker.wire.pulsar import topic_name

log = logging.getLogger(__name__)

WALKED: Final = 1000
"""Topics routed in one step of a walk: some milliseconds."""


class Moved(NamedTuple):
    """A topic has another peer in a region than before."""

    topic: str
    before: str
    after: str


@dataclass(slots=True)
class _Directory:
    """Who owns what in one region, as it reported."""

    brokers: dict[str, RemoteBroker] = field(default_factory=dict)
    namespaces: dict[str, NamespaceOwners] = field(default_factory=dict)
    bundles: int = 0
    left_out: bool = False
    """The region reported more than is kept."""

    def owner(self, namespace: str, place: int) -> str:
        """The broker that owns a place of a namespace; empty: none is known to."""
        found = self.namespaces.get(namespace)
        if found is None:
            return ""
        index = min(bisect_right(found.borders, place), len(found.borders) - 1) - 1
        owner = found.owners[index]
        return owner if owner in self.brokers else ""

    def apply(self, told: Owners) -> None:
        self.brokers = {one.broker: one for one in told.brokers}
        for one in told.namespaces:
            before = self.namespaces.pop(one.namespace, None)
            self.bundles -= 0 if before is None else len(before.owners)
            if not one.borders:
                continue
            if len(self.namespaces) < DIRECTORY_NAMESPACES and self.bundles + len(one.owners) <= DIRECTORY_BUNDLES:
                self.namespaces[one.namespace] = one
                self.bundles += len(one.owners)
            elif not self.left_out:
                self.left_out = True
                log.error(
                    "a region has more namespaces or bundles than this broker keeps track of (%d and %d): topics of "
                    "the rest, such as %s, are not exchanged with it",
                    *(DIRECTORY_NAMESPACES, DIRECTORY_BUNDLES, one.namespace),
                )


@dataclass(slots=True)
class _Route:
    namespace: str
    place: int
    regions: frozenset[str]
    peers: frozenset[str]


class Routes:
    """See the module's docstring."""

    def __init__(self, regions_of: Callable[[str], frozenset[str]], wanted: Callable[[str], None]) -> None:
        """
        :param regions_of: see ``ProgressHost``.
        :param wanted: called with the name of each peer when it first gets a topic.
        """
        self._regions_of = regions_of
        self._wanted = wanted
        self._directories: dict[str, _Directory] = {}
        self._coming: dict[str, _Directory] = {}
        """Directories of which a part has arrived."""
        self._known: dict[str, _Route] = {}
        self._used: set[str] = set()
        self._walk: Iterator[None] | None = None
        self._walked: set[str] = set()
        """Divided regions to which every open topic was routed since the directory came."""
        self._told: set[str] = set()
        """Divided regions that have reported everything."""

    @property
    def is_divided(self) -> bool:
        """Whether any region is."""
        return bool(self._directories)

    def is_told(self, region: str) -> bool:
        """Whether a divided region has reported who owns what."""
        return region in self._told

    def is_complete(self, region: str) -> bool:
        """Whether all open topics have found their peers in a divided region."""
        return region in self._walked

    # -- questions

    def peers_of(self, topic: str) -> frozenset[str]:
        """The topic's peers, and this region; empty for a topic not known here.

        :raises ValueError: it is not a valid name.
        """
        regions = self._regions_of(topic)
        if not self._directories:
            return regions
        known = self._known.get(topic)
        if known is None:
            name = topic_name.parse(topic)
            known = self._known[topic] = _Route(name.namespace_name, place_of(name), frozenset(), frozenset())
        if known.regions != regions:
            known.regions, known.peers = regions, self._peers(known, regions)
        return known.peers

    def peer_in(self, region: str, topic: str) -> str:
        """The name of the topic's peer in one of its regions."""
        if region not in self._directories:
            return region
        return next((peer for peer in self.peers_of(topic) if region_of(peer) == region), region)

    def voter_in(self, region: str, topic: str) -> str:
        """The same for any region that votes on who dispatches the topic: a witness is not one of its regions.

        :raises ValueError: it is not a valid name.
        """
        directory = self._directories.get(region)
        if directory is None or region in self._regions_of(topic):
            return self.peer_in(region, topic)
        name = topic_name.parse(topic)
        return self._use(region, directory.owner(name.namespace_name, place_of(name)))

    def broker(self, peer: str) -> RemoteBroker | None:
        """How to reach a peer of a divided region; None: it is gone, or not known."""
        region, _, broker = peer.partition("/")
        directory = self._directories.get(region)
        return None if directory is None else directory.brokers.get(broker)

    # -- news

    def divide(self, region: str) -> None:
        """The region has several brokers."""
        self._directories.setdefault(region, _Directory())
        self._known.clear()

    def unite(self, region: str) -> None:
        """The region has one broker, or is no peer any more."""
        if self._directories.pop(region, None) is not None:
            self._known.clear()
        self._coming.pop(region, None)
        self._walked.discard(region)
        self._told.discard(region)
        self._used = {peer for peer in self._used if region_of(peer) != region}

    def take(self, region: str, told: Owners) -> list[Moved]:
        """The region reported who owns what. Returns the topics that have another peer now."""
        if region not in self._directories:
            return []
        if told.is_first:
            self._coming[region] = _Directory()
        coming = self._coming.get(region)
        if coming is None:
            directory = self._directories[region]
            before = directory.brokers.keys()
            directory.apply(told)
            if directory.brokers.keys() != before:
                return self._follow(region, lambda _: True)
            changed = {one.namespace for one in told.namespaces}
            return self._follow(region, lambda route: route.namespace in changed)
        coming.apply(told)
        if not told.is_last:
            return []
        self._directories[region] = self._coming.pop(region)
        self._told.add(region)
        return self._follow(region, lambda _: True)

    def _follow(self, region: str, is_changed: Callable[[_Route], bool]) -> list[Moved]:
        self._used -= {peer for peer in self._used if region_of(peer) == region and self.broker(peer) is None}
        moved = []
        for topic, route in self._known.items():
            if region not in route.regions or not is_changed(route):
                continue
            before = next(peer for peer in route.peers if region_of(peer) == region)
            route.peers = self._peers(route, route.regions)
            after = next(peer for peer in route.peers if region_of(peer) == region)
            if before != after:
                moved.append(Moved(topic, before, after))
        return moved

    def _peers(self, route: _Route, regions: Iterable[str]) -> frozenset[str]:
        peers = set()
        for region in regions:
            directory = self._directories.get(region)
            broker = "" if directory is None else directory.owner(route.namespace, route.place)
            peers.add(self._use(region, broker))
        return frozenset(peers)

    def _use(self, region: str, broker: str) -> str:
        """The name of a peer that is to be reached."""
        peer = peer_name(region, broker)
        if broker and peer not in self._used:
            self._used.add(peer)
            self._wanted(peer)
        return peer

    # -- all open topics

    def begin_walk(self, topics: Collection[str]) -> None:
        """Route all open topics, from their beginning: links are opened to the peers that have some."""
        self._walk = self._steps(list(topics), set(self._told))

    @property
    def is_walking(self) -> bool:
        return self._walk is not None

    def walk(self) -> None:
        """One more step."""
        if self._walk is not None and next(self._walk, self) is self:
            self._walk = None

    def _steps(self, topics: list[str], regions: set[str]) -> Iterator[None]:
        for number, topic in enumerate(topics):
            if number and number % WALKED == 0:
                yield
            self.peers_of(topic)
        closed = self._known.keys() - set(topics)
        for topic in closed:
            del self._known[topic]
        self._walked |= regions & self._told
