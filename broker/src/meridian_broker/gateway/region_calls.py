# SPDX-License-Identifier: Apache-2.0
"""Requests to the admin REST of other regions, each with a proof that it is ours (see ``wire.peer_requests``)."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
from yarl import URL

from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.tls import ContextSource, channel_binding
from meridian_broker.wire.peer_proof import NotProven
from meridian_broker.wire.peer_requests import PROOF_HEADER, SCHEME, Call, Caller, Signed

CONNECT_SECONDS: Final = 4.0
"""How long another region may take to accept a connection: TCP tries three times within it. If the network loses every
packet, there is no answer at all, and our own caller waits this long."""
ANSWER_MAX: Final = 64 << 20
"""Limit on an answer in bytes. It is read before its sender is verified."""
UNAUTHORIZED: Final = 401
REDIRECT: Final = 307
"""Another broker of the region serves the topic. The body is the URL: unlike headers, it is covered by the proof."""
REDIRECTS_MAX: Final = 5
"""Redirects to follow, as the owner of a topic may change meanwhile."""
CALLERS_MAX: Final = 1000
"""Callers to remember, one per region and address."""
REASON_MAX: Final = 200

Resolver = Callable[[str], "tuple[str, str | None] | None"]
"""Region -> (service URL, admin URL); None: not known at present."""


class CallFailed(ClientError):
    """The other region cannot be reached, or the answer did not come from it. The message completes a sentence."""


class RegionCalls:
    """Sends requests to other regions on behalf of this one."""

    def __init__(
        self,
        identity: PeerIdentity,
        resolve: Resolver,
        tls: ContextSource | None,
        now_ms: Callable[[], int],
    ) -> None:
        """:param tls: for ``https://``; None: ``http://``. :param now_ms: a monotonic clock."""
        self._identity = identity
        self._resolve = resolve
        self._tls = tls
        self._now_ms = now_ms
        self._callers: dict[tuple[str, str], Caller] = {}
        """Keyed by region and address."""

    async def ask(
        self, region: str, method: str, path: str, body: object = None, *, seconds: float
    ) -> tuple[int, bytes]:
        """Send one request; ``path`` is quoted already. Returns the status and body of the region's answer.

        If the region has several addresses, the first one that accepts a connection is used.

        :param body: sent as JSON; None: nothing.
        :raises CallFailed: there was no answer, or none from the region itself.
        """
        try:
            place = self._resolve(region)
        except ClientError as error:
            raise CallFailed(str(error)) from None
        if place is None or not place[1]:
            raise CallFailed("it has no admin URL")
        data = b"" if body is None else json.dumps(body).encode()
        return await self.ask_at(region, place[1], method, path, data, seconds=seconds)

    async def ask_at(
        self, region: str, address: str, method: str, path: str, data: bytes, *, seconds: float
    ) -> tuple[int, bytes]:
        """As ``ask``, but to brokers at an address: of another region, or of this one.

        :raises CallFailed: as ``ask``.
        """
        if not self._identity.secrets():
            raise CallFailed("this region has no peer secret (peerTokenFile)")
        problems = []
        try:
            async with _Talk(self._tls, seconds) as talk:
                for base in _addresses(address):
                    try:
                        return await self._follow(talk, region, method, URL(base + path, encoded=True), data)
                    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                        problems.append(f"{base} {_reason(error, seconds)}")
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, NotProven, ValueError) as error:
            raise CallFailed(f"{address} {_reason(error, seconds)}") from None
        raise CallFailed("; ".join(problems))

    async def _follow(self, talk: _Talk, region: str, method: str, url: URL, data: bytes) -> tuple[int, bytes]:
        for _ in range(REDIRECTS_MAX):
            status, said = await self._ask(talk, self._caller(region, url), url, Call(method, url.raw_path_qs, data))
            if status != REDIRECT:
                return status, said
            url = URL(said.decode(), encoded=True)
        raise NotProven("redirect loop: ownership is changing")

    def _caller(self, region: str, url: URL) -> Caller:
        """The caller for a broker: handshakes are per broker."""
        key = (region, str(url.origin()))
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            caller = Caller(self._identity.region, region, self._identity.secrets, self._identity.random)
            self._callers[key] = caller
        return caller

    async def _ask(self, talk: _Talk, caller: Caller, url: URL, call: Call) -> tuple[int, bytes]:
        for last in (False, True):
            if not caller.has_greeted:
                await self._greet(talk, caller, url)
            signed: list[Signed] = []

            def sign(binding: bytes, signed: list[Signed] = signed) -> str:
                signed.append(caller.sign(call, binding, self._now_ms()))
                return signed[-1].header

            status, headers, body = await talk.say(call.method, url, call.body, sign)
            if status == UNAUTHORIZED and not last:
                caller.forget()  # it restarted, either side was suspended, or its secret changed
                continue
            caller.check(signed[-1], status, body, headers.get(PROOF_HEADER, ""))
            return status, body
        raise AssertionError

    async def _greet(self, talk: _Talk, caller: Caller, url: URL) -> None:
        said = ("", b"", b"")

        def sign(binding: bytes) -> str:
            nonlocal said
            said = *caller.greeting(), binding
            return said[0]

        status, headers, body = await talk.say("GET", url, b"", sign)
        challenge = headers.get("WWW-Authenticate", "")
        if status != UNAUTHORIZED or not challenge.startswith(SCHEME):
            raise NotProven(f"did not prove that it is that region; it answered {status}{_said(body)}")
        caller.challenged(challenge, said[1], said[2], self._now_ms())


class _Talk:
    """A session whose requests are signed once their connection is known."""

    def __init__(self, tls: ContextSource | None, seconds: float) -> None:
        self._ssl = True if tls is None else tls()
        self._sign: Callable[[bytes], str] = lambda _: ""
        talk = self

        class SignedRequest(aiohttp.ClientRequest):
            async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
                assert conn.transport is not None
                self.headers["Authorization"] = talk._sign(channel_binding(conn.transport))
                return await super().send(conn)

        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, request_class=SignedRequest)

    async def __aenter__(self) -> _Talk:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def say(
        self, method: str, url: URL, body: bytes, sign: Callable[[bytes], str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request. :param sign: returns the header for a connection with that binding."""
        self._sign = sign
        headers = {"Content-Type": "application/json"} if body else {}
        async with self._session.request(
            method, url, data=body or None, headers=headers, ssl=self._ssl, allow_redirects=False
        ) as response:
            parts, size = [], 0
            async for part in response.content.iter_chunked(1 << 16):
                parts.append(part)
                size += len(part)
                if size > ANSWER_MAX:
                    raise NotProven(f"answered more than {ANSWER_MAX >> 20} MiB")
            return response.status, response.headers, b"".join(parts)


def _addresses(url: str) -> list[str]:
    """``http://a:8080,b:8080`` -> each of them."""
    scheme, separator, places = url.partition("://")
    return [f"{scheme}{separator}{place.strip().rstrip('/')}" for place in places.split(",")]


def _said(body: bytes) -> str:
    """The reason given by a region that did not authenticate itself."""
    try:
        return f": {str(json.loads(body)['reason'])[:REASON_MAX]!r}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _reason(error: Exception, seconds: float) -> str:
    """Why there was no answer, in words for operators: the library's own messages are meant for developers."""
    if isinstance(error, NotProven):
        return str(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"did not accept a connection within {CONNECT_SECONDS:.0f} s"
    if isinstance(error, TimeoutError):
        return f"did not answer within {seconds:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"does not accept connections: {os.strerror(number) if number and number > 0 else error.os_error}"
    return f"broke the connection: {error or type(error).__name__}"
