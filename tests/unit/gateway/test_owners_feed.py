# SPDX-License-Identifier: Apache-2.0
"""Bundle owners as links receive them: everything once, in parts, then the changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from meridian_broker.gateway import owners_feed
from meridian_broker.gateway.owners_feed import UNREAD_BYTES, OwnersFeed
from meridian_broker.ownership.bundles import LAST
from meridian_broker.replication.progress import codec
from meridian_broker.replication.progress.messages import NamespaceOwners, Owners, RemoteBroker
from meridian_broker.wire.pulsar.frames import Command, FrameDecoder


class Region:
    """Namespaces of one bundle each, and their owners."""

    def __init__(self, namespaces: int) -> None:
        self.owner = {f"public/n{number}": "a" for number in range(namespaces)}
        self.is_current = True

    def brokers(self, listener: str) -> tuple[RemoteBroker, ...]:
        return tuple(RemoteBroker(name, f"pulsar://{name}{listener}:1", "") for name in "ab")

    def namespaces(self) -> list[str]:
        return list(self.owner)

    def owners(self, namespace: str) -> NamespaceOwners:
        owner = self.owner.get(namespace)
        return NamespaceOwners(namespace, (), ()) if owner is None else NamespaceOwners(namespace, (0, LAST), (owner,))


class Link:
    """A connection that keeps what was written to it."""

    def __init__(self) -> None:
        self.listener = "-outside"
        self.unread = 0
        self.transport: Any = SimpleNamespace(get_write_buffer_size=lambda: self.unread)
        self.heard: list[Owners] = []
        self.ended = ""
        self.is_ended = asyncio.Event()
        self._more = asyncio.Event()

    def write(self, data: bytes) -> None:
        (command,) = FrameDecoder().feed(data)
        assert isinstance(command, Command)
        message = codec.decode(command.type, command.message)
        assert isinstance(message, Owners)
        self.heard.append(message)
        self._more.set()

    def end(self, reason: str) -> None:
        self.ended = reason
        self.is_ended.set()

    async def hears(self, messages: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < messages:
                self._more.clear()
                await self._more.wait()


def begun(region: Region) -> tuple[OwnersFeed, Any]:
    feed, link = OwnersFeed(region), Link()
    connection: Any = link
    feed.add(connection)
    feed.tell(connection)
    return feed, connection


async def test_everything_comes_in_parts_and_then_the_changes() -> None:
    region = Region(600)
    feed, link = begun(region)
    await link.hears(3)
    assert [(len(one.namespaces), one.is_first, one.is_last) for one in link.heard] == [
        (256, True, False),
        (256, False, False),
        (88, False, True),
    ]
    assert {one.brokers[0].service_url for one in link.heard} == {"pulsar://a-outside:1"}
    region.owner["public/n3"] = "b"
    feed.changed({"public/n3"})
    del region.owner["public/n4"]
    feed.changed({"public/n4", "public/n3"})
    await link.hears(4)
    assert link.heard[3].namespaces == (region.owners("public/n3"), NamespaceOwners("public/n4", (), ()))
    assert not link.heard[3].is_first and not link.heard[3].is_last
    feed.changed(())
    await link.hears(5)
    assert link.heard[4].namespaces == ()


async def test_a_region_without_namespaces_reports_its_brokers() -> None:
    _, link = begun(Region(0))
    await link.hears(1)
    assert (link.heard[0].is_first, link.heard[0].is_last, len(link.heard[0].brokers)) == (True, True, 2)


async def test_unread_changes_wait_merged(monkeypatch: Any) -> None:
    monkeypatch.setattr(owners_feed, "UNREAD_SECONDS", 0.0)
    region = Region(2)
    feed, link = begun(region)
    await link.hears(1)
    link.unread = UNREAD_BYTES + 1
    for _ in range(10):
        feed.changed(None)
        await asyncio.sleep(0)
    assert len(link.heard) == 1
    link.unread = 0
    await link.hears(2)
    assert len(link.heard[1].namespaces) == 2
    feed.discard(link)
    feed.changed(None)
    assert link not in feed


async def test_a_broker_without_a_lease_says_nothing() -> None:
    """It no longer learns of owners, and stale ones would send other regions to brokers that are gone."""
    region = Region(600)
    feed, link = begun(region)
    await link.hears(1)
    region.is_current = False
    feed.changed(None)  # as if the lease had ended
    await asyncio.wait_for(link.is_ended.wait(), 60)
    assert link not in feed
    assert "cut off from its metadata" in link.ended
    said = len(link.heard)
    another: Any = Link()
    feed.add(another)
    feed.tell(another)
    assert another not in feed and another.ended
    region.is_current = True
    last: Any = Link()
    feed.add(last)
    feed.tell(last)
    await last.hears(3)
    assert (len(link.heard), another.heard) == (said, [])
