# SPDX-License-Identifier: Apache-2.0
"""Settings changed at run time: one record for all brokers of a region, validated like a file's settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import encode
from meridian_broker.server.live_settings import VALUE_MAX, LiveSettings
from meridian_broker.server.settings import BY_KEY, Settings
from support.contracts.metadata_contract import wait_until

PRODUCERS = "maxProducersPerTopic"
EVENTS, MORE_EVENTS = "metadataSyncEventTopic", "configurationMetadataSyncEventTopic"
PEERS = {"peerTokenFile": "/secret"}
"""Settings without which metadata is not synchronized."""
ONE, OTHER = "persistent://public/default/one", "persistent://public/default/other"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    opened = await SqliteMetadataStore.open(tmp_path / "metadata")
    yield opened
    await opened.close()


async def test_they_override_every_brokers_own_settings(store: SqliteMetadataStore) -> None:
    one = LiveSettings(Settings.of({PRODUCERS: "5"}), store)
    other = LiveSettings(Settings.of({PRODUCERS: "9"}), store)
    heard: list[int] = []
    other.subscribe(lambda settings: heard.append(settings.topics.max_producers_per_topic))
    following = asyncio.create_task(other.follow())
    await one.change(PRODUCERS, "2")
    assert one.current.topics.max_producers_per_topic == 2
    await wait_until(lambda: heard == [2])
    late = LiveSettings(Settings.of({PRODUCERS: "7"}), store)
    await late.load()
    assert late.in_force()[PRODUCERS] == "2"
    await one.change(PRODUCERS, None)
    assert one.current.topics.max_producers_per_topic == 5
    await wait_until(lambda: heard == [2, 9])
    assert other.changed == {}
    following.cancel()


async def test_settings_that_do_not_go_together_are_never_stored(store: SqliteMetadataStore) -> None:
    brokers = [LiveSettings(Settings.of(PEERS), store) for _ in range(2)]
    results = await asyncio.gather(
        brokers[0].change(EVENTS, ONE), brokers[1].change(MORE_EVENTS, OTHER), return_exceptions=True
    )
    assert [type(result) for result in results].count(Invalid) == 1
    for broker in brokers:
        await broker.load()
        assert len(broker.changed) == 1


async def test_concurrent_changes_of_different_settings_all_hold(store: SqliteMetadataStore) -> None:
    brokers = [LiveSettings(Settings(), store) for _ in range(4)]
    names = brokers[0].names[:4]
    texts = {name: BY_KEY[name].text(BY_KEY[name].default) for name in names}
    await asyncio.gather(*(broker.change(name, texts[name]) for broker, name in zip(brokers, names, strict=True)))
    await brokers[0].load()
    assert brokers[0].changed == texts


async def test_a_broker_ignores_what_it_cannot_use_and_applies_the_rest(
    store: SqliteMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    found = {"ofALaterVersion": "1", PRODUCERS: "3", EVENTS: ONE, "maxConsumersPerTopic": "none"}
    await store.put(keys.SETTINGS, encode(found))
    broker = LiveSettings(Settings.of(PEERS | {MORE_EVENTS: OTHER}), store)
    await broker.load()
    assert broker.changed == {PRODUCERS: "3"}
    assert broker.current == Settings.of(PEERS | {MORE_EVENTS: OTHER, PRODUCERS: "3"})
    assert "'ofALaterVersion'" in caplog.text
    caplog.clear()


async def test_settings_unknown_to_this_version_survive_a_change(store: SqliteMetadataStore) -> None:
    await store.put(keys.SETTINGS, encode({"ofALaterVersion": "1"}))
    broker = LiveSettings(Settings(), store)
    await broker.change(PRODUCERS, "3")
    record = await store.get(keys.SETTINGS)
    assert record is not None
    assert b"ofALaterVersion" in record.value


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("clusterName", "x", "cannot be changed while brokers run"),
        ("superUserRoles", "me", "cannot be changed while brokers run"),
        ("maxProducerPerTopic", "1", r"did you mean maxProducersPerTopic\?"),
        (PRODUCERS, "10001", "expected a whole number from 0 to 10000"),
        (EVENTS, "x" * (VALUE_MAX + 1), f"expected at most {VALUE_MAX}"),
        (EVENTS, "persistent://public/default/a-partition-1", "not one of its partitions"),
        (EVENTS, ONE, "set peerTokenFile too"),
    ],
)
async def test_refusals(store: SqliteMetadataStore, key: str, value: str, words: str) -> None:
    broker = LiveSettings(Settings(), store)
    with pytest.raises(Invalid, match=words):
        await broker.change(key, value)
    assert await store.get(keys.SETTINGS) is None
