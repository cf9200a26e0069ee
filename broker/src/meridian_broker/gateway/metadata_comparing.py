# SPDX-License-Identifier: Apache-2.0
"""Compares this region's metadata with each other region's, and takes what this region lacks.

Every minute, and all the time while the broker that should apply events does not answer (``metadata_standby``), or
while another region asks for it. Failures are shown and retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_peers import RestPeer
from meridian_broker.gateway.metadata_standby import Standby
from meridian_broker.metadata.store import MetadataError, MetadataStore, MetadataUnavailable, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.catching_up import Comparison, compared, decide_for, keep, scopes_apart, take
from meridian_broker.metadata.sync.choice import SyncChoice
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.publishing import Publisher
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import BEGINNING
from meridian_broker.metadata.sync.standing import NameTaken, PeerState, Standing
from meridian_broker.positions.clock import HybridClock

LOOK_SECONDS: Final = 0.2
"""Between two checks of which region is due."""
COMPARE_SECONDS: Final = 60.0
"""Between two comparisons with the same region."""
AGAIN_SECONDS: Final = 0.5
"""After a failed comparison: the other region may just be starting. Each further failure doubles the wait, ..."""
AGAIN_SECONDS_MAX: Final = 5.0
"""... up to this."""
MISSED_SECONDS: Final = 1.0
"""After events were skipped."""
STANDBY_SECONDS: Final = 0.5
"""While no broker of this region applies events, or whenever the other region asks for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What sessions of one broker share."""

    store: MetadataStore
    """The region's own, not a recording one."""
    clock: HybridClock
    now_ms: Callable[[], int]
    choice: SyncChoice
    recording: RecordingStore
    standing: Standing
    peer: Callable[[str, str, bool], RestPeer]
    """(region, this store's identity, whether it is taking over this region's name) -> the other region."""
    regions_of: Callable[[str], frozenset[str]]
    """The regions of a topic."""
    last_seen: Callable[[str], tuple[Record | None] | None]
    """The record at a path, as the catalog remembers it; None: it does not."""
    standby: Standby | None
    """None: this broker is the only one of its region."""

    def synced_regions(self, topic: str) -> frozenset[str]:
        """The regions that share metadata by a topic, this one included."""
        return self.regions_of(topic) | {self.clock.region}


class Comparisons:
    """See the module's text. One per session; ``run`` is a task of it."""

    def __init__(
        self,
        parts: SessionParts,
        topic: EventTopic,
        known: Known,
        applier: Applier,
        publisher: Publisher,
        owed: Callable[[], int],
    ) -> None:
        """:param owed: how many entries the outbox has."""
        self._parts = parts
        self._standing = parts.standing
        self._topic = topic
        self._known = known
        self._applier = applier
        self._publisher = publisher
        self.peers: dict[str, PeerState] = {}
        self.admitted = asyncio.Event()
        """A region has accepted this store under this region's name, or none can be reached."""
        self.stands_in = False
        """The broker of this region that should apply events does not answer, so this one stands in for it."""
        self._owed = owed
        self._pause: dict[str, float] = {}
        """Next wait in seconds, for regions whose last comparison failed."""
        self._hurried: set[str] = set()
        """Regions that asked to be compared soon."""

    def has_caught_up_with(self, region: str) -> bool:
        """Whether it has since this session began and since events were missed: before, the store may have been
        restored from a copy."""
        state = self.peers.get(region)
        return region == self._parts.clock.region or (
            state is not None and state.is_joined and state.caught_up == self._topic.missed
        )

    def soon(self, region: str) -> None:
        """Another region asks to be compared."""
        if region in self.peers:
            self._hurried.add(region)

    def asked_by(self, region: str) -> None:
        """Another region compares itself with this one. If this one has failed to, it need not wait longer: that region
        is up, and has read its metadata."""
        if region in self._pause:
            self._hurried.add(region)

    async def run(self) -> None:
        """Compare until cancelled. A slow region does not delay the others."""
        due: dict[str, float] = {}
        ended: dict[str, float] = {}
        pause = self._pause
        pause.clear()
        running: dict[str, asyncio.Task[bool]] = {}
        missed = self._topic.missed
        await self._standing.leave(self._parts.choice.scopes)
        try:
            while True:
                now = asyncio.get_running_loop().time()
                others = self._parts.synced_regions(self._topic.topic) - {self._parts.clock.region}
                self.peers = {region: self.peers.get(region, PeerState()) for region in sorted(others)}
                if self._known.is_ready:
                    if self._topic.missed != missed:
                        missed = self._topic.missed
                        due = {region: min(at, now + MISSED_SECONDS) for region, at in due.items()}
                    for region in [one for one, task in running.items() if task.done()]:
                        if running.pop(region).result():
                            pause.pop(region, None)
                            due[region] = now + COMPARE_SECONDS
                        else:
                            due[region] = now + pause.setdefault(region, AGAIN_SECONDS)
                            pause[region] = min(2 * pause[region], AGAIN_SECONDS_MAX)
                        ended[region] = now
                    if others <= ended.keys():
                        self._standing.judge(self.peers)
                        self.admitted.set()
                    for region in sorted(others - running.keys()):
                        hurries = self.stands_in or region in self._hurried
                        if due.get(region, 0) <= now or (hurries and ended[region] + STANDBY_SECONDS <= now):
                            self._hurried.discard(region)
                            running[region] = asyncio.create_task(self._compared(region), name=f"compare with {region}")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _compared(self, region: str) -> bool:
        """Whether the two regions were compared."""
        state, missed = self.peers[region], self._topic.missed
        try:
            comparison, peer = await self.compare(region)
            if not await self._standing.belongs_to(region, comparison.digest.identity):
                raise MetadataUnavailable(
                    f"{region} has a different store than before: nothing is taken from it until "
                    f"`meridian regions replace {region}` has been run there"
                )
            mark = comparison.digest.mark
            if mark > await self._standing.own_mark():
                await self._publisher.continue_after(mark)
            if BEGINNING < mark < comparison.digest.horizon:
                log.warning(
                    "this region was away for longer than %s keeps deletions: taking its state; values written here "
                    "meanwhile that it does not know are listed by `meridian metadata conflicts`",
                    region,
                )
            before = await self._standing.joined(region)
            differences = comparison.differences(await self._undecided(comparison, region))
            joined = await self._join(region, comparison, differences)
            state.is_joined, state.differences = comparison.digest.scopes <= joined, len(differences)
            state.taken += await take(comparison, peer, self._applier, together, joined)
        except MetadataError as error:
            state.problem = str(error)
            if isinstance(error, NameTaken):
                self._standing.name_taken(error, region)
            return False
        self._standing.name_taken(None, region)
        self.admitted.set()
        state.compared_ms, state.caught_up, state.problem = self._parts.now_ms(), missed, None
        if peer.clock_offset_ms is not None:
            state.clock_offset_ms = peer.clock_offset_ms
        if not state.is_joined:
            of = ", ".join(sorted({paths.scope_of(path) or "" for path in differences}))
            state.problem = (
                f"{len(differences)} values of {of} have differed from {region}'s since before synchronization: "
                f"see `meridian metadata adopt --from {region} --dry-run`"
            )
        elif comparison.digest.synced != self._parts.choice.scopes:
            apart = scopes_apart(region, comparison.digest.synced, self._parts.choice.scopes)
            state.problem = (
                f"{apart}: only scopes that both share are kept equal; set metadataSyncScopes to the same value in "
                "both regions"
            )
        # Nobody publishes the outbox, or the other region does not know yet that more is shared.
        if (self.stands_in and self._owed()) or joined != before:
            with suppress(MetadataError):
                await peer.hurry()
        return state.is_joined

    async def _undecided(self, comparison: Comparison, region: str) -> frozenset[str]:
        """The scopes shared with a region in which nobody has decided about differences."""
        return comparison.digest.scopes - await self._standing.joined(region)

    async def _join(self, region: str, comparison: Comparison, differences: Sequence[str]) -> frozenset[str]:
        """Share the scopes that have none of these differences. Returns all that are shared."""
        differing = {paths.scope_of(path) for path in differences}
        new = await self._undecided(comparison, region) - differing
        if not new:
            return await self._standing.joined(region)
        await keep(comparison, self._parts.recording, new)
        return await self._standing.join(region, new)

    async def _peer(self, region: str, *, replacing: bool = False) -> RestPeer:
        """:param replacing: this store is about to take over its region's name from an earlier store."""
        return self._parts.peer(region, await self._standing.identity(), replacing)

    async def compare(self, region: str) -> tuple[Comparison, RestPeer]:
        """:raises MetadataError: the region cannot be reached."""
        peer = await self._peer(region)
        return await compared(self._known, peer, self._parts.choice.scopes), peer

    async def undecided(self, region: str) -> tuple[Comparison, RestPeer, list[str]]:
        """As ``compare``, and the paths that need a decision. :raises MetadataError: the region cannot be reached."""
        comparison, peer = await self.compare(region)
        return comparison, peer, comparison.differences(await self._undecided(comparison, region))

    async def adopt(self, region: str, side: str) -> int:
        """Decide the differences from another region in favour of ``side``, one of the two. Returns how many paths.

        :raises MetadataError: the region cannot be reached, or somebody writes at the same time.
        """
        comparison, peer = await self.compare(region)
        undecided = await self._undecided(comparison, region)
        decided = await decide_for(comparison, peer, self._parts.recording, side, undecided)
        await keep(comparison, self._parts.recording, undecided)
        await self._standing.join(region, undecided)
        await self._compared(region)
        with suppress(MetadataError):  # else it learns of the decision within a minute
            await peer.hurry()
        return decided

    async def replace(self) -> list[str]:
        """Take over this region's name: catch up with every other region, then tell them. Returns those told.

        :raises MetadataError: one of them cannot be reached. Call it again.
        """
        others = sorted(self._parts.synced_regions(self._topic.topic) - {self._parts.clock.region})
        peers = [await self._peer(region, replacing=True) for region in others]
        synced: dict[str, frozenset[str]] = {}
        for peer in peers:
            comparison = await compared(self._known, peer, self._parts.choice.scopes)
            await self._publisher.continue_after(comparison.digest.mark)
            await take(comparison, peer, self._applier, together, comparison.digest.scopes)
            synced[peer.region] = comparison.digest.scopes
        for peer in peers:
            await peer.replace()
            await self._standing.join(peer.region, synced[peer.region])
            self._standing.name_taken(None, peer.region)
        self._standing.judge(self.peers)
        return others


async def together(works: Iterable[Awaitable[object]]) -> None:
    """Run these concurrently. :raises MetadataError: one of them failed; all have ended."""
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(failure, BaseException):
            raise failure
