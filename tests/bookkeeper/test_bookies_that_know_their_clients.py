# SPDX-License-Identifier: Apache-2.0
"""Bookies that accept only clients whose certificates have a role: neither plain text nor other certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.context import BookKeeperSettings
from meridian_broker.engines.bookkeeper.ports import AddLimits
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.ledgers.store import LedgerError
from support.brokers.bookies import Bookies
from support.contracts.ledger_contract import append_one, read_all

ROLE = "meridian"
SETTINGS = BookKeeperSettings(ensemble=1, ack_quorum=1, limits=AddLimits(retry_ms=200, patience_ms=1_000))


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    made = Bookies(tmp_path_factory.mktemp("strict"), 1, role=ROLE)
    yield made
    made.close()


async def _store(bookies: Bookies, tls: BookieTls | None) -> BookKeeperLedgerStore:
    return await BookKeeperLedgerStore.start(bookies.url, "region", SETTINGS, login=bookies.etcd.login, tls=tls)


@pytest.fixture
async def served(bookies: Bookies) -> AsyncIterator[BookKeeperLedgerStore]:
    """A store that bookies accept, with ledger 1."""
    made = await _store(bookies, bookies.tls)
    yield made
    await made.close()


async def test_a_client_with_the_role_is_served(served: BookKeeperLedgerStore) -> None:
    writer = await served.create(1, fence=1)
    entries = [b"%d" % number * 1000 for number in range(50)]
    for entry in entries[:-1]:
        writer.append(entry, lambda _: None)
    assert await append_one(writer, entries[-1]) == 49
    assert (await served.recover(1, fence=2)).entries == 50, "version 2 reads that fence, and adds of a recovery"
    assert await read_all(served, 1) == entries


@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", ["plain text", "no certificate", "another role", "no role"])
async def test_others_are_refused(bookies: Bookies, served: BookKeeperLedgerStore, who: str) -> None:
    number = {"plain text": 2, "no certificate": 3, "another role": 4, "no role": 5}[who]
    own = await served.create(10 * number, fence=1)
    assert await append_one(own, b"secret") == 0
    await own.seal()
    tls: BookieTls | None = None
    if who == "no certificate":
        tls = BookieTls(bookies.authority.trusted)
    elif who != "plain text":
        pair = bookies.authority.issue("stranger", unit="0:guest" if who == "another role" else None)
        tls = BookieTls(bookies.authority.trusted, pair.certificate, pair.key)
    refused = await _store(bookies, tls)
    try:
        writer = await refused.create(number, fence=1)
        assert isinstance(await append_one(writer, b"forged"), LedgerError)
        reader = await refused.open(10 * number)
        with pytest.raises(LedgerError):
            await reader.read(0, 0, 1 << 20)
    finally:
        await refused.close()
