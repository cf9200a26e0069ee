# SPDX-License-Identifier: Apache-2.0
"""Value, stamp and outbox are one transaction on the real stores: a process is killed between writes, and another
region, on the other kind of store, learns everything that was written, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import MetadataStore
from meridian_broker.metadata.sync import outbox, paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.events import Changes, decode
from meridian_broker.metadata.sync.kept import Kept
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.publishing import Publisher
from meridian_broker.metadata.sync.stamped import Stamped, from_store, newest
from meridian_broker.positions.clock import HybridClock
from support.brokers.etcd_server import EtcdServer
from support.worlds.sync_world import is_synced
from support.worlds.sync_writer import NOW_MS, catalog_over, opened

TESTS = Path(__file__).parents[1]
_numbers = itertools.count()


@pytest.fixture
def new_place(etcd_server: EtcdServer, tmp_path: Path) -> Callable[[str], str]:
    """The location of a new store of that kind."""

    def place(kind: str) -> str:
        number = next(_numbers)
        return str(tmp_path / f"{number}.db") if kind == "sqlite" else f"{etcd_server.url}#meridian/sync-{number}"

    return place


async def states_in(store: MetadataStore) -> dict[str, Stamped]:
    found = {path: from_store(path, one.value) for path, one in await store.scan(keys.GEO) if is_synced(path)}
    for where, one in await store.scan(paths.TOMBSTONES + "/"):
        path = where.removeprefix(paths.TOMBSTONES)
        state = newest(found.get(path), from_store(path, one.value, is_deletion=True))
        assert state is not None
        found[path] = state
    return found


async def told_until_killed(*arguments: str) -> set[str]:
    """The writes that were confirmed to the writer before it was killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.worlds.sync_writer", *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == -9
    return set(out.decode().split())


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
@pytest.mark.parametrize(
    ("what", "when", "count"),
    [("transaction", "before", 20), ("transaction", "after", 8), ("message", "before", 4), ("message", "after", 5)],
)
async def test_another_region_learns_what_a_killed_process_wrote(
    new_place: Callable[[str], str], tmp_path: Path, kind: str, what: str, when: str, count: int
) -> None:
    where, topic = new_place(kind), tmp_path / "topic"
    told = await told_until_killed(kind, where, str(topic), what, when, str(count))
    assert told
    lines = topic.read_bytes().split() if topic.exists() else []
    messages = [decode(bytes.fromhex(line.decode())) for line in lines]
    sent = {(one.path, one.state) for message in messages if isinstance(message, Changes) for one in message.events}

    async def notify(message: bytes) -> None:
        messages.append(decode(message))

    async with opened(kind, where) as store:
        states = await states_in(store)
        entries = [outbox.from_store(path, one.value) for path, one in await store.scan(paths.OUTBOX + "/")]
        owed = {path for entry in entries for path in entry.replaced}
        assert all((path, state) in sent or path in owed for path, state in states.items())
        assert owed <= states.keys()
        assert all(keys.tenant(name) in states for name in told)
        await Publisher(store, HybridClock(lambda: NOW_MS, "us"), notify).drain()
        assert await store.scan(paths.OUTBOX + "/") == []

    other = "etcd" if kind == "sqlite" else "sqlite"
    async with opened(other, new_place(other)) as store:
        clock = HybridClock(lambda: NOW_MS, "eu")
        known = Known(store, lambda: asyncio.sleep(0))
        applier = Applier(store, clock, lambda: NOW_MS, is_synced, lambda: frozenset(("eu", "us")), Kept(store, known))
        for message in messages:
            await applier.apply(message)
        assert await states_in(store) == states
        names = await catalog_over(store, clock).tenants.names()
        assert set(names) == {keys.unescape(path.split("/")[3]) for path in states if path.startswith(keys.TENANTS)}
