# SPDX-License-Identifier: Apache-2.0
"""A thin way to speak to etcd: aetcd's generated stubs over our own channel, and errors in our words.

aetcd's own client delivers watch events one by one (a transaction falls apart), queues without a bound and dies with
the server; its message classes and stubs are sound, so those are what we use. Every request has a deadline and waits
for a connection until then: an etcd that restarts within it is not noticed.

An etcd that was restored from an older copy is. Each answer says of which cluster, leader's term and revision it is,
and with linearizable requests, the only ones made here, none of these ever goes back: an answer is at least as new as
all that came before its request was sent, and a write is newer. So the first answer of an older etcd is known as such
before anybody hears it, and after it nothing is asked any more (``MetadataWentBack``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
from aetcd import rpc

from meridian_broker.metadata.store import LeaseExpired, MetadataError, MetadataUnavailable, MetadataWentBack

REQUEST_TIMEOUT = 5.0
"""Seconds for one request, connecting included."""
AGAIN_SECONDS = 0.1
"""A read that etcd could not answer is asked again so long after it."""

_CHANNEL_OPTIONS = (
    # gRPC's own reconnect back-off grows to two minutes; a region's metadata store is near and should be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A peer that vanished without a word is noticed after 15 s. etcd allows a ping every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # One page of a scan: 500 values of at most 1 MiB would exceed it, ordinary records never do.
    ("grpc.max_receive_message_length", 256 << 20),
)


class _Newest(NamedTuple):
    """What the answers said last of where etcd is. All are 0 before the first one."""

    cluster: int
    term: int
    revision: int


class EtcdChannel:
    """One connection to one etcd, and its stubs."""

    def __init__(self, url: str, went_back: Callable[[str], None] = lambda _: None) -> None:
        """
        :param went_back: hears once, with the reason, that etcd is older than it was.
        :raises MetadataError: the URL is not ``http://host:port``.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None:
            raise MetadataError(f"{url!r} is not an etcd address: it has to look like http://127.0.0.1:2379")
        self.url = url
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._channel = rpc.insecure_channel(f"{host}:{parts.port}", options=_CHANNEL_OPTIONS)
        self.kv = rpc.KVStub(self._channel)
        self.leases = rpc.LeaseStub(self._channel)
        self.watches = rpc.WatchStub(self._channel)
        self._newest = _Newest(0, 0, 0)
        self._older = ""
        """Why nothing is asked any more; empty while etcd only went forward."""
        self._went_back = went_back

    async def ask(self, request: Callable[[], Awaitable[Any]], doing: str, *, writes: bool = False) -> Any:
        """The answer to one linearizable request.

        :param writes: what succeeds changes something, so that it has a revision of its own.
        :raises MetadataWentBack: etcd is older than it was. Of a write nobody can say whether it was done.
        """
        self._check_older(doing)
        known = self._newest
        with self.errors(doing):
            answer = await request()
        said = answer.header
        least = known.revision + (1 if writes and answer.succeeded else 0)
        if known.cluster and (said.cluster_id != known.cluster or said.raft_term < known.term or said.revision < least):
            self._is_older(f"it is at revision {said.revision} of term {said.raft_term}, and was at {known.revision}")
        self._check_older(doing)
        term, revision = max(said.raft_term, self._newest.term), max(said.revision, self._newest.revision)
        self._newest = _Newest(said.cluster_id, term, revision)
        return answer

    async def read(self, request: Any, doing: str, seconds: float) -> Any:
        """The answer to a ``RangeRequest``. One that was on its way when the connection broke is asked again, in the
        same time; of a write nobody could say whether it was done."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def ask() -> Any:
            while True:
                try:
                    return await self.kv.Range(request, timeout=until - loop.time(), wait_for_ready=True)
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE or loop.time() + AGAIN_SECONDS >= until:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)

        return await self.ask(ask, doing)

    def told(self, revision: int) -> None:
        """A watch heard of a revision."""
        self._newest = self._newest._replace(revision=max(revision, self._newest.revision))

    async def still_there(self, doing: str) -> None:
        """Ask anything, so that an etcd that is older than it was is noticed. :raises MetadataWentBack: it is."""
        await self.read(rpc.RangeRequest(key=b"/", count_only=True), doing, REQUEST_TIMEOUT)

    def _is_older(self, why: str) -> None:
        if not self._older:
            who = "Somebody restored a copy while this broker was running"
            self._older = f"etcd at {self.url} is older than it was: {why}. {who}"
            self._went_back(self._older)

    def _check_older(self, doing: str) -> None:
        if self._older:
            raise MetadataWentBack(f"{doing}: {self._older}")

    async def close(self) -> None:
        await self._channel.close()

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn gRPC's errors into the port's. ``doing`` begins the message: "reading /a/b"."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self.translated(error, doing) from error
        except grpc.aio.UsageError as error:
            raise MetadataError(f"{doing}: the connection to etcd at {self.url} was closed by this process") from error

    def no_answer(self, doing: str, why: str = "no answer in time") -> MetadataUnavailable:
        return MetadataUnavailable(f"{doing}: etcd at {self.url} does not answer ({why}): is it running and reachable?")

    def translated(self, error: grpc.aio.AioRpcError, doing: str) -> MetadataError:
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.NOT_FOUND and "lease" in details:
            return LeaseExpired(f"{doing}: the lease is gone: take a new one and claim again what it protected")
        if code in _PASSING:
            return self.no_answer(doing, f"{code.name.lower()}: {details}")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return MetadataUnavailable(
                f"{doing}: etcd at {self.url} is full or overloaded ({details}): raise its quota, or compact it"
            )
        return MetadataError(f"{doing}: etcd at {self.url} refused ({code.name.lower()}: {details})")


_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    }
)


def is_compacted(error: grpc.aio.AioRpcError) -> bool:
    """Whether a pinned revision is gone: the read has to begin anew at the newest one."""
    return error.code() == grpc.StatusCode.OUT_OF_RANGE and "compacted" in (error.details() or "")
