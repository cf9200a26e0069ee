# SPDX-License-Identifier: Apache-2.0
"""``meridian secure-etcd``: waits for a region's etcd and switches its authentication on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from meridian_broker.engines.etcd.address import parse_endpoints
from meridian_broker.engines.etcd.keys import BOOKKEEPERS, OURS
from meridian_broker.engines.etcd.securing import secure
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable
from meridian_broker.server.settings import Settings, SettingsError
from meridian_broker.server.waiting import StartFailed, once_there


def run_secure_etcd(settings: Settings, root_password_file: Path, say: Callable[[str], None]) -> int:
    """Returns 0.

    :raises SettingsError: the metadata are not in etcd.
    :raises StartFailed: etcd cannot be reached or rejects the login.
    """
    kind, _, urls = settings.metadata_store_url.partition(":")
    if kind != "etcd":
        raise SettingsError("metadataStoreUrl: expected etcd:http://HOST:PORT")
    endpoints = parse_endpoints(urls)
    keys = (*OURS, BOOKKEEPERS) if settings.storage.managed_ledger_storage == "bookkeeper" else OURS
    login, patience = settings.metadata.login, settings.process.start_timeout_seconds
    try:
        asyncio.run(
            once_there(lambda: secure(endpoints, login, root_password_file, keys), MetadataUnavailable, patience)
        )
    except MetadataError as error:
        raise StartFailed(str(error)) from error
    say(f"etcd at {urls}: authentication is on; user {login.user} reads and writes the brokers' keys")
    return 0
