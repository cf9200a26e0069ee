# SPDX-License-Identifier: Apache-2.0
"""Moves a region's metadata from the keys of earlier versions, which began with a slash, to those of this version.

``keys.py`` says why keys no longer begin with a slash. Without the move, an upgraded broker would find its region
empty. Keys move in pages, each in one transaction, so every key is in exactly one of the two places at any time. A
marker key records a move under way: a broker that dies during it continues at its next start. If this version has
already written metadata, nothing moves: what is left at the earlier keys is older.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from aetcd import rpc

from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.engines.etcd.together import Together
from meridian_broker.metadata.limits import after_prefix
from meridian_broker.metadata.store import MetadataLoginRefused

PAGE_KEYS: Final = 50
"""Keys moved in one transaction, with two operations each: etcd allows 128."""
PAGE_BYTES: Final = 256 << 10
"""Bytes of values moved in one transaction; a larger value moves alone. etcd allows 1.5 MiB."""
UNDER_WAY: Final = "/moving-from-earlier-keys"

log = logging.getLogger(__name__)


async def move_earlier_keys(channel: EtcdChannel, together: Together, prefix: str) -> int:
    """Returns how many keys were moved. Keys attached to a lease stay, and expire with it.

    :param prefix: the prefix of the region's keys in this version.
    :raises MetadataError: etcd did not answer, or refused a write; the move continues at the next start.
    """
    return await _Move(channel, together, prefix).run()


class _Move:
    def __init__(self, channel: EtcdChannel, together: Together, prefix: str) -> None:
        self._channel = channel
        self._together = together
        self._prefix = prefix
        self._under_way = (prefix + UNDER_WAY).encode()
        self._doing = f"moving the metadata below /{prefix}/ to {prefix}/"

    async def run(self) -> int:
        if not await self._is_to_do():
            return 0
        moved, at = 0, f"/{self._prefix}/".encode()
        while page := await self._page(at):
            moved += await self._move([kv for kv in page if not kv.lease])
            at = page[-1].key + b"\x00"
        await self._write([], [rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._under_way))])
        log.warning(
            "moved %d keys of this region's metadata in etcd from /%s/ to %s/", moved, self._prefix, self._prefix
        )
        return moved

    async def _is_to_do(self) -> bool:
        """Whether a move must be continued or begun. A new one is recorded."""
        if (await self._read(rpc.RangeRequest(key=self._under_way))).kvs:
            return True
        try:
            earlier = await self._first(f"/{self._prefix}/")
        except MetadataLoginRefused:
            return False  # this version set up the users, so etcd never held earlier keys
        if not earlier or await self._first(f"{self._prefix}/"):
            return False
        await self._write([], [rpc.RequestOp(request_put=rpc.PutRequest(key=self._under_way, value=b"1"))])
        return True

    async def _page(self, at: bytes) -> list[Any]:
        """The next keys, as many as fit into one transaction."""
        end = after_prefix(f"/{self._prefix}/").encode()
        found = (await self._read(rpc.RangeRequest(key=at, range_end=end, limit=PAGE_KEYS))).kvs
        page: list[Any] = []
        size = 0
        for kv in found:
            size += len(kv.value)
            if page and size > PAGE_BYTES:
                break
            page.append(kv)
        return page

    async def _move(self, page: list[Any]) -> int:
        """Move a page, unless one of its keys was just written: only an earlier version's broker can have done so."""
        unchanged = [
            rpc.Compare(target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, key=kv.key, mod_revision=kv.mod_revision)
            for kv in page
        ]
        puts = [rpc.RequestOp(request_put=rpc.PutRequest(key=kv.key[1:], value=kv.value)) for kv in page]
        deletes = [rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=kv.key)) for kv in page]
        return len(page) if page and (await self._write(unchanged, [*puts, *deletes])).succeeded else 0

    async def _first(self, prefix: str) -> list[Any]:
        end = after_prefix(prefix).encode()
        return list(
            (await self._read(rpc.RangeRequest(key=prefix.encode(), range_end=end, limit=1, keys_only=True))).kvs
        )

    async def _read(self, request: Any) -> Any:
        return await self._channel.read(request, self._doing, REQUEST_TIMEOUT)

    async def _write(self, compare: list[Any], success: list[Any]) -> Any:
        return await self._together.write(
            rpc.TxnRequest(compare=compare, success=success), self._doing, REQUEST_TIMEOUT
        )
