# SPDX-License-Identifier: Apache-2.0
"""Many reads, or many transactions, in one request to etcd.

A broker that opens a thousand topics reads and writes a record of each, and a request costs Python and etcd far more
than its content. So everything that is requested while ``UNDER_WAY`` requests are in flight is sent together: reads as
one transaction of ranges, in which the same key is read once; writes as transactions within a transaction, each with
its own checks, in one commit. A request without others waiting is sent at once, unchanged.

The result is always one that the same requests could have had one after another. etcd evaluates all checks, including
those of inner transactions, before it writes anything, so no transaction is combined with another one that writes a key
which it checks or writes. If etcd refuses such a request, none of it was done, and its parts are sent one by one: an
invalid request fails only for its own caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aetcd import rpc

from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.metadata.store import MetadataError, MetadataFull, MetadataUnavailable, MetadataWentBack

UNDER_WAY: Final = 2
"""Requests of one kind in flight at once; later ones wait for the first answer."""

READS_MAX: Final = 64
"""Keys in one read request. Their values, of at most 1 MiB each, fit into one answer."""

WRITES_MAX: Final = 48
"""Transactions in one request, and operations in each: etcd counts both, and allows 128 together."""

BYTES_MAX: Final = 1 << 20
"""Size limit of one write request, unless a single transaction is larger. etcd refuses requests over 1.5 MiB."""


@dataclass(slots=True, eq=False)
class Wanted:
    """A read or a transaction with a waiting caller."""

    request: Any
    doing: str
    until: float
    answer: asyncio.Future[Any]
    written: frozenset[bytes] = frozenset()
    touched: frozenset[bytes] = frozenset()
    puts: bool = False
    alone: bool = False


@dataclass(slots=True)
class _Line:
    """The queue of one kind, reads or writes."""

    waiting: deque[Wanted] = field(default_factory=deque)
    under_way: int = 0
    is_called: bool = False


class Together:
    """See the module's text."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._reads, self._writes = _Line(), _Line()
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, key: bytes, doing: str, seconds: float) -> Any:
        """The ``RangeResponse`` for one key. It may wait ``seconds`` to be sent, and then take as long again.

        :raises MetadataError: as ``EtcdChannel.read``.
        """
        wanted = self._wanted(rpc.RangeRequest(key=key), doing, seconds)
        return await self._ask(self._reads, wanted)

    async def read_many(self, wanted: Sequence[tuple[bytes, str]], seconds: float) -> list[Any]:
        """As ``read``, for several keys, each with a description for errors."""
        answers = [
            self._queue(self._reads, self._wanted(rpc.RangeRequest(key=k), doing, seconds)) for k, doing in wanted
        ]
        return await asyncio.gather(*answers)

    async def write(self, request: Any, doing: str, seconds: float) -> Any:
        """The ``TxnResponse`` of a transaction that puts and deletes single keys; time as in ``read``.

        :raises MetadataError: as ``EtcdChannel.write``.
        """
        wanted = self._wanted(request, doing, seconds)
        puts = [one.request_put for one in request.success if one.HasField("request_put")]
        deletes = [one.request_delete_range for one in request.success if one.HasField("request_delete_range")]
        wanted.puts = bool(puts)
        wanted.written = frozenset(one.key for one in (*puts, *deletes))
        wanted.touched = wanted.written | {check.key for check in request.compare}
        # etcd fails the whole request if one of its leases is gone.
        wanted.alone = max(len(request.success), len(request.compare)) > WRITES_MAX or any(one.lease for one in puts)
        return await self._ask(self._writes, wanted)

    async def close(self) -> None:
        """Wait for requests in flight, each until its deadline. Later requests fail with the channel."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def _wanted(self, request: Any, doing: str, seconds: float) -> Wanted:
        return Wanted(request, doing, self._loop.time() + seconds, self._loop.create_future())

    async def _ask(self, line: _Line, wanted: Wanted) -> Any:
        return await self._queue(line, wanted)

    def _queue(self, line: _Line, wanted: Wanted) -> asyncio.Future[Any]:
        line.waiting.append(wanted)
        if not line.is_called:
            line.is_called = True
            self._loop.call_soon(self._send, line)  # requests of the same turn of the loop are sent together
        return wanted.answer

    def _send(self, line: _Line) -> None:
        line.is_called = False
        while line.waiting and line.under_way < UNDER_WAY:
            some = _next_reads(line.waiting) if line is self._reads else next_writes(line.waiting)
            if some:
                line.under_way += 1
                task = self._loop.create_task(self._carry(line, some), name=f"etcd: {some[0].doing}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _carry(self, line: _Line, some: list[Wanted]) -> None:
        try:
            await self._answer_all(line, some)
        finally:
            line.under_way -= 1
            self._send(line)

    async def _answer_all(self, line: _Line, some: list[Wanted]) -> None:
        ask = self._ask_reads if line is self._reads else self._ask_writes
        try:
            answers = await ask(some)
        except (MetadataUnavailable, MetadataWentBack) as error:
            if line is self._reads and len(some) > 1 and isinstance(error, MetadataFull):
                for one in some:  # a full etcd refuses every transaction, even one that only reads
                    await self._answer_all(line, [one])
                return
            _fail(some, error)
        except MetadataError as error:
            if len(some) == 1:
                _fail(some, error)
                return
            for one in some:
                await self._answer_all(line, [one])
        except Exception as error:  # every waiting caller must get an answer
            _fail(some, error)
        else:
            for one, answer in zip(some, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)

    async def _ask_reads(self, some: list[Wanted]) -> list[Any]:
        seconds = self._left(some)
        if len(some) == 1:
            return [await self._channel.read(some[0].request, some[0].doing, seconds)]
        places = {key: place for place, key in enumerate(dict.fromkeys(one.request.key for one in some))}
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key)) for key in places])
        answer = await self._channel.read(request, _doing(some), seconds)
        return [answer.responses[places[one.request.key]].response_range for one in some]

    async def _ask_writes(self, some: list[Wanted]) -> list[Any]:
        seconds = self._left(some)
        if len(some) == 1:
            one = some[0]
            answer = await self._channel.write(one.request, one.doing, seconds, lambda got: one.puts and got.succeeded)
            return [answer]
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_txn=one.request) for one in some])

        def wrote(got: Any) -> bool:
            pairs = zip(some, got.responses, strict=True)
            return any(one.puts and inner.response_txn.succeeded for one, inner in pairs)

        answer = await self._channel.write(request, _doing(some), seconds, wrote)
        return [_inner(one.response_txn, answer) for one in answer.responses]

    def _left(self, some: list[Wanted]) -> float:
        """Seconds left for the newest of them: the others waited for earlier requests, which had no more time."""
        return max(0.001, max(one.until for one in some) - self._loop.time())


def _next_reads(waiting: deque[Wanted]) -> list[Wanted]:
    some: list[Wanted] = []
    while waiting and len(some) < READS_MAX:
        if not (one := waiting.popleft()).answer.done():  # its caller may have been cancelled
            some.append(one)
    return some


def next_writes(waiting: deque[Wanted]) -> list[Wanted]:
    """As many from the front of the queue as can be combined in one request."""
    some: list[Wanted] = []
    written: set[bytes] = set()
    size = 0
    while waiting and len(some) < WRITES_MAX:
        one = waiting[0]
        if not one.answer.done():
            size += one.request.ByteSize()
            if some and (one.alone or size > BYTES_MAX or not written.isdisjoint(one.touched)):
                break
            some.append(one)
            written |= one.written
        waiting.popleft()
        if one.alone and some:
            break
    return some


def _doing(some: list[Wanted]) -> str:
    """For errors: a description of combined requests of one kind."""
    return f"{some[0].doing}, together with {len(some) - 1} more"


def _inner(answer: Any, outer: Any) -> Any:
    """Only the outer answer carries the revision, which all inner ones share."""
    answer.header.CopyFrom(outer.header)
    return answer


def _fail(some: list[Wanted], error: Exception) -> None:
    for one in some:
        if not one.answer.done():
            one.answer.set_exception(error)
