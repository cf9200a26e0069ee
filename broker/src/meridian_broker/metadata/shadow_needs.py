# SPDX-License-Identifier: Apache-2.0
"""What shadows need of a source that another broker of the region serves, and what that broker would delete.

The broker that serves the source *asks*: it writes which ledgers it would delete. Each shadow's broker makes sure that
its subscriptions do not need them, or says from where on they do, and writes that down. So nothing is deleted before
every shadow has said so, whichever broker serves it then, and whatever fails in between. Each question has a number,
and only answers to it count: a subscription may have gone back since an earlier one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, Record, VersionConflict
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.pulsar.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Asked:
    """What the source's broker would delete."""

    upto: Position = EARLIEST
    """Everything up to this is outside retention, and nothing but shadows may still need it."""
    truncated: Position = EARLIEST
    """Everything up to this is deleted, whoever needs it."""
    number: int = 0
    """Number of the question; 0: nothing was asked yet."""


class ShadowNeeds:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def asked(self, source: TopicName) -> Asked:
        """:raises MetadataError: it cannot be read."""
        path = _asked(source)
        return _asked_of(path, await self._access.store.get(path))

    async def ask(self, source: TopicName, asked: Asked) -> int:
        """Ask about this, and about what was asked before. Returns the question's number.

        :raises Contended: other brokers kept asking.
        :raises MetadataError: it is unknown whether it was written.
        """
        path = _asked(source)

        async def attempt() -> int | None:
            record = await self._access.store.get(path)
            known = _asked_of(path, record)
            value = {
                "upto": list(max(asked.upto, known.upto)),
                "truncated": list(max(asked.truncated, known.truncated)),
                "number": known.number + 1,
            }
            try:
                await self._access.store.put(path, encode(value), expected=ABSENT if record is None else record.version)
            except VersionConflict:
                return None
            return known.number + 1

        return await self._access.retry(f"asking the shadows of {source}", attempt)

    async def follow(self, source: TopicName) -> AsyncIterator[Asked]:
        """The current question, at once and whenever it changes."""
        path = _asked(source)
        async for changes in self._access.store.watch(path):
            yield _asked_of(path, changes[-1].record if changes else await self._access.store.get(path))

    async def told(self, source: TopicName, number: int) -> Mapping[str, Position]:
        """By shadow that has answered this question: it needs nothing at or before this position.

        :raises MetadataError: it cannot be read.
        """
        folder, found = _told(source), dict[str, Position]()
        for path, record in await self._access.store.scan(folder):
            value = decode(path, record.value)[0]
            if value["number"] == number:
                found[keys.unescape(path.removeprefix(folder))] = _position(value["after"])
        return found

    async def note(self, source: TopicName, shadow: TopicName) -> None:
        """Record a shadow that is about to be opened, so that the source's broker knows of it before it has
        subscriptions.

        :raises MetadataError: it may not be written.
        """
        path = _told(source) + keys.escape(str(shadow.base))
        with contextlib.suppress(VersionConflict):  # it is there already
            await self._access.store.put(path, encode({"after": list(EARLIEST), "number": -1}), expected=ABSENT)

    async def noted(self, source: TopicName) -> set[str]:
        """The shadows that were opened where the source was not. :raises MetadataError: it cannot be read."""
        folder = _told(source)
        return {keys.unescape(path.removeprefix(folder)) for path, _ in await self._access.store.scan(folder)}

    async def tell(self, source: TopicName, shadow: TopicName, after: Position, number: int) -> None:
        """Answer a question: a shadow needs nothing at or before this. :raises MetadataError: it may not be written."""
        path = _told(source) + keys.escape(str(shadow.base))
        await self._access.store.put(path, encode({"after": list(after), "number": number}))


def _asked(source: TopicName) -> str:
    return keys.shadow_needs(source) + "/asked"


def _told(source: TopicName) -> str:
    return keys.shadow_needs(source) + "/told/"


def _asked_of(path: str, record: Record | None) -> Asked:
    if record is None:
        return Asked()
    value = decode(path, record.value)[0]
    return Asked(_position(value["upto"]), _position(value["truncated"]), int(value["number"]))


def _position(value: Any) -> Position:
    return Position(int(value[0]), int(value[1]))
