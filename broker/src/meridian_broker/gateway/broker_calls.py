# SPDX-License-Identifier: Apache-2.0
"""Forwards requests of an admin client to the brokers of this region that can answer them, on the client's behalf.

A request may concern topics that several brokers serve. The broker that gets it asks each of them for its part with the
client's own credentials, as if the client had followed a redirect, which it cannot do to several brokers at once.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import aiohttp
from yarl import URL

from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.tls import ContextSource

CONNECT_SECONDS: Final = 4.0
ANSWER_MAX: Final = 64 << 20
"""Size limit of an answer, in bytes."""
CHUNK: Final = 1 << 16
REASON_MAX: Final = 500
REDIRECTS_MAX: Final = 5
"""Redirects to follow, as the owner of a topic may change in the meantime."""
REDIRECT: Final = 307


class BrokerAway(ClientError):
    """The broker cannot be reached, or did not answer in time. The message completes a sentence."""


class BrokerCalls:
    """Calls brokers of this region, each time over a new connection."""

    def __init__(self, tls: ContextSource | None) -> None:
        """:param tls: for ``https://``; None: trust the authorities of the system."""
        self._tls = tls

    async def ask(
        self, url: str, method: str, path: str, body: bytes, authorization: str | None, *, seconds: float
    ) -> tuple[int, bytes]:
        """Send one request. Returns the status and body of the answer.

        :param url: of the broker's admin API.
        :param path: already quoted; may have a query.
        :param authorization: the client's ``Authorization`` header.
        :raises BrokerAway: there was no answer.
        """
        target = URL(url.rstrip("/") + path, encoded=True)
        headers = {"Content-Type": "application/json"} if body else {}
        if authorization is not None:
            headers["Authorization"] = authorization
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        secured = True if self._tls is None else self._tls()
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                for _ in range(REDIRECTS_MAX):
                    async with session.request(
                        method, target, data=body or None, headers=headers, ssl=secured, allow_redirects=False
                    ) as answer:
                        if answer.status != REDIRECT:
                            return answer.status, await _content(answer)
                        target = URL(answer.headers["Location"], encoded=True)
        except TimeoutError:
            raise BrokerAway(f"{url} did not answer within {seconds:.0f} s") from None
        except (aiohttp.ClientError, ssl.SSLError, KeyError, ValueError) as error:
            raise BrokerAway(f"{url} cannot be asked: {error}") from None
        raise BrokerAway(f"{url} redirected {REDIRECTS_MAX} times: ownership is changing")

    @asynccontextmanager
    async def stream(
        self, url: str, path: str, authorization: str | None, *, seconds: float
    ) -> AsyncIterator[Streamed]:
        """GET an answer of any size, which is read only as fast as its user takes it.

        :param seconds: how long the broker may send nothing.
        :raises BrokerAway: there was no answer.
        """
        target = URL(url.rstrip("/") + path, encoded=True)
        headers = {} if authorization is None else {"Authorization": authorization}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=seconds)
        secured = True if self._tls is None else self._tls()
        async with aiohttp.ClientSession(timeout=timeout) as session:
            try:
                answer = await session.get(target, headers=headers, ssl=secured, allow_redirects=False)
            except (aiohttp.ClientError, TimeoutError, ssl.SSLError, ValueError) as error:
                raise BrokerAway(f"{url} cannot be asked: {error}") from None
            try:
                yield Streamed(answer.status, _chunks(answer, url))
            finally:
                answer.close()  # nobody reads the rest


class Streamed(NamedTuple):
    """An answer that is being received."""

    status: int
    chunks: AsyncIterator[bytes]
    """Raises ``BrokerAway`` if the answer ends early."""

    async def reason(self) -> str:
        """The reason of a refusal. :raises BrokerAway: the answer ends early."""
        data = bytearray()
        async for part in self.chunks:
            data += part
            if len(data) > CHUNK:
                break
        try:
            return str(json.loads(data)["reason"])[:REASON_MAX]
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"it answered {self.status}"


async def _chunks(answer: aiohttp.ClientResponse, url: str) -> AsyncIterator[bytes]:
    try:
        async for part in answer.content.iter_chunked(CHUNK):
            yield part
    except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
        raise BrokerAway(f"{url} broke off its answer: {error}") from None


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        data += part
        if len(data) > ANSWER_MAX:
            raise aiohttp.ClientPayloadError(f"more than {ANSWER_MAX >> 20} MiB")
    return bytes(data)
