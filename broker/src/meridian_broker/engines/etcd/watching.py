# SPDX-License-Identifier: Apache-2.0
"""A watch on etcd that survives etcd's restarts.

etcd keeps history, so nothing needs to be queued here: the stream is read only as fast as the watcher takes changes,
and changes beyond the stream's window wait in etcd. When the stream breaks, it is reopened right after the last
revision seen. Changes are lost only if etcd has compacted that revision since, and then the watch raises an error.

With several endpoints it may be reopened at another one, since revisions belong to the cluster. etcd checks the token
only when a watch is opened, so a token that expires later does not matter.

An etcd restored from an older copy would deliver nothing until its revision reaches the old value. A restore restarts
etcd, so the stream breaks; a reopened watch checks that etcd is as new as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import operator
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import grpc
from aetcd import rpc

from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.engines.etcd.connection import Connection, Headers, is_about_token
from meridian_broker.metadata.limits import after_prefix
from meridian_broker.metadata.store import Change, MetadataError, MetadataUnavailable, Record

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between attempts to reopen a broken watch: doubling from the first to the longest."""

_DELETE = 1

T = TypeVar("T")


class EtcdWatch:
    """One watch of every key that starts with ``prefix``; paths are reported without the first ``strip`` characters."""

    def __init__(self, channel: EtcdChannel, prefix: str, strip: int) -> None:
        self._channel = channel
        self._prefix = prefix
        self._strip = strip
        self._next = 0
        """Revision to open at; 0 until the watch is first established."""
        self._pending: list[tuple[int, Change]] = []
        """Events of a response that arrives in fragments."""
        self._has_new_token = False
        """etcd refused the token, and a new one was taken since."""

    async def changes(self) -> AsyncGenerator[list[Change], None]:
        """Yields an empty list once established, then the changes of one revision at a time, forever.

        :raises MetadataUnavailable: etcd did not answer the first time.
        :raises MetadataError: etcd compacted changes that were missed, or refuses the watch.
        :raises MetadataWentBack: etcd is older than it was.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                async with contextlib.aclosing(self._one_stream()) as stream:
                    async for transaction in stream:
                        pause = FIRST_PAUSE
                        if transaction is not None:
                            yield transaction
            except _TokenRefused:
                continue
            except _Broken as error:
                if self._next == 0:
                    raise self._channel.no_answer(self._doing(), str(error)) from error.__cause__
            self._pending.clear()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _one_stream(self) -> AsyncGenerator[list[Change] | None, None]:
        """Changes until the stream breaks; None once a reopened one is established."""
        connection, headers = await self._logged_in()
        call = self._call(connection, headers)
        try:
            first_time = self._next == 0
            await self._open(call)
            if first_time:
                yield []
            else:
                await self._still_there()
                yield None
            while True:
                for transaction in await self._receive(call):
                    yield transaction
        except _Broken as error:
            if isinstance(error.__cause__, grpc.aio.AioRpcError):
                self._channel.failed(connection, headers, error.__cause__)
            raise
        except _TokenRefused:
            self._channel.forget_token(headers)
            raise
        finally:
            call.cancel()

    async def _logged_in(self) -> tuple[Connection, Headers]:
        try:
            with self._channel.errors(self._doing()):
                return await self._channel.opened(REQUEST_TIMEOUT)
        except MetadataUnavailable as error:
            raise _Broken(str(error)) from error

    def _call(self, connection: Connection, headers: Headers) -> Any:
        try:
            return connection.watches.Watch(wait_for_ready=True, metadata=headers)
        except grpc.aio.UsageError:
            raise self._closed() from None

    async def _open(self, call: Any) -> None:
        request = rpc.WatchCreateRequest(
            key=self._prefix.encode(),
            range_end=after_prefix(self._prefix).encode(),
            start_revision=self._next,
            progress_notify=True,
            fragment=True,
        )
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._guarded(call.write(rpc.WatchRequest(create_request=request)))
                response = await self._guarded(call.read())
        except TimeoutError:
            raise _Broken("no answer in time") from None
        self._check(response)
        if not response.created:
            raise MetadataError(f"{self._doing()}: etcd did not confirm the watch")
        self._has_new_token = False
        if self._next == 0:
            self._next = response.header.revision + 1

    async def _still_there(self) -> None:
        try:
            await self._channel.still_there(self._prefix.encode(), self._doing())
        except MetadataUnavailable as error:
            raise _Broken(str(error)) from error

    async def _receive(self, call: Any) -> list[list[Change]]:
        """The next response, as one list per revision; empty if it is incomplete or has nothing new."""
        response = await self._guarded(call.read())
        self._check(response)
        self._pending.extend((event.kv.mod_revision, self._change(event)) for event in response.events)
        if response.fragment:
            return []
        events, self._pending = self._pending, []
        if not events:
            # No changes up to this revision: a reopened stream need not ask for earlier ones.
            self._heard_upto(response.header.revision)
            return []
        transactions = [
            [change for _, change in group]
            for revision, group in itertools.groupby(events, key=operator.itemgetter(0))
            if revision >= self._next
        ]
        self._heard_upto(events[-1][0])
        return transactions

    def _heard_upto(self, revision: int) -> None:
        self._next = max(self._next, revision + 1)
        self._channel.told(revision)

    async def _guarded(self, awaitable: Awaitable[T]) -> T:
        """Await a call on the stream; a broken stream becomes :class:`_Broken`."""
        try:
            return await awaitable
        except grpc.aio.AioRpcError as error:
            raise _Broken(f"{error.code().name.lower()}: {error.details()}") from error
        except grpc.aio.UsageError:
            raise self._closed() from None
        except asyncio.CancelledError:
            # gRPC reports a channel closed under a stream as a cancellation; a real one is recorded in the task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if self._channel.is_closed:
                raise self._closed() from None
            raise _Broken("its channel was replaced") from None

    def _check(self, response: Any) -> None:
        if response is grpc.aio.EOF:
            raise _Broken("the stream ended")
        if response.compact_revision:
            raise MetadataError(
                f"{self._doing()}: etcd compacted the changes since revision {self._next}: scan and watch again"
            )
        if response.canceled and _is_about_watcher(response.cancel_reason) and not self._has_new_token:
            self._has_new_token = True
            raise _TokenRefused(response.cancel_reason)
        if response.canceled:
            raise MetadataError(f"{self._doing()}: etcd ended the watch ({response.cancel_reason})")

    def _change(self, event: Any) -> Change:
        path = event.kv.key.decode()[self._strip :]
        return Change(path, None if event.type == _DELETE else Record(event.kv.value, event.kv.mod_revision))

    def _doing(self) -> str:
        return f"watching {self._prefix[self._strip :]}"

    def _closed(self) -> MetadataError:
        return MetadataError(f"{self._doing()}: the metadata store was closed by this process")


def _is_about_watcher(reason: str) -> bool:
    """Whether etcd does not recognize the watcher. Older versions report an unknown token as missing permission."""
    return "permission denied" in reason or is_about_token(reason)


class _Broken(Exception):
    """The stream ended and should be reopened."""


class _TokenRefused(Exception):
    """etcd refused the token; a new one may help."""
