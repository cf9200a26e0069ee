# SPDX-License-Identifier: Apache-2.0
"""For starting bookies: writes what they need to find in etcd, and lists those that are registered."""

from __future__ import annotations

import uuid
from typing import Final

from aetcd import rpc

from meridian_broker.engines.bookkeeper.ledger_metadata import AVAILABLE
from meridian_broker.engines.etcd.address import ANONYMOUS, Login, parse_endpoints
from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.metadata.limits import after_prefix

ROOT: Final = b"/ledgers"
INSTANCE: Final = b"/ledgers/INSTANCEID"


class Registrations:
    """The bookies in one etcd. ``close`` it at the end. Every method raises MetadataError if etcd does not answer."""

    def __init__(self, urls: str, login: Login = ANONYMOUS) -> None:
        self._channel = EtcdChannel(parse_endpoints(urls), login)

    async def make_root(self) -> None:
        """Write what bookies need before the first one starts. Repeating it changes nothing: the instance id written
        here is in every bookie's cookie, and a bookie with another one refuses to start."""
        absent = rpc.Compare(target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, key=INSTANCE, mod_revision=0)
        puts = [
            rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))
            for key, value in ((ROOT, b""), (INSTANCE, str(uuid.uuid4()).encode()))
        ]
        request = rpc.TxnRequest(compare=[absent], success=puts)
        await self._channel.write(request, "preparing etcd for bookies", REQUEST_TIMEOUT, lambda done: done.succeeded)

    async def has_root(self) -> bool:
        """Whether ``make_root`` was called, here or elsewhere."""
        request = rpc.RangeRequest(key=INSTANCE, count_only=True)
        answer = await self._channel.read(request, "looking for what bookies need", REQUEST_TIMEOUT)
        return bool(answer.count)

    async def writable(self) -> set[str]:
        """The ids of the bookies that take new entries."""
        end = after_prefix(AVAILABLE).encode()
        request = rpc.RangeRequest(key=AVAILABLE.encode(), range_end=end, keys_only=True)
        answer = await self._channel.read(request, "listing bookies", REQUEST_TIMEOUT)
        return {path for kv in answer.kvs if "/" not in (path := kv.key.decode()[len(AVAILABLE) :])}

    async def close(self) -> None:
        await self._channel.close()
