# SPDX-License-Identifier: Apache-2.0
"""Channels to etcd's endpoints, and the token that etcd issues for user name and password.

gRPC for Python balances between addresses only when one name resolves to all of them, so the choice is made here: one
endpoint is used until it fails, then the next. The previous channel stays open for the watches on it. They end by
themselves when their member stops or loses its leader, which is why every stream requires a leader.

etcd's tokens expire, and an etcd that restarts forgets them. A request refused for its token had no effect, so it is
sent once more with a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from aetcd import rpc

from meridian_broker.engines.etcd.address import Endpoint, Login
from meridian_broker.metadata.store import MetadataError, MetadataLoginRefused, MetadataUnavailable

CONNECT_SECONDS: Final = 1.0
"""How long one endpoint of several may take to accept a connection before the next is tried."""

ROUND_SECONDS: Final = 0.1
"""Pause after every endpoint has refused."""

OPTIONS: Final = (
    # gRPC's own reconnect back-off grows to two minutes; a region's metadata store is near and should be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC resolves a name at most every 30 s by default; a restarted pod has a new address at once.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # A peer that vanished silently is noticed after 15 s. etcd allows a ping every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # One page of a scan: 500 values of at most 1 MiB would exceed it, ordinary records never do.
    ("grpc.max_receive_message_length", 256 << 20),
)

_LEADER: Final = ("hasleader", "true")
"""A stream with this header ends when its member has no leader. Without it, the stream would just stay silent."""

_TOKEN_REFUSALS: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")

_PASSING: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    }
)

Headers = tuple[tuple[str, str], ...]


def is_passing(error: grpc.aio.AioRpcError) -> bool:
    """Whether the same request may succeed later, or at another endpoint."""
    return error.code() in _PASSING


def is_about_token(details: str) -> bool:
    """Whether etcd refused the token, not the request, so that a new token may help."""
    return any(refusal in details for refusal in _TOKEN_REFUSALS)


class Connection:
    """A channel to one endpoint, with the stubs of etcd's services."""

    def __init__(self, endpoint: Endpoint, tls: tuple[bytes | None, bytes | None, bytes | None]) -> None:
        self.tls = tls
        if endpoint.is_tls:
            credentials = grpc.ssl_channel_credentials(*tls)
            self.channel = grpc.aio.secure_channel(endpoint.target, credentials, options=OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(endpoint.target, options=OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.leases = rpc.LeaseStub(self.channel)
        self.watches = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)

    async def stands_within(self, seconds: float) -> bool:
        """Connect, if it is not connected yet. False: it was refused, or took longer."""
        try:
            async with asyncio.timeout(seconds):
                while (state := self.channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await self.channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        return True


class Connections:
    """The endpoints of one etcd; one of them is in use."""

    def __init__(self, endpoints: Sequence[Endpoint], login: Login) -> None:
        """:raises MetadataError: a file of ``login`` cannot be read."""
        self._endpoints = endpoints
        self._login = login
        self._made: dict[int, Connection] = {}
        self._at = 0
        self._token = ""
        self._was_let_in = False
        self._one_login = asyncio.Lock()
        self.is_closed = False
        self._connection()

    @property
    def now(self) -> Connection:
        """The connection for new requests."""
        return self._made[self._at]

    async def call(self, method: Callable[[Connection], Any], request: Any, seconds: float) -> Any:
        """The answer to one request, connecting and logging in included.

        :param method: picks the stub's method.
        :raises grpc.aio.AioRpcError: etcd refused it, or there was no answer in time.
        :raises MetadataError: etcd rejects the login.
        """
        until = asyncio.get_running_loop().time() + seconds
        try:
            return await self._call_once(method, request, until)
        except grpc.aio.AioRpcError as error:
            if not (self._login.user and is_about_token(error.details() or "")):
                raise
        return await self._call_once(method, request, until)

    async def _call_once(self, method: Callable[[Connection], Any], request: Any, until: float) -> Any:
        connection, headers = await self.opened(until)
        try:
            return await method(connection)(request, timeout=_left(until), wait_for_ready=True, metadata=headers)
        except grpc.aio.AioRpcError as error:
            self.failed(connection, headers, error)
            raise

    async def opened(self, until: float, *, for_stream: bool = False) -> tuple[Connection, Headers]:
        """A connection, and the headers for a request or stream on it.

        :param until: a time of the loop's clock; if no endpoint answers by then, the request itself reports it.
        :raises MetadataError: etcd rejects the login.
        """
        if len(self._endpoints) > 1:
            while not await self.now.stands_within(min(CONNECT_SECONDS, _left(until))):
                if asyncio.get_running_loop().time() >= until:
                    break
                self._turn(self.now)
                await asyncio.sleep(0 if self._at else ROUND_SECONDS)
        connection, headers = self.now, (_LEADER,) if for_stream else ()
        if self._login.user:
            headers = (*headers, ("token", await self._logged_in(connection, until)))
        return connection, headers

    def failed(self, connection: Connection, headers: Headers, error: grpc.aio.AioRpcError) -> None:
        """A request or stream with these headers failed: the next one uses another endpoint, or another token."""
        if is_about_token(error.details() or ""):
            self.forget_token(headers)
        elif is_passing(error):
            self._turn(connection)

    def forget_token(self, headers: Headers) -> None:
        """etcd no longer knows the token in these headers. A newer token is kept: many requests may fail on one void
        token."""
        if dict(headers).get("token") == self._token:
            self._token = ""

    async def close(self) -> None:
        self.is_closed = True
        await asyncio.gather(*(one.channel.close() for one in self._made.values()))

    def _turn(self, connection: Connection) -> None:
        """Use the next endpoint with the current TLS files, unless another one was chosen in the meantime."""
        if connection is self.now and not self.is_closed:
            self._at = (self._at + 1) % len(self._endpoints)
            self._connection()

    def _connection(self) -> None:
        endpoint = self._endpoints[self._at]
        known = self._made.get(self._at)
        try:
            tls = self._login.tls_files() if endpoint.is_tls else (None, None, None)
        except MetadataError:
            if known is None:
                raise
            return  # a file is being replaced: keep using the existing connection
        if known is None or known.tls != tls:
            self._made[self._at] = Connection(endpoint, tls)  # the previous one closes with the last stream on it

    async def _logged_in(self, connection: Connection, until: float) -> str:
        async with self._one_login:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._login.user, password=self._login.password())
                try:
                    answer = await connection.auth.Authenticate(request, timeout=_left(until), wait_for_ready=True)
                except grpc.aio.AioRpcError as error:
                    self._check_refusal(error)
                    self.failed(connection, (), error)
                    raise
                self._token, self._was_let_in = answer.token, True
            return self._token

    def _check_refusal(self, error: grpc.aio.AioRpcError) -> None:
        """:raises MetadataLoginRefused: etcd answers, and rejects this user."""
        where, details = ", ".join(map(str, self._endpoints)), error.details() or ""
        if "authentication is not enabled" in details:
            raise MetadataLoginRefused(
                f"etcd at {where} has authentication disabled, so anyone can read and change everything: "
                "enable it, or remove metadataStoreUser from the settings"
            ) from error
        if "authentication failed" in details:
            # After an earlier success, the password may be about to change: first in etcd, then in the file.
            kind = MetadataUnavailable if self._was_let_in else MetadataLoginRefused
            raise kind(
                f"etcd at {where} rejects user {self._login.user!r} with the password in {self._login.password_file}"
            ) from error


def _left(until: float) -> float:
    """Seconds left, always more than 0, so that a late request still reports why it failed."""
    return max(0.001, until - asyncio.get_running_loop().time())
