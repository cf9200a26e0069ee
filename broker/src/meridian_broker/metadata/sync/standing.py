# SPDX-License-Identifier: Apache-2.0
"""Which store shares metadata under which region's name, and whether this one may write.

Each store draws an identity once. The first store that compares itself under a region's name owns the name in the other
regions; another one is refused there, and writes nothing that is shared, until it has taken the name over. A single
region may be wrong about that: the majority of those that have answered decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, Check, MetadataStore, MetadataUnavailable, Put, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.choice import SyncChoice
from meridian_broker.metadata.sync.reading import read, read_moment
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment


class NameTaken(MetadataUnavailable):
    """Another store has shared metadata under this region's name."""


@dataclass
class PeerState:
    """What is known of another region."""

    is_joined: bool = False
    """Differences from before the metadata was synchronized are decided, in all scopes."""
    differences: int = 0
    """Paths that differ and wait for that decision."""
    taken: int = 0
    """Paths taken by comparisons."""
    compared_ms: int | None = None
    caught_up: int | None = None
    """The number of occasions to miss events (``EventTopic.missed``) before the last comparison."""
    clock_offset_ms: int = 0
    problem: str | None = "not compared yet"


class Standing:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        choice: SyncChoice,
        region: str,
        now_ms: Callable[[], int],
        draw: Callable[[], str],
    ) -> None:
        """
        :param store: the region's own, not a recording one.
        :param draw: a new identity.
        """
        self._store = store
        self._choice = choice
        self._region = region
        self._now_ms = now_ms
        self._draw = draw
        self._identity = ""
        self._taken_at: dict[str, str] = {}

    async def identity(self) -> str:
        """This store's identity: drawn once, and kept in it."""
        while not self._identity:
            record = await self._store.get(paths.IDENTITY)
            if record is not None:
                self._identity = str(decode(paths.IDENTITY, record.value)[0])
            else:
                drawn = Put(paths.IDENTITY, encode(self._draw()))
                await self._store.transact([Check(paths.IDENTITY, ABSENT)], [drawn])
        return self._identity

    async def joined(self, region: str) -> frozenset[str]:
        """The scopes in which differences from that region are decided."""
        record = await self._store.get(paths.joined(region))
        return frozenset() if record is None else _joined(paths.joined(region), record)

    async def join(self, region: str, scopes: Collection[str]) -> frozenset[str]:
        """Mark these scopes as decided, too. Returns all decided scopes."""
        where = paths.joined(region)
        while True:
            seen = await read(self._store, [where])
            record = seen.records[where]
            joined = frozenset(scopes) | (frozenset() if record is None else _joined(where, record))
            put = Put(where, encode({"scopes": sorted(joined), "millis": self._now_ms()}))
            if await self._store.transact([*seen.checks().values()], [put]):
                return joined

    async def leave(self, scopes: Collection[str]) -> None:
        """Only these scopes are shared from now on. If others are shared again, their differences need a new decision:
        writes in the meantime are not stamped against other regions' writes."""
        for where, record in await self._store.scan(paths.JOINED + "/"):
            joined = _joined(where, record)
            if kept := joined - frozenset(scopes):
                left = {"scopes": sorted(joined - kept), "millis": self._now_ms()}
                await self._store.transact([Check(where, record.version)], [Put(where, encode(left))])

    async def own_mark(self) -> Moment:
        record = await self._store.get(paths.MARK)
        return BEGINNING if record is None else read_moment(paths.MARK, record)

    async def belongs_to(self, region: str, identity: str) -> bool:
        """Whether a store with this identity is the one that shares metadata under that name. The first one is."""
        where = paths.owner(region)
        for _ in range(2):
            record = await self._store.get(where)
            if record is not None:
                return str(decode(where, record.value)[0]) == identity
            await self._store.transact([Check(where, ABSENT)], [Put(where, encode(identity))])
        return False

    async def give(self, region: str, identity: str) -> None:
        """The name belongs to this store from now on."""
        await self._store.put(paths.owner(region), encode(identity))

    # -- refusing to write

    def name_taken(self, error: NameTaken | None, region: str) -> None:
        """What another region says about this region's name."""
        self._taken_at.pop(region, None)
        if error is not None:
            self._taken_at[region] = str(error)

    def judge(self, peers: Mapping[str, PeerState]) -> None:
        """Decide whether this region may write."""
        taken = [self._taken_at[region] for region in peers if region in self._taken_at]
        accepted = [
            one for region, one in peers.items() if one.compared_ms is not None and region not in self._taken_at
        ]
        refusal = taken[0] if len(taken) > len(accepted) else None
        self._choice.refusal = refusal or off_clock(self._region, peers.values(), self._choice.max_ahead_ms)


def _joined(where: str, record: Record) -> frozenset[str]:
    """:raises MetadataError: the record is damaged."""
    value, _ = decode(where, record.value)
    # An earlier version stored the time alone, and had two scopes.
    return frozenset(value["scopes"]) if isinstance(value, dict) else frozenset((paths.TENANTS, paths.NAMESPACES))


def off_clock(region: str, peers: Collection[PeerState], max_ms: int) -> str | None:
    """Why a region whose clock is off against most regions must not write (R43); None: it is not.

    Of two regions nobody can tell which one is off.

    :param max_ms: clocks that differ by no more than this are right.
    """
    offsets = [one.clock_offset_ms for one in peers if one.compared_ms is not None]
    off = [one for one in offsets if abs(one) > max_ms]
    if len(off) * 2 <= len(offsets) + 1:
        return None
    seconds = off[0] / 1000
    return (
        f"the clock of {region} is {abs(seconds):.0f} s {'behind' if seconds > 0 else 'ahead of'} those of most other "
        "regions, so its writes would win or lose wrongly: correct it. Shared metadata cannot be changed until then"
    )
