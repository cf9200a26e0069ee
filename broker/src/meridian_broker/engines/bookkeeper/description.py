# SPDX-License-Identifier: Apache-2.0
"""A region's BookKeeper in one line of JSON, so that another process on this machine can find it.

It names the files with the credentials for etcd, never their content, because command lines are public.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.etcd.address import Login

TLS_FILES: Final = ("ca_file", "certificate_file", "key_file")
FILES: Final = ("password_file", *TLS_FILES)


def described(urls: str, region: str, login: Login, tls: BookieTls | None) -> str:
    """:param urls: the addresses of the region's etcd."""
    storage: dict[str, Any] = {"etcd": urls, "region": region, "user": login.user, **_files(login, FILES)}
    if tls is not None:
        storage["bookies"] = _files(tls, TLS_FILES)
    return json.dumps(storage)


def login_of(storage: Mapping[str, Any]) -> Login:
    """The credentials in a parsed description."""
    return Login(storage["user"], **{name: Path(storage[name]) for name in FILES if name in storage})


def tls_of(storage: Mapping[str, Any]) -> BookieTls | None:
    """The same for connections to bookies."""
    files = storage.get("bookies")
    return None if files is None else BookieTls(**{name: Path(file) for name, file in files.items()})


def _files(holder: Login | BookieTls, names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(file) for name in names if (file := getattr(holder, name)) is not None}
