# SPDX-License-Identifier: Apache-2.0
"""``meridian secure-etcd`` waits for a region's etcd and switches its authentication on.

With ``managedLedgerStorage=bookkeeper`` it also prepares etcd for bookies: a user for them, and the root that they
register under. ``meridian await-etcd`` waits for that, because a bookie that finds etcd unprepared exits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from meridian_broker.engines.bookkeeper.registered import Registrations
from meridian_broker.engines.etcd.address import parse_endpoints
from meridian_broker.engines.etcd.keys import BOOKKEEPERS, OURS, SEEN_BY_BOOKIES
from meridian_broker.engines.etcd.securing import secure
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable
from meridian_broker.server.settings import Settings, SettingsError
from meridian_broker.server.waiting import StartFailed, once_there

BOOKIES: Final = "bookkeeper"
"""The bookies' user, which has no password: their driver logs in with a certificate of this common name."""


class Unprepared(MetadataError):
    """A bookie that started now would exit."""


def run_secure_etcd(settings: Settings, root_password_file: Path, say: Callable[[str], None]) -> int:
    """Returns 0.

    :raises SettingsError: the metadata is not in etcd.
    :raises StartFailed: etcd cannot be reached or rejects the login.
    """
    urls = _urls(settings)
    has_bookies = settings.storage.managed_ledger_storage == "bookkeeper"
    login = settings.metadata.login

    async def prepare() -> None:
        if not has_bookies:
            await secure(parse_endpoints(urls), login, root_password_file)
            return
        users = {BOOKIES: (SEEN_BY_BOOKIES,)}
        await secure(parse_endpoints(urls), login, root_password_file, (*OURS, BOOKKEEPERS), users)
        registrations = Registrations(urls, login)
        try:
            await registrations.make_root()  # last: see ``run_await_etcd``
        finally:
            await registrations.close()

    _retried(prepare, MetadataUnavailable, settings)
    say(f"etcd at {urls}: authentication is on; user {login.user} reads and writes the brokers' keys")
    return 0


def run_await_etcd(settings: Settings) -> int:
    """Returns 0 once etcd, with these credentials, shows the root that bookies register under.

    :raises SettingsError: as ``run_secure_etcd``.
    :raises StartFailed: it did not show in time.
    """
    urls = _urls(settings)

    async def look() -> None:
        registrations = Registrations(urls, settings.metadata.login)
        try:
            if not await registrations.has_root():
                raise Unprepared(f"`meridian secure-etcd` has not prepared etcd at {urls} for bookies")
        finally:
            await registrations.close()

    _retried(look, MetadataError, settings)
    return 0


def _urls(settings: Settings) -> str:
    kind, _, urls = settings.metadata_store_url.partition(":")
    if kind != "etcd":
        raise SettingsError("metadataStoreUrl: expected etcd:http://HOST:PORT")
    return urls


def _retried(done: Callable[[], Awaitable[None]], away: type[MetadataError], settings: Settings) -> None:
    try:
        asyncio.run(once_there(done, away, settings.process.start_timeout_seconds))
    except MetadataError as error:
        raise StartFailed(str(error)) from error
