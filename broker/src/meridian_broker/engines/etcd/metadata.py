# SPDX-License-Identifier: Apache-2.0
"""The metadata store of a region that has its own etcd.

A record's version is its key's ``mod_revision``: never repeated, not even when a key is deleted and created again, and
0 for a key that does not exist, which the port calls ``ABSENT``. Keys are the store's prefix followed by the path, so
several regions may share one etcd in a test. This module imports gRPC: import it only where etcd is used.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from aetcd import rpc

from meridian_broker.engines.etcd.address import ANONYMOUS, Login, parse_endpoints
from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel, is_compacted
from meridian_broker.engines.etcd.leasing import EtcdLease
from meridian_broker.engines.etcd.moving import move_earlier_keys
from meridian_broker.engines.etcd.together import READS_MAX, Together
from meridian_broker.engines.etcd.watching import EtcdWatch
from meridian_broker.engines.etcd.watching_together import WatchesTogether
from meridian_broker.metadata.limits import (
    after_prefix,
    check_path,
    check_prefix,
    check_transaction,
    check_value,
    collect_children,
)
from meridian_broker.metadata.store import (
    Change,
    Check,
    Committed,
    Delete,
    Lease,
    LeaseExpired,
    MetadataError,
    MetadataUnavailable,
    Put,
    Record,
    VersionConflict,
)

PAGE = 500
"""Keys read per request while scanning or listing."""

DENSE = 4
"""Of so many keys of a page one is wanted at least, or what else is wanted is read key by key."""

SCAN_ATTEMPTS = 3
"""Attempts of a scan while etcd keeps compacting the revision that it reads."""


class EtcdMetadataStore:
    """A region's metadata in etcd; implements ``MetadataStore``.

    A write that ends in :class:`MetadataUnavailable` may have happened: use ``expected`` where that matters.
    """

    def __init__(self, channel: EtcdChannel, prefix: str) -> None:
        self._channel = channel
        self._together = Together(channel)
        self._watches = WatchesTogether(self._open_watch)
        self._prefix = prefix
        self._leases: dict[int, EtcdLease] = {}
        self._closed = False

    @classmethod
    async def connect(
        cls, urls: str, prefix: str, went_back: Callable[[str], None] = lambda _: None, login: Login = ANONYMOUS
    ) -> EtcdMetadataStore:
        """Connects at once, to fail early, and moves the keys that an earlier version wrote.

        :param urls: ``http://host:port``, or several ``https://...`` separated by commas.
        :param prefix: ``keys.metadata_of`` the region.
        :param went_back: called once if etcd was restored from an older copy; every request fails from then on.
        :raises MetadataUnavailable: etcd does not answer.
        :raises MetadataLoginRefused: etcd rejects the login, or has not granted this version's keys to the user yet.
        :raises MetadataError: the URL or the prefix is not valid.
        """
        check_path("/" + prefix)
        store = cls(EtcdChannel(parse_endpoints(urls), login, went_back), prefix)
        try:
            await store.get("/format")
            await move_earlier_keys(store._channel, store._together, prefix)
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, path: str) -> Record | None:
        return _record(await self._together.read(self._key(check_path(path)), f"reading {path}", REQUEST_TIMEOUT))

    async def get_many(self, paths: Sequence[str]) -> list[Record | None]:
        wanted = {self._key(check_path(path)): path for path in paths}
        found = await self._neighbours(sorted(wanted))
        others = [(key, f"reading {path}") for key, path in wanted.items() if key not in found]
        answers = await self._together.read_many(others, REQUEST_TIMEOUT)
        found |= {key: _record(answer) for (key, _), answer in zip(others, answers, strict=True)}
        return [found[self._key(path)] for path in paths]

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        check_value(check_path(path), value)
        checks = [] if expected is None else [Check(path, expected)]
        answer = await self._transaction(checks, [Put(path, value, lease)], f"writing {path}")
        if not answer.succeeded:
            raise VersionConflict(f"{path} is no longer at version {expected}: read it again")
        return int(answer.header.revision)

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        check_path(path)
        checks = [] if expected is None else [Check(path, expected)]
        answer = await self._transaction(checks, [Delete(path)], f"deleting {path}")
        if not answer.succeeded:
            raise VersionConflict(f"{path} is no longer at version {expected}: read it again")
        return bool(answer.responses[0].response_delete_range.deleted)

    async def children(self, path: str) -> list[str]:
        base = "/" if path == "/" else check_path(path) + "/"
        names: set[str] = set()
        at, end = base, self._key(after_prefix(base))
        while True:
            request = rpc.RangeRequest(key=self._key(at), range_end=end, limit=PAGE, keys_only=True)
            answer = await self._range(request, f"listing {path}")
            at = collect_children(base, [self._path(kv.key) for kv in answer.kvs], names)
            if not answer.more:
                return sorted(names)

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        check_prefix(prefix)
        for _ in range(SCAN_ATTEMPTS):
            found = await self._scan_one_revision(prefix)
            if found is not None:
                return found
        raise MetadataUnavailable(
            f"scanning {prefix}: etcd compacted the revision being read {SCAN_ATTEMPTS} times: try again later"
        )

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        check_transaction(checks, operations)
        paths = ", ".join(operation.path for operation in operations[:3])
        answer = await self._transaction(checks, operations, f"a transaction on {paths}")
        if not answer.succeeded:
            return None
        version = int(answer.header.revision)
        return Committed(version, [_change(operation, version) for operation in operations])

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        check_prefix(prefix)
        return self._watches.changes(prefix)

    async def lease(self, ttl_seconds: float) -> Lease:
        """etcd counts whole seconds and has a minimum (about 2 s), so the lease may last longer than requested."""
        self._leases = {lease_id: lease for lease_id, lease in self._leases.items() if not lease.lost()}
        lease = await EtcdLease.grant(self._channel, ttl_seconds)
        self._leases[lease.lease_id] = lease
        return lease

    async def close(self) -> None:
        """Give up every lease and close the connection. Watchers get a :class:`MetadataError`."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(lease.revoke() for lease in self._leases.values()))
        self._leases.clear()
        await self._together.close()
        await self._channel.close()

    def _open_watch(self, prefix: str) -> AsyncGenerator[list[Change], None]:
        return EtcdWatch(self._channel, self._prefix + prefix, len(self._prefix)).changes()

    def _key(self, path: str) -> bytes:
        return (self._prefix + path).encode()

    def _path(self, key: bytes) -> str:
        return key.decode()[len(self._prefix) :]

    async def _range(self, request: Any, doing: str) -> Any:
        return await self._channel.read(request, doing, REQUEST_TIMEOUT)

    async def _neighbours(self, wanted: Sequence[bytes]) -> dict[bytes, Record | None]:
        """Records at these sorted keys, by key, as long as a page of keys has many of them: it costs etcd and Python
        less than a read of each."""
        found: dict[bytes, Record | None] = {}
        at, is_dense = 0, True
        while is_dense and len(wanted) - at > 2 * READS_MAX:
            request = rpc.RangeRequest(key=wanted[at], range_end=wanted[-1] + b"\x00", limit=PAGE)
            answer = await self._range(request, f"reading {self._path(wanted[at])} and others")
            page = {kv.key: Record(kv.value, kv.mod_revision) for kv in answer.kvs}
            upto = bisect_right(wanted, answer.kvs[-1].key) if answer.more else len(wanted)
            found |= {key: page.get(key) for key in wanted[at:upto]}
            is_dense = upto - at >= PAGE // DENSE
            at = upto
        return found

    async def _transaction(self, checks: Sequence[Check], operations: Sequence[Put | Delete], doing: str) -> Any:
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None:
                self._check_lease(operation.lease, doing)
        request = rpc.TxnRequest(
            compare=[self._comparison(check) for check in checks],
            success=[self._operation(operation) for operation in operations],
        )
        return await self._together.write(request, doing, REQUEST_TIMEOUT)

    def _check_lease(self, lease_id: int, doing: str) -> None:
        """A lease that has expired by our clock must not protect anything new, even if etcd still has it."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.lost():
            raise LeaseExpired(f"{doing}: lease {lease_id} is gone: take a new one and create again what it protected")

    def _comparison(self, check: Check) -> Any:
        return rpc.Compare(
            target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, key=self._key(check.path), mod_revision=check.version
        )

    def _operation(self, operation: Put | Delete) -> Any:
        if isinstance(operation, Delete):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(operation.path)))
        put = rpc.PutRequest(key=self._key(operation.path), value=operation.value, lease=operation.lease or 0)
        return rpc.RequestOp(request_put=put)

    async def _scan_one_revision(self, prefix: str) -> list[tuple[str, Record]] | None:
        """None: the revision was compacted during the scan."""
        found: list[tuple[str, Record]] = []
        at, end, revision = self._key(prefix), self._key(after_prefix(prefix)), 0
        while True:
            request = rpc.RangeRequest(key=at, range_end=end, limit=PAGE, revision=revision)
            try:
                answer = await self._range(request, f"scanning {prefix}")
            except MetadataError as error:
                if isinstance(error.__cause__, grpc.aio.AioRpcError) and is_compacted(error.__cause__):
                    return None
                raise
            found.extend((self._path(kv.key), Record(kv.value, kv.mod_revision)) for kv in answer.kvs)
            if not answer.more:
                return found
            revision = revision or answer.header.revision
            at = answer.kvs[-1].key + b"\x00"


def _change(operation: Put | Delete, version: int) -> Change:
    return Change(operation.path, Record(operation.value, version) if isinstance(operation, Put) else None)


def _record(answer: Any) -> Record | None:
    """The record in a ``RangeResponse`` for one key."""
    return Record(answer.kvs[0].value, answer.kvs[0].mod_revision) if answer.kvs else None
