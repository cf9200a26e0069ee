# SPDX-License-Identifier: Apache-2.0
"""Keeps metadata equal with other regions while an event topic is chosen: ``metadata.sync`` with its tasks.

It publishes and applies if this broker is the active consumer of the topic, and compares this region with each of the
others: every minute, and all the time while the broker that should apply does not answer. Nothing here is on the way of
a local write. What fails is shown and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_peers import RestPeer
from meridian_broker.gateway.metadata_standby import HOLD_SECONDS, Standby
from meridian_broker.metadata.store import MetadataError, MetadataStore, MetadataUnavailable, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier, Poison
from meridian_broker.metadata.sync.catching_up import Comparison, compared, keep, scopes_apart, settle, take
from meridian_broker.metadata.sync.choice import SyncChoice
from meridian_broker.metadata.sync.events import Changes, Message
from meridian_broker.metadata.sync.events import decode as decode_message
from meridian_broker.metadata.sync.kept import Kept
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.publishing import Owed, Publisher, in_groups, pause_after
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import BEGINNING
from meridian_broker.metadata.sync.standing import NameTaken, PeerState, Standing
from meridian_broker.positions.clock import HybridClock

RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""Between attempts to send what was not sent, and to decide about parked states."""
MARK_SECONDS: Final = 5.0
COMPARE_SECONDS: Final = 60.0
"""Between two comparisons with the same region."""
COMPARE_AGAIN_SECONDS: Final = 5.0
"""After one that failed."""
STANDBY_SECONDS: Final = 0.5
"""While no broker of this region applies events, or whenever the other region asks for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What sessions of one broker share."""

    store: MetadataStore
    """The region's own, not a recording one."""
    clock: HybridClock
    now_ms: Callable[[], int]
    choice: SyncChoice
    recording: RecordingStore
    standing: Standing
    peer: Callable[[str, str, bool], RestPeer]
    """Another region, for a store with this identity, that takes its region's name over or not."""
    regions_of: Callable[[str], frozenset[str]]
    """Of a topic."""
    standby: Standby | None
    """None: this broker is the only one of its region."""


class Session:
    """Synchronizes metadata by one topic, until it is cancelled."""

    def __init__(self, shared: Shared, topic: EventTopic) -> None:
        self._shared = shared
        self._standing = shared.standing
        self.topic = topic
        topic.register_sync_listener(self._arrived)
        store, clock, choice = shared.store, shared.clock, shared.choice
        self.publisher = Publisher(store, clock, topic.notify)
        self.known = Known(store, lambda: asyncio.sleep(0))
        self.kept = Kept(store, self.known)
        self.applier = Applier(
            store,
            clock,
            shared.now_ms,
            choice.is_synced,
            self.regions,
            self.kept,
            lambda: choice.tombstone_retention_ms,
            lambda: choice.max_ahead_ms,
        )
        self.peers: dict[str, PeerState] = {}
        self.publish_problem: str | None = None
        self._owed: dict[str, Record] = {}
        """Entries of the outbox, as the watch tells."""
        self._owing = asyncio.Event()
        self._is_admitted = asyncio.Event()
        """A region has accepted this store under this region's name, or none can be asked."""
        self._stands_in = False
        """The broker of this region that should apply events does not answer, so this one stands in for it."""
        self._hurried: set[str] = set()
        """Regions that asked to be compared soon."""

    @property
    def owed(self) -> int:
        """Entries of the outbox."""
        return len(self._owed)

    def regions(self) -> frozenset[str]:
        """That share metadata by this topic, this one included."""
        return self._shared.regions_of(self.topic.topic) | {self._shared.clock.region}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.topic.run())
                tasks.create_task(self._again("see what other regions lack", self._watch_outbox))
                tasks.create_task(self._publish())
                tasks.create_task(self._again("follow values", self.known.follow_values))
                tasks.create_task(self._again("follow deletions", self.known.follow_deletions))
                tasks.create_task(self._again("follow what is parked", self.kept.follow_parked))
                tasks.create_task(self._again("follow conflicts", self.kept.follow_conflicts))
                tasks.create_task(self._again("look after stamps", self._look))
                tasks.create_task(self._again("compare with other regions", self._compare_all))
                if self._shared.standby is not None:
                    tasks.create_task(self._stand_by(self._shared.standby))
        finally:
            await self.topic.close()

    async def _again(self, what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            try:
                await work()
            except MetadataError as error:
                log.warning("cannot %s, trying again: %s", what, error)
            except Exception:
                log.exception("cannot %s, trying again", what)
            await asyncio.sleep(RETRY_SECONDS)

    # -- publishing

    async def _watch_outbox(self) -> None:
        async for changes in self._shared.store.watch(paths.OUTBOX + "/"):
            if not changes:
                self._owed = dict(await self._shared.store.scan(paths.OUTBOX + "/"))
            for change in changes:
                if change.record is None:
                    self._owed.pop(change.path, None)
                else:
                    self._owed[change.path] = change.record
            if self._owed:
                self._owing.set()

    async def _publish(self) -> None:
        await self._is_admitted.wait()
        clock = asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._owing.wait()
            if not self.topic.is_active or self._shared.choice.refusal is not None:
                await asyncio.sleep(RETRY_SECONDS / 10)
                continue
            self._owing.clear()
            begun = clock()
            try:
                owed = dict(self._owed)
                sent = await self._send(owed)
                await together([self._delete(sent, owed), asyncio.sleep(pause_after(clock() - begun))])
                self.publish_problem = None
            except MetadataError as error:
                self.publish_problem = str(error)
                self._owing.set()
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("cannot publish metadata events, trying again")
                self.publish_problem = "see the log"
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, owed: Mapping[str, Record]) -> list[Owed]:
        """Returns the entries that were sent and are still in the outbox: those of the last message. The others are
        deleted while the next one is sent."""
        sent: list[Owed] = []
        for some in in_groups(owed.items()):
            await together([self.publisher.send(some), self.publisher.delete(sent)])
            sent = some
        return sent

    async def _delete(self, sent: Sequence[Owed], owed: Mapping[str, Record]) -> None:
        """:param owed: all that was sent."""
        await self.publisher.delete(sent)
        for path, record in owed.items():
            if self._owed.get(path) is record:  # not one that was written meanwhile
                del self._owed[path]

    async def _look(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            turns += 1
            is_marking = turns % round(MARK_SECONDS / LOOK_SECONDS) == 0
            if not self.topic.is_active:
                continue
            await self.applier.release()
            if is_marking and self._is_admitted.is_set():
                if self._shared.choice.refusal is None and self.publish_problem is None:
                    await self.publisher.mark(self.applier.heard)
                await self.applier.forget()

    # -- applying

    async def _arrived(self, some: Sequence[tuple[str, bytes]]) -> None:
        """:raises Poison: one cannot be applied. :raises MetadataError: not now."""
        messages: list[Message] = []
        places: list[int] = []
        refusal: Poison | None = None
        for place, (region, message) in enumerate(some):
            try:
                decoded = _decoded(region, message)
            except Poison as poison:
                refusal = Poison(str(poison), behind=place)
                break
            if self._concerns_us(decoded):
                messages.append(decoded)
                places.append(place)
        try:
            await self.applier.apply_all(messages)
        except Poison as poison:
            poison.behind = places[poison.behind]
            raise
        if refusal is not None:
            raise refusal

    def _concerns_us(self, message: Message) -> bool:
        if isinstance(message, Changes):  # this region has its own, or learns what it lost by comparing
            return message.region != self._shared.clock.region
        # Else this region may lack what was deleted before: it has not heard that yet. Marks come again.
        return self._has_caught_up_with(message.region)

    # -- comparing

    def _has_caught_up_with(self, region: str) -> bool:
        """Since this session began, and since events were missed; before, the store may have been restored from a
        copy."""
        state = self.peers.get(region)
        return region == self._shared.clock.region or (
            state is not None and state.is_joined and state.caught_up == self.topic.missed
        )

    def compare_soon(self, region: str) -> None:
        """Another region asks to be compared."""
        if region in self.peers:
            self._hurried.add(region)

    async def _stand_by(self, standby: Standby) -> NoReturn:
        """See ``metadata_standby``."""
        clock = asyncio.get_running_loop().time
        while True:
            asked = clock()
            stands_in = not self.topic.is_active and not await standby.is_applied(self.topic.topic)
            if stands_in and not self._stands_in:
                log.info("no broker is known to apply events of %s: comparing with other regions", self.topic.topic)
            self._stands_in = stands_in
            await asyncio.sleep(max(HOLD_SECONDS / 5, asked + HOLD_SECONDS - clock()))

    async def _compare_all(self) -> None:
        """A region that answers slowly holds up no other one."""
        due: dict[str, float] = {}
        ended: dict[str, float] = {}
        running: dict[str, asyncio.Task[bool]] = {}
        missed = self.topic.missed
        await self._standing.leave(self._shared.choice.scopes)
        try:
            while True:
                now = asyncio.get_running_loop().time()
                others = self.regions() - {self._shared.clock.region}
                self.peers = {region: self.peers.get(region, PeerState()) for region in sorted(others)}
                if self.known.is_ready:
                    if self.topic.missed != missed:
                        missed = self.topic.missed
                        due = {region: min(at, now + LOOK_SECONDS) for region, at in due.items()}
                    for region in [one for one, task in running.items() if task.done()]:
                        was_done = running.pop(region).result()
                        due[region] = now + (COMPARE_SECONDS if was_done else COMPARE_AGAIN_SECONDS)
                        ended[region] = now
                    if others <= ended.keys():
                        self._standing.judge(self.peers)
                        self._is_admitted.set()
                    for region in sorted(others - running.keys()):
                        hurries = self._stands_in or region in self._hurried
                        if due.get(region, 0) <= now or (hurries and ended[region] + STANDBY_SECONDS <= now):
                            self._hurried.discard(region)
                            running[region] = asyncio.create_task(self._compared(region), name=f"compare with {region}")
                await asyncio.sleep(LOOK_SECONDS / 5)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _compared(self, region: str) -> bool:
        """Whether the two regions were compared."""
        state, missed = self.peers[region], self.topic.missed
        try:
            comparison, peer = await self.compare(region)
            if not await self._standing.belongs_to(region, comparison.digest.identity):
                raise MetadataUnavailable(
                    f"{region} has a different store than before: nothing is taken from it until "
                    f"`meridian regions replace {region}` was run there"
                )
            mark = comparison.digest.mark
            if mark > await self._standing.own_mark():
                await self.publisher.continue_after(mark)
            if BEGINNING < mark < comparison.digest.horizon:
                log.warning(
                    "this region was away for longer than %s keeps deletions: taking what is there; what was written "
                    "here meanwhile, and is unknown there, is listed by `meridian metadata conflicts`",
                    region,
                )
            differences = comparison.differences(await self._undecided(comparison, region))
            joined = await self._join(region, comparison, differences)
            state.is_joined, state.differences = comparison.digest.scopes <= joined, len(differences)
            state.taken += await take(comparison, peer, self.applier, together, joined)
        except MetadataError as error:
            state.problem = str(error)
            if isinstance(error, NameTaken):
                self._standing.name_taken(error, region)
            return False
        self._standing.name_taken(None, region)
        self._is_admitted.set()
        state.compared_ms, state.caught_up, state.problem = self._shared.now_ms(), missed, None
        if peer.clock_offset_ms is not None:
            state.clock_offset_ms = peer.clock_offset_ms
        if not state.is_joined:
            of = ", ".join(sorted({paths.scope_of(path) or "" for path in differences}))
            state.problem = (
                f"{len(differences)} values of {of} differ from those of {region} since before they were synchronized: "
                f"see `meridian metadata adopt --from {region} --dry-run`"
            )
        elif comparison.digest.shared != self._shared.choice.scopes:
            apart = scopes_apart(region, comparison.digest.shared, self._shared.choice.scopes)
            state.problem = f"{apart}: only what both share is kept equal; set metadataSyncScopes alike"
        if self._stands_in and self._owed:  # nobody publishes it now, either
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
        await keep(comparison, self._shared.recording, new)
        return await self._standing.join(region, new)

    async def _peer(self, region: str, *, replacing: bool = False) -> RestPeer:
        """:param replacing: this store is about to take over its region's name from an earlier one."""
        return self._shared.peer(region, await self._standing.identity(), replacing)

    async def compare(self, region: str) -> tuple[Comparison, RestPeer]:
        """:raises MetadataError: the region cannot be asked."""
        peer = await self._peer(region)
        return await compared(self.known, peer, self._shared.choice.scopes), peer

    async def undecided(self, region: str) -> tuple[Comparison, RestPeer, list[str]]:
        """As ``compare``, and what needs a decision. :raises MetadataError: the region cannot be asked."""
        comparison, peer = await self.compare(region)
        return comparison, peer, comparison.differences(await self._undecided(comparison, region))

    async def adopt(self, region: str, side: str) -> int:
        """Decide what differs from another region for ``side``, one of the two. Returns the number of paths.

        :raises MetadataError: the region cannot be asked, or somebody writes at the same time.
        """
        comparison, peer = await self.compare(region)
        undecided = await self._undecided(comparison, region)
        decided = await settle(comparison, peer, self._shared.recording, side, undecided)
        await keep(comparison, self._shared.recording, undecided)
        await self._standing.join(region, undecided)
        await self._compared(region)
        return decided

    async def replace(self) -> list[str]:
        """Take over this region's name: catch up with every other region, then tell them. Returns which were told.

        :raises MetadataError: one of them cannot be asked. Call it again.
        """
        others = sorted(self.regions() - {self._shared.clock.region})
        peers = [await self._peer(region, replacing=True) for region in others]
        shared: dict[str, frozenset[str]] = {}
        for peer in peers:
            comparison = await compared(self.known, peer, self._shared.choice.scopes)
            await self.publisher.continue_after(comparison.digest.mark)
            await take(comparison, peer, self.applier, together, comparison.digest.scopes)
            shared[peer.region] = comparison.digest.scopes
        for peer in peers:
            await peer.replace()
            await self._standing.join(peer.region, shared[peer.region])
            self._standing.name_taken(None, peer.region)
        self._standing.judge(self.peers)
        return others


def _decoded(region: str, message: bytes) -> Message:
    """:raises Poison: it is none of this region."""
    try:
        decoded = decode_message(message)
    except ValueError as error:
        raise Poison(f"it is not a metadata event: {error}") from error
    if decoded.region != region:
        raise Poison(f"it claims to be from {decoded.region}, but {region} published it")
    return decoded


async def together(works: Iterable[Awaitable[object]]) -> None:
    """Do these at the same time. :raises MetadataError: one of them failed; all have ended."""
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(failure, BaseException):
            raise failure
