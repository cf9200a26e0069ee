# SPDX-License-Identifier: Apache-2.0
"""A broker's part in keeping metadata equal between regions (PIP-136): ``metadata.sync`` with its tasks.

``metadata.sync.choice`` says whether and what, by settings that can be changed while brokers run; they are kept in the
region's metadata, so all its brokers follow. While a topic is chosen, a ``Session`` of it runs: it publishes and
applies if this broker is the active consumer of the topic, and compares this region with each of the others.

Nothing here is on the way of a local write. What fails is shown (``problems``) and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_peers import NameTaken, RestPeer
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, Check, MetadataError, MetadataStore, MetadataUnavailable, Put
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier, Poison
from meridian_broker.metadata.sync.catching_up import Comparison, compared, settle, take
from meridian_broker.metadata.sync.choice import SyncChoice
from meridian_broker.metadata.sync.converging import MAX_AHEAD_MS
from meridian_broker.metadata.sync.events import Changes
from meridian_broker.metadata.sync.events import decode as decode_message
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.publishing import Publisher
from meridian_broker.metadata.sync.reading import read_moment
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment
from meridian_broker.positions.clock import HybridClock

RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""Between attempts to send what was not sent, and to decide about parked states."""
MARK_SECONDS: Final = 5.0
COMPARE_SECONDS: Final = 60.0
"""Between two comparisons with the same region."""
COMPARE_AGAIN_SECONDS: Final = 5.0
"""After one that failed."""

log = logging.getLogger(__name__)


@dataclass
class PeerState:
    """What is known of another region."""

    is_joined: bool = False
    """Differences from before the metadata were synchronized are decided."""
    differences: int = 0
    """Paths that differ and wait for that decision."""
    taken: int = 0
    """Paths taken by comparisons."""
    compared_ms: int | None = None
    clock_offset_ms: int = 0
    problem: str | None = "not compared yet"


class Session:
    """Synchronizes metadata by one topic, until it is cancelled."""

    def __init__(self, sync: MetadataSync, topic: EventTopic) -> None:
        self._sync = sync
        self.topic = topic
        topic.register_sync_listener(self._arrived)
        store, clock, choice = sync.store, sync.clock, sync.choice
        self.publisher = Publisher(store, clock, topic.notify)
        self.applier = Applier(store, clock, sync.now_ms, choice.is_synced, self.regions)
        self.known = Known(store, lambda: asyncio.sleep(0))
        self.peers: dict[str, PeerState] = {}
        self.publish_problem: str | None = None
        self._owing = asyncio.Event()
        self._compared_all = asyncio.Event()

    def regions(self) -> frozenset[str]:
        """That share metadata by this topic, this one included."""
        return self._sync.regions_of(self.topic.topic) | {self._sync.region}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.topic.run())
                tasks.create_task(self._again("see what other regions lack", self._watch_outbox))
                tasks.create_task(self._publish())
                tasks.create_task(self._again("follow values", self.known.follow_values))
                tasks.create_task(self._again("follow deletions", self.known.follow_deletions))
                tasks.create_task(self._again("look after stamps", self._look))
                tasks.create_task(self._again("compare with other regions", self._compare_all))
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
        async for changes in self._sync.store.watch(paths.OUTBOX + "/"):
            if not changes or any(change.record is not None for change in changes):
                self._owing.set()

    async def _publish(self) -> None:
        await self._compared_all.wait()  # another store may have this region's name
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._owing.wait()
            if not self.topic.is_active or self._sync.choice.refusal is not None:
                await asyncio.sleep(RETRY_SECONDS / 10)
                continue
            self._owing.clear()
            try:
                await self.publisher.drain()
                self.publish_problem = None
            except MetadataError as error:
                self.publish_problem = str(error)
                self._owing.set()
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("cannot publish metadata events, trying again")
                self.publish_problem = "see the log"
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            turns += 1
            if not self.topic.is_active:
                continue
            await self.applier.release()
            if turns % round(MARK_SECONDS / LOOK_SECONDS) == 0 and self._compared_all.is_set():
                if self._sync.choice.refusal is None and self.publish_problem is None:
                    await self.publisher.mark(self.applier.heard)
                await self.applier.forget()

    # -- applying

    async def _arrived(self, message: bytes) -> None:
        """:raises Poison: it cannot be applied. :raises MetadataError: not now."""
        try:
            decoded = decode_message(message)
        except ValueError as error:
            raise Poison(f"it is no metadata event: {error}") from error
        if isinstance(decoded, Changes) and decoded.region == self._sync.region:
            return  # this region has them, or learns what it lost by comparing
        await self.applier.apply(decoded)

    # -- comparing

    async def _compare_all(self) -> None:
        due: dict[str, float] = {}
        while True:
            now = asyncio.get_running_loop().time()
            others = self.regions() - {self._sync.region}
            self.peers = {region: self.peers.get(region, PeerState()) for region in sorted(others)}
            if self.known.is_ready:
                for region in [one for one in others if due.get(one, 0) <= now]:
                    done = await self._compared(region)
                    due[region] = now + (COMPARE_SECONDS if done else COMPARE_AGAIN_SECONDS)
                self._sync.judge(self.peers)
                self._compared_all.set()
            await asyncio.sleep(LOOK_SECONDS / 5)

    async def _compared(self, region: str) -> bool:
        """Whether the two regions were compared."""
        state = self.peers[region]
        try:
            comparison, peer = await self.compare(region)
            if not await self._sync.belongs_to(region, comparison.digest.identity):
                raise MetadataUnavailable(
                    f"{region} has another store than before: nothing is taken from it until "
                    f"`meridian regions replace {region}` was run there"
                )
            mark = comparison.digest.mark
            if mark > await self._sync.own_mark():
                await self.publisher.continue_after(mark)
            differences = comparison.differences()
            state.is_joined = await self._sync.is_joined(region) or (not differences and await self._sync.join(region))
            state.differences = 0 if state.is_joined else len(differences)
            if state.is_joined:
                state.taken += await take(comparison, peer, self.applier)
        except MetadataError as error:
            state.problem = str(error)
            self._sync.name_taken(error if isinstance(error, NameTaken) else None, region)
            return False
        self._sync.name_taken(None, region)
        state.compared_ms, state.clock_offset_ms = self._sync.now_ms(), peer.clock_offset_ms
        state.problem = None
        if not state.is_joined:
            state.problem = (
                f"{len(differences)} values differ from those of {region} since before metadata were synchronized: "
                f"see `meridian metadata adopt --from {region} --dry-run`"
            )
        return state.is_joined

    async def compare(self, region: str) -> tuple[Comparison, RestPeer]:
        """:raises MetadataError: the region cannot be asked."""
        peer = await self._sync.peer(region)
        return await compared(self.known, peer), peer

    async def adopt(self, region: str, side: str) -> int:
        """Decide what differs from another region for ``side``, one of the two. Returns the number of paths.

        :raises MetadataError: the region cannot be asked, or somebody writes at the same time.
        """
        comparison, peer = await self.compare(region)
        decided = await settle(comparison, peer, self._sync.recording, side)
        await self._sync.join(region)
        await self._compared(region)
        return decided

    async def replace(self) -> list[str]:
        """Take over this region's name: catch up with every other region, then tell them. Returns which were told.

        :raises MetadataError: one of them cannot be asked. Call it again.
        """
        others = sorted(self.regions() - {self._sync.region})
        peers = [await self._sync.peer(region, replacing=True) for region in others]
        for peer in peers:
            comparison = await compared(self.known, peer)
            await self.publisher.continue_after(comparison.digest.mark)
            await take(comparison, peer, self.applier)
        for peer in peers:
            await peer.replace()
            await self._sync.join(peer.region)
            self._sync.name_taken(None, peer.region)
        self._sync.judge(self.peers)
        return others


class MetadataSync:
    """See the module's text. One per broker; ``run`` is a task of it."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: HybridClock,
        now_ms: Callable[[], int],
        choice: SyncChoice,
        recording: RecordingStore,
        draw: Callable[[], str],
    ) -> None:
        """
        :param store: the region's own, not a recording one.
        :param draw: a new identity for a store.
        """
        self.store = store
        self.clock = clock
        self.region = clock.region
        self.now_ms = now_ms
        self.choice = choice
        self.recording = recording
        self._draw = draw
        self._open: Callable[[str], EventTopic]
        self._peer: Callable[[str, str, bool], RestPeer]
        self.regions_of: Callable[[str], frozenset[str]]
        self.session: Session | None = None
        self._taken_at: dict[str, str] = {}
        self._identity = ""

    def bind(
        self,
        open_topic: Callable[[str], EventTopic],
        peer: Callable[[str, str, bool], RestPeer],
        regions_of: Callable[[str], frozenset[str]],
    ) -> None:
        """What is made later than the store: topics, the way to other regions, and the catalog."""
        self._open, self._peer, self.regions_of = open_topic, peer, regions_of

    async def load(self) -> None:
        """Read what was set at run time. Before the first write. :raises MetadataError: the store does not answer."""
        found = await self.store.scan(paths.SETTINGS + "/")
        changed = {path.rpartition("/")[2]: str(decode(path, record.value)[0]) for path, record in found}
        self.choice.changed = {key: value for key, value in changed.items() if key in self.choice.given}

    async def run(self) -> None:
        """Follow the settings until cancelled."""
        running: asyncio.Task[None] | None = None
        chosen = ("", frozenset[str]())
        try:
            while True:
                try:
                    async for _ in self.store.watch(paths.SETTINGS + "/"):
                        await self.load()
                        if (self.choice.topic, self.choice.scopes) != chosen:
                            chosen = (self.choice.topic, self.choice.scopes)
                            await self._stop(running)
                            running = self._begin(chosen[0])
                except MetadataError as error:
                    log.warning("cannot follow the settings of metadata synchronization, trying again: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._stop(running)

    def _begin(self, topic: str) -> asyncio.Task[None] | None:
        if not topic:
            return None
        log.info("metadata are synchronized by %s", topic)
        self.session = Session(self, self._open(topic))
        return asyncio.create_task(self.session.run(), name="synchronize metadata")

    async def _stop(self, running: asyncio.Task[None] | None) -> None:
        self.session = None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    async def change(self, key: str, value: str | None) -> None:
        """Set a setting for all brokers of the region; None: as their own settings say.

        :raises Invalid: there is no such setting, or the value cannot be used.
        """
        if key not in self.choice.given:
            raise Invalid(f"{key} cannot be changed while brokers run: only {', '.join(self.choice.given)}")
        self.choice.check({key: self.choice.given[key] if value is None else value})
        where = f"{paths.SETTINGS}/{key}"
        if value is None:
            await self.store.delete(where)
        else:
            await self.store.put(where, encode(value))
        await self.load()

    # -- what a session needs

    async def identity(self) -> str:
        """Of this store: drawn once, and kept in it."""
        while not self._identity:
            record = await self.store.get(paths.IDENTITY)
            if record is not None:
                self._identity = str(decode(paths.IDENTITY, record.value)[0])
            else:
                drawn = Put(paths.IDENTITY, encode(self._draw()))
                await self.store.transact([Check(paths.IDENTITY, ABSENT)], [drawn])
        return self._identity

    async def peer(self, region: str, *, replacing: bool = False) -> RestPeer:
        """:param replacing: this store is about to take over its region's name from an earlier one."""
        return self._peer(region, await self.identity(), replacing)

    async def is_joined(self, region: str) -> bool:
        return await self.store.get(paths.joined(region)) is not None

    async def join(self, region: str) -> bool:
        await self.store.put(paths.joined(region), encode(self.now_ms()))
        return True

    async def own_mark(self) -> Moment:
        record = await self.store.get(paths.MARK)
        return BEGINNING if record is None else read_moment(paths.MARK, record)

    async def belongs_to(self, region: str, identity: str) -> bool:
        """Whether a store with this identity is the one that shares metadata under that name. The first one is."""
        where = paths.owner(region)
        for _ in range(2):
            record = await self.store.get(where)
            if record is not None:
                return str(decode(where, record.value)[0]) == identity
            await self.store.transact([Check(where, ABSENT)], [Put(where, encode(identity))])
        return False

    async def give(self, region: str, identity: str) -> None:
        """The name belongs to this store from now on."""
        await self.store.put(paths.owner(region), encode(identity))

    # -- refusing to write

    def name_taken(self, error: NameTaken | None, region: str) -> None:
        """What another region says about this region's name."""
        self._taken_at.pop(region, None)
        if error is not None:
            self._taken_at[region] = str(error)

    def judge(self, peers: Mapping[str, PeerState]) -> None:
        """Decide whether this region may write."""
        self.choice.refusal = next(iter(self._taken_at.values()), None) or off_clock(self.region, peers.values())


def off_clock(region: str, peers: Collection[PeerState]) -> str | None:
    """Why a region whose clock is off against most others must not write (R43); None: it is not."""
    offsets = [one.clock_offset_ms for one in peers if one.compared_ms is not None]
    off = [one for one in offsets if abs(one) > MAX_AHEAD_MS]
    if len(off) * 2 <= len(offsets) or not off:
        return None
    seconds = off[0] / 1000
    return (
        f"the clock of {region} is {abs(seconds):.0f} s {'behind' if seconds > 0 else 'ahead of'} those of most other "
        "regions, so its writes would lose or win wrongly: set it right. Shared metadata cannot be changed until then"
    )
