# SPDX-License-Identifier: Apache-2.0
"""Compares this region's metadata with a peer's, and takes what it lacks.

That happens when regions begin to share metadata, when one was away for longer than the event topic keeps events, and
periodically, so a lost event heals. What crosses the network depends on how many paths differ (``digests``). Each
region takes what it lacks and sends nothing: the peer compares as well.

**The first time.** Regions that were set up by hand may have different values at the same path, and the later stamp
says nothing about which one is meant. Until such *differences* are decided, a region takes nothing of that scope from
that peer. An operator names the side that counts; its values are then written here, with new stamps, so they win in
every region. What exists on one side only is not a difference: it is taken. Even if the other side has deleted it, that
does not count yet: it is written again (``keep``). Each scope has a first time of its own, so that sharing more decides
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from meridian_broker.metadata.errors import Contended, Invalid
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Check, Delete, MetadataUnavailable, Put
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.digests import Place, Summary, compare, forgotten
from meridian_broker.metadata.sync.events import Event, Written
from meridian_broker.metadata.sync.grouping import EVENTS_TOGETHER, in_transactions
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.merging import is_merged, united
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.shapes import refusal_of
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped, from_store, moment

T = TypeVar("T")

BUCKETS_TOGETHER: Final = 64
"""Buckets asked for at once: 4,096 numbers."""
PLACES_TOGETHER: Final = 512
STATES_TOGETHER: Final = 8 * EVENTS_TOGETHER
"""At most 1 MiB each, but most of them have less than 100 bytes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What a peer answers first."""

    scopes: frozenset[str]
    """What the numbers are about: the scopes asked for that the peer shares."""
    buckets: Sequence[int]
    horizon: Moment
    mark: Moment = BEGINNING
    """The last mark of the asking region that it has heard."""
    heard: Moment = BEGINNING
    """Up to where it has heard every region: what it still has was not deleted up to there."""
    identity: str = ""
    """Of the peer's store."""
    synced: frozenset[str] = frozenset()
    """All scopes that the peer keeps equal with others."""


Together = Callable[[Iterable[Awaitable[None]]], Awaitable[None]]
"""Runs jobs, concurrently if it can. All have ended when it returns or raises."""


class Peer(Protocol):
    """Another region. Each method may raise ``MetadataUnavailable``."""

    @property
    def region(self) -> str: ...

    async def digest(self, scopes: Collection[str]) -> Digest: ...

    async def parts(self, scopes: Collection[str], buckets: Sequence[int]) -> Mapping[int, Sequence[int]]: ...

    async def listing(self, scopes: Collection[str], places: Sequence[Place]) -> Mapping[str, Summary]: ...

    async def states(self, some: Sequence[str]) -> Mapping[str, Stamped]:
        """What it has at these paths, for those it knows anything about."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two regions."""

    digest: Digest
    here: Mapping[str, Summary] = field(default_factory=dict)
    there: Mapping[str, Summary] = field(default_factory=dict)
    """All paths in places that differ: most of them do not differ themselves."""

    def paths(self) -> list[str]:
        """Paths whose contents differ, or that exist in one region only."""
        every = self.here.keys() | self.there.keys()
        return sorted(path for path in every if _content(self.here, path) != _content(self.there, path))

    def differences(self, scopes: Collection[str]) -> list[str]:
        """Paths in these scopes at which both have a value, and not the same one. Schemas are stored under the hash of
        what they say, so that cannot differ."""
        both = (path for path in self.paths() if path in self.here and path in self.there)
        values = [path for path in both if self.here[path].content and self.there[path].content]
        return [path for path in values if paths.scope_of(path) in frozenset(scopes) - {paths.SCHEMAS}]


async def compared(known: Known, peer: Peer, scopes: Collection[str] = paths.SCOPES.keys()) -> Comparison:
    """
    :param scopes: that this region shares. Those that the peer shares as well are compared (R46).
    :raises MetadataError: the peer does not answer.
    """
    digest = await peer.digest(scopes)
    if not digest.scopes <= frozenset(scopes):  # an earlier version ignores what it is asked for
        raise MetadataUnavailable(
            f"{scopes_apart(peer.region, digest.scopes, scopes)}: set metadataSyncScopes to the same value in both "
            "regions"
        )
    mine = known.buckets(digest.scopes)
    differing = [at for at, (one, other) in enumerate(zip(mine, digest.buckets, strict=True)) if one != other]
    places: list[Place] = []
    for some in _portions(differing, BUCKETS_TOGETHER):
        theirs = await peer.parts(digest.scopes, some)
        for bucket in some:
            pairs = zip(known.parts(digest.scopes, bucket), theirs[bucket], strict=True)
            places += [Place(bucket, part) for part, (one, other) in enumerate(pairs) if one != other]
    here: dict[str, Summary] = {}
    there: dict[str, Summary] = {}
    for some_places in _portions(places, PLACES_TOGETHER):
        there |= await peer.listing(digest.scopes, some_places)
        here |= known.listing(digest.scopes, some_places)
    return Comparison(digest, here, there)


def scopes_apart(region: str, theirs: Collection[str], ours: Collection[str]) -> str:
    """How the scopes of two regions differ, in words for people."""
    return f"{region} shares {', '.join(sorted(theirs)) or 'nothing'}, this region {', '.join(sorted(ours))}"


async def take(
    comparison: Comparison, peer: Peer, applier: Applier, together: Together, scopes: Collection[str]
) -> int:
    """Take the peer's later states, and delete what the peer has deleted and forgotten since. Returns the number of
    paths.

    :param scopes: those in which everything is decided.
    :raises MetadataError: the peer or the store does not answer, or a value cannot be served here. The others, or what
        was taken until then, stay.
    """
    heard = comparison.digest.heard
    # The peer's record counts as well: if its store was restored, it may have lost what it once reported as heard.
    known_upto = min(await applier.heard_by_all(), comparison.digest.mark)
    difference = compare(comparison.here, comparison.there, comparison.digest.horizon, await applier.heard_of_awaited())
    scopes = comparison.digest.scopes & frozenset(scopes)
    wanted = [path for path in difference.wanted if paths.scope_of(path) in scopes]
    forgetting = [path for path in difference.gone if paths.scope_of(path) in scopes]
    refused: list[str] = []
    taking: list[Awaitable[None]] = []
    for some in [*_portions(wanted, STATES_TOGETHER), []]:
        came: dict[str, Stamped] = {}
        await together([*taking, _fetch(peer, some, came)])  # the next portion comes while this one is stored
        present = sorted(came.keys() & set(some))
        events = [Event(path, came[path], _seen(comparison, path, applier.region, known_upto)) for path in present]
        refusals = {event.path: why for event in events if (why := refusal_of(event)) is not None}
        refused += refusals.values()
        events = [event for event in events if event.path not in refusals]
        new = [event for event in events if event.path not in comparison.here]
        known = [event for event in events if event.path in comparison.here]
        taking = [applier.take(group) for group in in_transactions(known)]
        taking += [applier.take(group, are_new=True, alive_upto=heard) for group in in_transactions(new)]
    deletion = forgotten(comparison.digest.horizon)
    there: dict[str, Stamped] = {}
    for some in _portions(forgetting, STATES_TOGETHER):  # its listing may be from before its store had them
        await _fetch(peer, some, there)
    forgetting = [path for path in forgetting if path not in there]
    gone = [Event(path, deletion, _seen(comparison, path, applier.region, known_upto)) for path in forgetting]
    for group in in_transactions(gone):
        await applier.take(group)
    if refused:
        raise Invalid(f"{len(refused)} values of {peer.region} cannot be served here: {refused[0]}")
    return len(wanted) + len(forgetting)


async def _fetch(peer: Peer, some: Sequence[str], came: dict[str, Stamped]) -> None:
    """Add what the peer has at these paths."""
    if some:
        came |= await peer.states(some)


async def decide_for(
    comparison: Comparison, peer: Peer, store: RecordingStore, side: str, scopes: Collection[str]
) -> int:
    """Decide the differences in these scopes for one side: its values are written here, with new stamps. Returns their
    number.

    :param side: this region or the peer.
    :raises MetadataError: the peer or the store does not answer, or others write the same paths. Those that were
        written stay decided.
    """
    differing = comparison.differences(scopes)
    for some in _portions(differing, EVENTS_TOGETHER):
        theirs = await peer.states(some) if side == peer.region or any(map(is_merged, some)) else {}
        await _write_again(some, comparison, theirs, store, is_theirs=side == peer.region)
    return len(differing)


async def keep(comparison: Comparison, store: RecordingStore, scopes: Collection[str]) -> int:
    """Write again what this region has and the peer has deleted: nobody has decided about it yet. Returns the number of
    values.

    :param scopes: that are shared with the peer from now on.
    :raises MetadataError: the store does not answer, or others write the same paths.
    """
    pairs = [(path, one, comparison.there.get(path, one)) for path, one in sorted(comparison.here.items())]
    here_only = [path for path, ours, theirs in pairs if ours.content and not theirs.content and theirs > ours]
    kept = [path for path in here_only if paths.scope_of(path) in scopes]
    for some in _portions(kept, EVENTS_TOGETHER):
        await _write_again(some, comparison, {}, store)
    return len(kept)


async def _write_again(
    some: Sequence[str],
    comparison: Comparison,
    theirs: Mapping[str, Stamped],
    store: RecordingStore,
    *,
    is_theirs: bool = False,
) -> None:
    """Write what these paths hold, or what the peer has there, with stamps later than the peer's."""
    seen = dict(zip(some, await store.get_many(some), strict=True))
    checks: list[Check] = []
    operations: list[Put | Delete] = []
    for path, record in seen.items():
        if record is None:
            continue
        sides = [from_store(path, record.value), theirs.get(path, from_store(path, record.value))]
        other, chosen = sides if is_theirs else reversed(sides)
        value = united(path, other, chosen) or chosen.value
        if value is not None:
            checks.append(Check(path, record.version))
            operations.append(Put(path, encode(json.loads(value), store.stamp_after(comparison.there[path].stamp))))
    if not await store.transact(checks, operations):
        raise Contended(f"{some[0]} or another difference was changed meanwhile: try again")


def _seen(comparison: Comparison, path: str, region: str, known_upto: Moment) -> Written | None:
    """What whoever wrote or deleted there had seen, as far as marks tell: our state, unless we wrote it and not every
    region is known to have heard of that.

    The peer's state itself says whether its writer knew ours (``Stamped.knew``). But of a deletion that the peer has
    forgotten, and of what preceded one, nothing else is known. The peer forgets nothing later than its horizon.

    :param known_upto: as ``Applier.heard_by_all``.
    """
    known = comparison.here.get(path)
    if known is None:
        return None
    at = moment(known.stamp)
    is_told = path in comparison.there and at > comparison.digest.horizon
    if known.stamp.region == region and (is_told or at > known_upto):
        return None
    return known.generation, known.stamp


def _content(listing: Mapping[str, Summary], path: str) -> int:
    return listing[path].content if path in listing else 0


def _portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
