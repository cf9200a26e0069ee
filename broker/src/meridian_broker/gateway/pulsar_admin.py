# SPDX-License-Identifier: Apache-2.0
"""A replicator's requests to the admin API of a region of Apache Pulsar, as a client with a token.

A partition exists there only once its partitioned topic has as many partitions. The count only ever grows, so a region
with more is left alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.links import Resolver
from meridian_broker.gateway.remote_admin import RemoteAdminFailed
from meridian_broker.gateway.tls import ContextSource
from meridian_broker.wire.pulsar.topic_name import in_path

TIMEOUT: Final = 10.0
"""Seconds for one request."""
TOGETHER: Final = 8
"""Concurrent deduplication queries: after a reconnect every topic sends one."""
ANSWER_MAX: Final = 1 << 16
"""Bytes of an answer that are read."""
REASON_MAX: Final = 200


class PulsarAdmin:
    """Requests to all regions of Apache Pulsar."""

    def __init__(self, resolve: Resolver, token: Callable[[], bytes] | None, tls: ContextSource | None) -> None:
        """:param token: returns the token to send, may raise ``OSError``; None: send none."""
        self._resolve = resolve
        self._token = token
        self._tls = tls
        self._asking = asyncio.Semaphore(TOGETHER)

    async def ensure_partitions(self, region: str, topic: str, partitions: int) -> None:
        """Raise the number of partitions of ``topic`` (a partitioned topic's own name) in ``region`` to at least this.

        :raises RemoteAdminFailed: the region cannot be reached, or refuses.
        """
        url = f"{self._base(region)}/{in_path(topic)}/partitions"
        async with self._session(url) as session:
            await self._raise_to(session, url, region, topic, partitions)

    async def drops_repeats(self, region: str, topic: str) -> bool | None:
        """Whether deduplication is on there for a topic, not a partition; None: the region does not say, or the topic
        is one of Pulsar's own, such as ``__change_events``, which it never deduplicates.

        :raises RemoteAdminFailed: the region cannot be reached.
        """
        if topic.rpartition("/")[2].startswith("__"):
            return None
        base = self._base(region)
        places = in_path(topic), f"namespaces/{in_path(topic).partition('/')[2].rpartition('/')[0]}"
        questions = f"{base}/{places[0]}/deduplicationEnabled?applied=true", f"{base}/{places[1]}/deduplication"
        for url in questions:  # a region may not support topic policies
            async with self._asking, self._session(url) as session:
                status, body = await self._ask(session, "GET", url, None)
            if status == 200 and body.strip() in ("true", "false"):
                return body.strip() == "true"
        return None

    def _base(self, region: str) -> str:
        try:
            place = self._resolve(region)
        except ClientError as error:
            raise RemoteAdminFailed(str(error)) from None
        if place is None or not place[1]:
            raise RemoteAdminFailed(f"{region} has no admin URL (serviceUrl), which partitioned topics need")
        return f"{place[1].split(',')[0].rstrip('/')}/admin/v2"

    @asynccontextmanager
    async def _session(self, url: str) -> AsyncIterator[aiohttp.ClientSession]:
        """:raises RemoteAdminFailed: a request in it fails."""
        try:
            headers = {} if self._token is None else {"Authorization": f"Bearer {self._token().decode()}"}
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
                yield session
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise RemoteAdminFailed(f"{url} cannot be asked: {error or type(error).__name__}") from error

    async def _raise_to(
        self, session: aiohttp.ClientSession, url: str, region: str, topic: str, partitions: int
    ) -> None:
        status, body = await self._ask(session, "GET", url, None)
        count = _count(body) if status == 200 else 0
        if status not in (200, 404):
            raise RemoteAdminFailed(f"{region} answered {status} when asked for the partitions of {topic}: {body}")
        if count >= partitions:
            return
        status, body = await self._ask(session, "POST" if count else "PUT", url, partitions)
        if status == 409:  # another replicator, or a client, was faster
            status, body = await self._ask(session, "GET", url, None)
            if status == 200 and _count(body) >= partitions:
                return
            raise RemoteAdminFailed(
                f"{region} has {topic} with {_count(body)} partitions, this region with {partitions}: make them equal"
            )
        if status >= 300:
            raise RemoteAdminFailed(
                f"{region} answered {status} to a request for {partitions} partitions of {topic}: {body}"
            )

    async def _ask(self, session: aiohttp.ClientSession, method: str, url: str, number: int | None) -> tuple[int, str]:
        context = True if self._tls is None else self._tls()
        async with session.request(method, url, json=number, ssl=context, max_redirects=5) as response:
            said = await response.content.read(ANSWER_MAX)
            text = said.decode(errors="replace")
            return response.status, text if response.status < 300 else text[:REASON_MAX]


def _count(body: str) -> int:
    try:
        return int(json.loads(body)["partitions"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
