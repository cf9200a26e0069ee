# SPDX-License-Identifier: Apache-2.0
"""Enables an etcd's authentication, with user ``root`` and a user for brokers that can access only their keys.

A new etcd is open to everyone who can reach it. ``secure`` may run any number of times and continues where an earlier
run was interrupted: it creates users and roles first and enables authentication last. It also sets the password of the
brokers' user: to change it, change the file and run ``secure`` again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc
from aetcd import rpc

from meridian_broker.engines.etcd.address import Endpoint, Login
from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.engines.etcd.connection import Connection
from meridian_broker.engines.etcd.keys import OURS, KeyRange
from meridian_broker.metadata.store import MetadataError

ROOT: Final = "root"
NOBODY: Final[Mapping[str, Sequence[KeyRange]]] = MappingProxyType({})


async def secure(
    endpoints: Sequence[Endpoint],
    login: Login,
    root_password_file: Path,
    keys: Sequence[KeyRange] = OURS,
    certified: Mapping[str, Sequence[KeyRange]] = NOBODY,
) -> None:
    """
    :param login: user and password of the brokers.
    :param keys: the keys that this user may read and write.
    :param certified: users without a password, with the keys that each may read and write. They log in with a
        certificate whose common name is the user's.
    :raises MetadataUnavailable: etcd does not answer.
    :raises MetadataError: authentication is enabled and root has another password, or a file cannot be read.
    """
    if not login.user or login.user == ROOT or login.password_file is None:
        raise MetadataError("set metadataStoreUser, to a name other than root, and metadataStorePasswordFile")
    as_root = replace(login, user=ROOT, password_file=root_password_file)
    anonymous = _Users(EtcdChannel(endpoints, replace(login, user="", password_file=None)))
    try:
        if await anonymous.is_enabled(as_root):
            is_let_in = await anonymous.is_let_in(login)
            root = _Users(EtcdChannel(endpoints, as_root))
            try:
                if not is_let_in:
                    await root.make(login)
                await root.grant(login.user, keys)
                await root.admit(certified)
            finally:
                await root.close()
        else:
            await anonymous.make(as_root)
            await anonymous.make(login)
            await anonymous.grant(login.user, keys)
            await anonymous.admit(certified)
            await anonymous.enable()
    finally:
        await anonymous.close()


class _Users:
    """Manages etcd's users, with one login."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel

    async def close(self) -> None:
        await self._channel.close()

    async def is_enabled(self, root: Login) -> bool:
        """Whether authentication is enabled. :raises MetadataError: it is, and root has another password."""
        request = rpc.AuthenticateRequest(name=root.user, password=root.password())
        refused = await self._try(lambda at: at.auth.Authenticate, request, "authentication")
        if "authentication failed" in refused:
            raise MetadataError(
                f"etcd at {self._channel.where} has authentication enabled, and the password in {root.password_file} "
                "is not that of its user root"
            )
        return "not enabled" not in refused

    async def make(self, login: Login) -> None:
        """Create the user, or set its password, and give it a role of the same name."""
        name, password = login.user, login.password()
        await self._try(lambda at: at.auth.RoleAdd, rpc.AuthRoleAddRequest(name=name), "already exists")
        request = rpc.AuthUserAddRequest(name=name, password=password)
        if await self._try(lambda at: at.auth.UserAdd, request, "already exists") and not await self.is_let_in(login):
            request = rpc.AuthUserChangePasswordRequest(name=name, password=password)
            await self._try(lambda at: at.auth.UserChangePassword, request)
        request = rpc.AuthUserGrantRoleRequest(user=name, role=name)
        await self._try(lambda at: at.auth.UserGrantRole, request, "already granted")

    async def admit(self, certified: Mapping[str, Sequence[KeyRange]]) -> None:
        """Create users who log in by certificate. Writes nothing for those that exist: see ``is_let_in``."""
        for name, keys in certified.items():
            await self._try(lambda at: at.auth.RoleAdd, rpc.AuthRoleAddRequest(name=name), "already exists")
            request = rpc.AuthUserAddRequest(name=name, options=rpc.UserAddOptions(no_password=True))
            await self._try(lambda at: at.auth.UserAdd, request, "already exists")
            await self._try(
                lambda at: at.auth.UserGrantRole, rpc.AuthUserGrantRoleRequest(user=name, role=name), "already granted"
            )
            await self.grant(name, keys)

    async def grant(self, role: str, keys: Sequence[KeyRange]) -> None:
        """Let a role read and write these keys. Writes only what is not granted yet: see ``is_let_in``."""
        with self._channel.errors("reading a role"):
            answer = await self._channel.call(
                lambda at: at.auth.RoleGet, rpc.AuthRoleGetRequest(role=role), REQUEST_TIMEOUT
            )
        granted = {(one.key, one.range_end) for one in answer.perm if one.permType == rpc.Permission.READWRITE}
        for first, end in keys:
            if (first, end) not in granted:
                permission = rpc.Permission(permType=rpc.Permission.READWRITE, key=first, range_end=end)
                request = rpc.AuthRoleGrantPermissionRequest(name=role, perm=permission)
                await self._try(lambda at: at.auth.RoleGrantPermission, request)

    async def enable(self) -> None:
        await self._try(lambda at: at.auth.AuthEnable, rpc.AuthEnableRequest())

    async def is_let_in(self, login: Login) -> bool:
        """Whether the password is right. If so, leave it: every change voids the tokens of running brokers."""
        request = rpc.AuthenticateRequest(name=login.user, password=login.password())
        return not await self._try(lambda at: at.auth.Authenticate, request, "authentication")

    async def _try(self, method: Callable[[Connection], Any], request: Any, allowed: str = "") -> str:
        """Empty on success; etcd's refusal if it contains the allowed words.

        :raises MetadataError: any other failure.
        """
        with self._channel.errors("enabling authentication"):
            try:
                await self._channel.call(method, request, REQUEST_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                if allowed and allowed in (error.details() or ""):
                    return str(error.details())
                raise
        return ""
