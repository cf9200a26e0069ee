# SPDX-License-Identifier: Apache-2.0
"""A region's BookKeeper in one line of JSON, so that another process of this machine can find it.

It names the files with credentials for etcd and never their content, because arguments of processes are public.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from meridian_broker.engines.etcd.address import Login

FILES: Final = ("password_file", "ca_file", "certificate_file", "key_file")


def described(urls: str, region: str, login: Login) -> str:
    """:param urls: of the region's etcd."""
    files = {name: str(file) for name in FILES if (file := getattr(login, name)) is not None}
    return json.dumps({"etcd": urls, "region": region, "user": login.user, **files})


def login_of(storage: Mapping[str, Any]) -> Login:
    """The credentials in a parsed description."""
    return Login(storage["user"], **{name: Path(storage[name]) for name in FILES if name in storage})
