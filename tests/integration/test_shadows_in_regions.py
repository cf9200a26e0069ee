# SPDX-License-Identifier: Apache-2.0
"""A shadow is of one region. Another may have a topic of its name: neither is deleted, or gives way, because of the
other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from meridian_broker.metadata.shadow_topics import SOURCE
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.service import creation, shadow_topics
from meridian_broker.topics.subscriptions import administration
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_process import http
from support.brokers.broker_regions import Region, regions, until
from support.worlds.shadows import subscribe

T, V = parse("t"), parse("v")
PARTITIONS = 2


class Two(NamedTuple):
    """East has a shadow, with a subscription; west a topic of that name."""

    east: Region
    west: Region


def names(partitions: int, of: TopicName = V) -> list[TopicName]:
    return [of.with_partition(number) for number in range(partitions)] or [of]


async def make(region: Region, name: TopicName, partitions: int) -> None:
    opener = region.process.service.opener
    await (creation.create_partitioned(opener, name, partitions, {}) if partitions else _plain(region, name))


async def _plain(region: Region, name: TopicName) -> None:
    await region.process.service.opener.topic(name, create=True)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with regions(tmp_path, "east", "west") as (east, west):
        yield Two(east, west)


def shown(region: Region, partitions: int) -> list[Topic]:
    """The open topics of the name."""
    found = region.process.service.topics
    return [found[str(name)] for name in names(partitions) if str(name) in found]


async def shadow_in_east(two: Two, partitions: int) -> list[Topic]:
    """Its partitions, each with a subscription."""
    await shadow_topics.create(two.east.process.service.opener, V, None, {SOURCE: str(T)}, listed=True)
    views = shown(two.east, partitions)
    for view in views:
        await subscribe(view)
    return views


async def delete(region: Region, partitions: int) -> None:
    path = f"/admin/v2/persistent/public/default/v{'/partitions' if partitions else ''}"
    answer = await asyncio.to_thread(http, "DELETE", region.admin_url + path)
    assert answer.status == 204, answer.text


async def published_to_source(two: Two, partitions: int) -> None:
    """In west, so that east has entries of west's under the shadow's name."""
    for name in names(partitions, T):
        await two.west.publish(str(name), 0, 3)
    await until(lambda: all(two.east.stored(str(name)) == 3 for name in names(partitions, T)))


async def published(region: Region, partitions: int) -> None:
    for name in names(partitions):
        await region.publish(str(name), 0, 3)


async def is_told(two: Two, partitions: int) -> None:
    """Wait until west knows why its topic is not replicated to east."""

    def problems() -> list[str]:
        found = [two.west.process.runner.status(str(name)).get("east") for name in names(partitions)]
        return ["" if one is None else one.last_error or "" for one in found]

    await until(lambda: all(f"east uses the name {V} for a shadow of {T}" in one for one in problems()))


@pytest.mark.parametrize("here", [0, PARTITIONS])
@pytest.mark.parametrize("there", [0, PARTITIONS])
async def test_neither_ends_because_of_the_other(two: Two, here: int, there: int) -> None:
    catalog = two.west.process.catalog  # west's is the earlier one, and nobody tells east of it before it is opened
    await (catalog.partitioned.create(V, there) if there else catalog.topics.create(V))
    await make(two.east, T, here)
    await published_to_source(two, here)
    views = await shadow_in_east(two, here)

    def is_whole() -> bool:
        """The shadow is still open, with its subscriptions."""
        return shown(two.east, here) == views and all(
            view.failure is None and view.subscriptions["s"].cursor.backlog() == 3 for view in views
        )

    for _ in range(2):  # the second time, west's has been deleted before
        await published(two.west, there)
        await is_told(two, there)
        assert [one.log.entries for one in shown(two.west, there)] == [3] * max(there, 1), "entries of the source"
        assert is_whole(), "it gave way"
        await delete(two.west, there)
        assert is_whole(), "it was deleted"
        await make(two.west, V, there)
    await published(two.west, there)
    await is_told(two, there)
    await delete(two.east, here)
    await until(lambda: [one.log.entries for one in shown(two.east, there)] == [3] * max(there, 1))
    assert [one.log.entries for one in shown(two.west, there)] == [3] * max(there, 1)


async def test_acknowledgements_in_another_topic_of_its_name_are_none_in_the_shadow(two: Two) -> None:
    await make(two.east, T, 0)
    await two.west.publish(str(T), 0, 3)
    await until(lambda: two.east.stored(str(T)) == 3)
    (view,) = await shadow_in_east(two, 0)
    await published(two.west, 0)
    (other,) = shown(two.west, 0)
    await administration.make_subscription(other.subscribing, "s", EARLIEST, replicated=True, properties={})
    await administration.skip(other.subscriptions["s"], 3)
    url = f"{two.west.admin_url}/meridian/v1/subscriptions/persistent/public/default/v/s/status"

    async def is_refused() -> bool:
        said = (await asyncio.to_thread(http, "GET", url)).json
        return bool(said["peers"][0]["reason"] == "NotARegionOfTheTopic")

    await until(is_refused)
    assert not view.subscriptions["s"].replicated and view.subscriptions["s"].cursor.backlog() == 3


@pytest.mark.parametrize("partitions", [0, PARTITIONS])
async def test_a_source_with_a_shadow_in_another_region_is_not_deleted(two: Two, partitions: int) -> None:
    """Whichever region is asked. Its shadow would be empty, and its subscriptions would lose all that they are owed."""
    await make(two.east, T, partitions)
    await published_to_source(two, partitions)
    views = await shadow_in_east(two, partitions)
    await shadow_topics.set_list(two.east.process.service.opener, T, [])  # made, and not listed yet
    path = f"/admin/v2/persistent/public/default/t{'/partitions' if partitions else ''}"
    for region, query in ((two.east, ""), (two.west, ""), (two.west, "?cascade=true")):
        refused = await asyncio.to_thread(http, "DELETE", f"{region.admin_url}{path}{query}")
        assert refused.status == 412 and f"has shadows, {V}" in refused.reason, refused.text
    assert shown(two.east, partitions) == views
    assert all(two.west.stored(str(name)) == 3 for name in names(partitions, T))
    await delete(two.east, partitions)
    assert (await asyncio.to_thread(http, "DELETE", two.west.admin_url + path)).status == 204
