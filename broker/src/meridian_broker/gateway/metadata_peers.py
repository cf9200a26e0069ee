# SPDX-License-Identifier: Apache-2.0
"""Another region's metadata, over its admin REST: the port ``metadata.sync.catching_up.Peer``, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from meridian_broker.gateway.region_calls import CallFailed, RegionCalls
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.catching_up import Digest
from meridian_broker.metadata.sync.digests import BUCKETS, PARTS, Place, Summary
from meridian_broker.metadata.sync.events import MAX_COUNTER
from meridian_broker.metadata.sync.stamped import (
    BEGINNING,
    MAX_GENERATION,
    MAX_KNOWN,
    Moment,
    Stamped,
    Turn,
    canonical,
)
from meridian_broker.metadata.sync.standing import NameTaken
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.varints import MAX_NAME_BYTES

BASE: Final = "/meridian/v1/metadata"
SECONDS: Final = 20.0
QUICK_MS: Final = 2000
"""An answer that took no longer than this is good enough to compare clocks."""
MAX_TIME_MS: Final = (1 << 64) - 1
TAKEN: Final = 409
"""Answer to a region whose name belongs to another store."""


class RestPeer:
    """See the module's text."""

    def __init__(
        self, region: str, identity: str, calls: RegionCalls, now_ms: Callable[[], int], *, replacing: bool = False
    ) -> None:
        """
        :param identity: of this region's store.
        :param replacing: that store is about to take over its region's name.
        """
        self.region = region
        self.clock_offset_ms: int | None = None
        """How many milliseconds its clock is ahead of ours, to within a second; None: it answered too slowly to
        tell."""
        self._identity = identity
        self._replacing = replacing
        self._calls = calls
        self._now_ms = now_ms

    async def digest(self, scopes: Collection[str]) -> Digest:
        """:raises NameTaken: this region's name belongs to another store."""
        before_ms = self._now_ms()
        query = f"identity={quote(self._identity, safe='')}&replacing={'true' if self._replacing else 'false'}"
        query += f"&scopes={','.join(sorted(scopes))}"
        said = await self._ask("GET", f"digest?{query}")
        after_ms = self._now_ms()
        with self._understood():
            if after_ms - before_ms <= QUICK_MS:
                self.clock_offset_ms = int(said["clockMillis"]) - (before_ms + after_ms) // 2
            about = frozenset(map(str, said["scopes"])) & paths.SCOPES.keys()
            synced = frozenset(map(str, said.get("shares", said["scopes"])))
            buckets, mark = _numbers(said["buckets"], BUCKETS), _moment(said["mark"])
            heard = _moment(said.get("heard"))  # earlier versions send none
            return Digest(about, buckets, _moment(said["horizon"]), mark, heard, str(said["identity"]), synced)

    async def parts(self, scopes: Collection[str], buckets: Sequence[int]) -> Mapping[int, Sequence[int]]:
        said = await self._ask("POST", "parts", {"scopes": sorted(scopes), "buckets": list(buckets)})
        with self._understood():
            return {bucket: _numbers(said["parts"][str(bucket)], PARTS) for bucket in buckets}

    async def listing(self, scopes: Collection[str], places: Sequence[Place]) -> Mapping[str, Summary]:
        said = await self._ask("POST", "listing", {"scopes": sorted(scopes), "places": [list(one) for one in places]})
        with self._understood():
            return {str(path): _summary(one) for path, one in said["paths"].items()}

    async def states(self, some: Sequence[str]) -> Mapping[str, Stamped]:
        said = await self._ask("POST", "states", {"paths": list(some)})
        with self._understood():
            return {str(path): _state(one) for path, one in said["states"].items()}

    async def replace(self) -> None:
        """Tell the region that this region's name now belongs to this store."""
        await self._ask("POST", "replace", {"identity": self._identity})

    async def hurry(self) -> None:
        """Ask the region to compare itself with this one soon."""
        await self._ask("POST", "compare")

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """:raises MetadataUnavailable: an answer is not what this version expects."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            text = f"{self.region} sent an answer unknown to this version ({error!r}): is it another version?"
            raise MetadataUnavailable(text) from error

    async def _ask(self, method: str, what: str, body: Any = None) -> Any:
        try:
            status, said = await self._calls.ask(self.region, method, f"{BASE}/{what}", body, seconds=SECONDS)
        except CallFailed as error:
            raise MetadataUnavailable(f"{self.region} cannot be asked: {error}") from None
        try:
            answer = json.loads(said) if said else None
        except (ValueError, RecursionError):
            raise MetadataUnavailable(f"{self.region} answered {status} without JSON") from None
        if status == TAKEN:
            raise NameTaken(_reason(answer))
        if status >= 300:
            raise MetadataUnavailable(f"{self.region} answered {status}: {_reason(answer)}")
        return answer


def states_json(states: Mapping[str, Stamped]) -> bytes:
    """The inverse of what ``RestPeer.states`` reads. Values are JSON already."""
    shown = (
        b'%b:{"stamp":%b,"generation":%d,"knows":%b,"deleted":%b,"value":%b}'
        % (
            canonical(path),
            canonical(list(state.stamp)),
            state.generation,
            canonical(state.knows),
            b"true" if state.value is None else b"false",
            b"null" if state.value is None else state.value,
        )
        for path, state in states.items()
    )
    return b'{"states":{%b}}' % b",".join(shown)


def summary_json(one: Summary) -> list[Any]:
    return [one.generation, list(one.stamp), f"{one.content:x}"]


def numbers_json(numbers: Sequence[int]) -> list[str]:
    """As text: they may exceed 2^53, too much for JSON numbers."""
    return [f"{one:x}" for one in numbers]


def _state(said: Any) -> Stamped:
    value = None if said["deleted"] else canonical(said["value"])
    known = [*said.get("knows", {}).items()][:MAX_KNOWN]  # earlier versions send none
    knows = {_name(region): _turn(turn) for region, turn in known}
    return Stamped(_stamp(said["stamp"]), value, _within(said["generation"], MAX_GENERATION), knows)


def _summary(said: Any) -> Summary:
    generation, stamp, content = said
    return Summary(_within(generation, MAX_GENERATION), _stamp(stamp), int(content, 16))


def _stamp(said: Any) -> Stamp:
    time_ms, counter, region = said
    return Stamp(_within(time_ms, MAX_TIME_MS), _within(counter, MAX_COUNTER), _name(region))


def _turn(said: Any) -> Turn:
    generation, *at = said
    time_ms, counter = (_within(number, MAX_TIME_MS) for number in at)
    return _within(generation, MAX_GENERATION), time_ms, counter


def _name(said: Any) -> str:
    """Of a region; empty: nobody's. :raises ValueError: no event can name it."""
    if not isinstance(said, str) or len(said.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{said!r:.80} is not the name of a region")
    return said


def _within(number: Any, most: int) -> int:
    """:raises ValueError: it is not a number, or exceeds ``most``."""
    if not isinstance(number, int) or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a number up to {most}")
    return number


def _numbers(said: Any, count: int) -> list[int]:
    numbers = [int(one, 16) for one in said]
    if len(numbers) != count:
        raise MetadataUnavailable(f"another region answered {len(numbers)} digests instead of {count}")
    return numbers


def _moment(said: Any) -> Moment:
    if not said:
        return BEGINNING
    time_ms, counter = said
    # Builds before the first release stored greater counters. No stamp has one, so this is the same moment.
    return _within(time_ms, MAX_TIME_MS), min(_within(counter, MAX_TIME_MS), MAX_COUNTER)


def _reason(said: Any) -> str:
    return str(said.get("reason", ""))[:400] if isinstance(said, Mapping) else ""
