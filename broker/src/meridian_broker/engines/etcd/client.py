# SPDX-License-Identifier: Apache-2.0
"""A thin etcd client: aetcd's generated stubs over our own channels, with errors of our own.

aetcd's own client delivers watch events one by one (which splits transactions), has unbounded queues, and does not
survive a restart of the server. Its message classes and stubs are sound, so this module uses only those. Every request
has a deadline and waits for a connection until then, so it outlasts an etcd restart within that time.

An etcd that was restored from an older copy is detected. Each answer carries the cluster, the leader's term and the
revision. With linearizable requests, the only ones made here, none of these ever goes back: an answer is at least as
new as every answer received before its request was sent, and a write is newer. So the first answer of an older etcd is
recognized before it is used, and no more requests are sent (``MetadataWentBack``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from aetcd import rpc

from meridian_broker.engines.etcd.address import ANONYMOUS, Endpoint, Login
from meridian_broker.engines.etcd.connection import Connection, Connections, Headers, is_passing
from meridian_broker.metadata.store import (
    LeaseExpired,
    MetadataError,
    MetadataFull,
    MetadataLoginRefused,
    MetadataUnavailable,
    MetadataWentBack,
)

REQUEST_TIMEOUT = 5.0
"""Seconds for one request, connecting included."""
AGAIN_SECONDS = 0.1
"""Pause before a read that etcd could not answer is sent again."""


class _Newest(NamedTuple):
    """The newest state of etcd seen in an answer. All are 0 before the first one."""

    cluster: int
    term: int
    revision: int


class EtcdChannel:
    """The connection of a region's metadata store to its etcd."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        login: Login = ANONYMOUS,
        went_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        :param endpoints: members of one cluster.
        :param went_back: called once, with the reason, when etcd is older than it was.
        :raises MetadataError: a file of ``login`` cannot be read.
        """
        self.where = ", ".join(map(str, endpoints))
        """The endpoints, for messages."""
        self._connections = Connections(endpoints, login)
        self._newest = _Newest(0, 0, 0)
        self._older = ""
        """Why no more requests are sent; empty while etcd never went back."""
        self._went_back = went_back

    @property
    def is_closed(self) -> bool:
        """Whether this process closed it."""
        return self._connections.is_closed

    async def call(self, method: Callable[[Connection], Any], request: Any, seconds: float) -> Any:
        """As ``Connections.call``: for requests whose answers do not carry etcd's state. Use within ``errors``."""
        return await self._connections.call(method, request, seconds)

    async def opened(self, seconds: float) -> tuple[Connection, Headers]:
        """A connection, and the headers of a stream on it. :raises MetadataError: etcd rejects the login."""
        until = asyncio.get_running_loop().time() + seconds
        return await self._connections.opened(until, for_stream=True)

    def failed(self, connection: Connection, headers: Headers, error: grpc.aio.AioRpcError) -> None:
        """A stream with these headers failed: the next one uses another endpoint, or another token."""
        self._connections.failed(connection, headers, error)

    def forget_token(self, headers: Headers) -> None:
        """etcd no longer knows the token in these headers: the next request takes a new one."""
        self._connections.forget_token(headers)

    async def ask(
        self, request: Callable[[], Awaitable[Any]], doing: str, wrote: Callable[[Any], bool] = lambda _: False
    ) -> Any:
        """The answer to one linearizable request.

        :param wrote: whether an answer means that something was written, and so must have a new revision.
        :raises MetadataWentBack: etcd is older than it was. Whether a write happened is then unknown.
        """
        self._check_older(doing)
        known = self._newest
        with self.errors(doing):
            answer = await request()
        said = answer.header
        least = known.revision + (1 if wrote(answer) else 0)
        if known.cluster and (said.cluster_id != known.cluster or said.raft_term < known.term or said.revision < least):
            self._is_older(
                f"it is at revision {said.revision} of term {said.raft_term}, after revision {known.revision}"
            )
        self._check_older(doing)
        term, revision = max(said.raft_term, self._newest.term), max(said.revision, self._newest.revision)
        self._newest = _Newest(said.cluster_id, term, revision)
        return answer

    async def read(self, request: Any, doing: str, seconds: float) -> Any:
        """The answer to a ``RangeRequest``, or to a ``TxnRequest`` that writes nothing. If the connection breaks, it is
        sent again within the same deadline, which is safe only because it is a read."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        is_range = isinstance(request, rpc.RangeRequest)

        def method(connection: Connection) -> Any:
            return connection.kv.Range if is_range else connection.kv.Txn

        async def ask() -> Any:
            while True:
                try:
                    return await self.call(method, request, until - loop.time())
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE or loop.time() + AGAIN_SECONDS >= until:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)

        return await self.ask(ask, doing)

    def told(self, revision: int) -> None:
        """Note a revision that a watch delivered."""
        self._newest = self._newest._replace(revision=max(revision, self._newest.revision))

    async def write(self, request: Any, doing: str, seconds: float, wrote: Callable[[Any], bool]) -> Any:
        """The answer to a ``TxnRequest``; ``wrote`` as in ``ask``."""
        return await self.ask(lambda: self.call(lambda at: at.kv.Txn, request, seconds), doing, wrote)

    async def still_there(self, key: bytes, doing: str) -> None:
        """Read something, to detect an etcd that is older than it was. :raises MetadataWentBack: it is."""
        await self.read(rpc.RangeRequest(key=key, count_only=True), doing, REQUEST_TIMEOUT)

    def _is_older(self, why: str) -> None:
        if not self._older:
            who = "Was a backup restored while this broker was running?"
            self._older = f"etcd at {self.where} went back in time: {why}. {who}"
            self._went_back(self._older)

    def _check_older(self, doing: str) -> None:
        if self._older:
            raise MetadataWentBack(f"{doing}: {self._older}")

    async def close(self) -> None:
        await self._connections.close()

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn gRPC's errors into the port's. ``doing`` begins the message: "reading /a/b"."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self.translated(error, doing) from error
        except grpc.aio.UsageError as error:
            raise MetadataError(
                f"{doing}: the connection to etcd at {self.where} was closed by this process"
            ) from error

    def no_answer(self, doing: str, why: str = "no answer in time") -> MetadataUnavailable:
        return MetadataUnavailable(
            f"{doing}: etcd at {self.where} does not answer ({why}): is it running and reachable?"
        )

    def translated(self, error: grpc.aio.AioRpcError, doing: str) -> MetadataError:
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.NOT_FOUND and "lease" in details:
            return LeaseExpired(f"{doing}: the lease is gone: take a new one and create again what it protected")
        if is_passing(error):
            return self.no_answer(doing, f"{code.name.lower()}: {details}")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in details:
            return MetadataFull(
                f"{doing}: etcd at {self.where} is full ({details}): compact and defragment it or raise "
                "--quota-backend-bytes, then run `etcdctl alarm disarm`"
            )
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return MetadataUnavailable(f"{doing}: etcd at {self.where} is overloaded ({details}): try again later")
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return MetadataLoginRefused(
                f"{doing}: etcd at {self.where} does not let this user read and write the keys of this version "
                f"({details}): `meridian secure-etcd` of this version grants that"
            )
        if "user name is empty" in details:
            return MetadataError(
                f"{doing}: etcd at {self.where} requires a password: "
                "set metadataStoreUser and metadataStorePasswordFile"
            )
        return MetadataError(f"{doing}: etcd at {self.where} refused ({code.name.lower()}: {details})")


def is_compacted(error: grpc.aio.AioRpcError) -> bool:
    """Whether a pinned revision was compacted, so that the read has to start again at the newest one."""
    return error.code() == grpc.StatusCode.OUT_OF_RANGE and "compacted" in (error.details() or "")
