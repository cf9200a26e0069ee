# SPDX-License-Identifier: Apache-2.0
"""A replicator's requests to another region's admin API: a topic there needs as many partitions as here.

The count only ever grows (R41: counts merge by max), so a region with more is left alone. It ends with the topic, so
each request names the last deletion that this region knows of (R8): partitions from before it do not count."""

from __future__ import annotations

import asyncio
import json
from typing import Final, NamedTuple
from urllib.parse import quote

from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.region_calls import CallFailed, RegionCalls
from meridian_broker.positions import Stamp
from meridian_broker.wire.pulsar.topic_name import in_path

TIMEOUT: Final = 10.0
"""Seconds for one request."""
DELETED_LATER: Final = 412
"""Answer of a region that knows of a later deletion of the topic it is asked to create."""
CACHE: Final = 10_000
"""Number of topics whose count at a remote is cached."""


class _Known(NamedTuple):
    """A topic's number of partitions in a region, or the number it should have."""

    connection: object
    """The record is valid while this connection lasts."""
    incarnation: str
    partitions: int

    def is_known_by(self, known: _Known | None) -> bool:
        return (
            known is not None
            and known.connection is self.connection
            and known.incarnation == self.incarnation
            and known.partitions >= self.partitions
        )


class RemoteAdminFailed(ClientError):
    """The remote's admin REST cannot be reached, or refused."""


class OtherDeletion(RemoteAdminFailed):
    """The remote knows of a later deletion of the topic, so the topic is not created there again (R8)."""


class OtherKindThere(RemoteAdminFailed):
    """The remote has a topic without partitions by that name, and keeps it."""


class RemoteAdmin:
    """Asks once per (region, topic, count), however many partitions start at the same time, over one connection. A new
    connection asks again: a region that comes back may have been restored from an older copy."""

    def __init__(self, calls: RegionCalls) -> None:
        self._calls = calls
        self._known: dict[tuple[str, str], _Known] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    async def ensure_partitions(
        self,
        region: str,
        topic: str,
        partitions: int,
        incarnation: str = "",
        created: Stamp | None = None,
        *,
        connection: object = None,
    ) -> None:
        """Raise the number of partitions of ``topic`` (a partitioned topic's own name) in ``region`` to at least this.

        :param incarnation: stamp of its last deletion: a remote that knows a later one does not create it again.
        :param created: stamp of its creation: a remote that created a topic without partitions earlier keeps that.
        :param connection: cached counts are valid as long as this connection to the region.
        :raises OtherKindThere: the remote keeps a topic without partitions.
        :raises OtherDeletion: the remote knows of a later deletion.
        :raises RemoteAdminFailed: the remote cannot be reached, or refuses.
        """
        key = (region, topic)
        wanted = _Known(connection, incarnation, partitions)
        if wanted.is_known_by(self._known.get(key)):
            return
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if not wanted.is_known_by(self._known.get(key)):
                    count = await self._raise_to(region, topic, partitions, incarnation, created)
                    if len(self._known) >= CACHE:
                        self._known.clear()
                    self._known[key] = wanted._replace(partitions=count)
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def forget(self, region: str, topic: str) -> None:
        """The topic may have been deleted there: ask again next time."""
        self._known.pop((region, topic), None)

    async def _raise_to(self, region: str, topic: str, partitions: int, incarnation: str, created: Stamp | None) -> int:
        named = f"?incarnation={quote(incarnation, safe='')}"
        making = named if created is None else f"{named}&created={quote(str(created), safe='')}"
        path = f"/admin/v2/{in_path(topic)}/partitions"
        status, body = await self._ask("GET", region, path + named, None)
        count = _count(body) if status == 200 else 0
        if status == DELETED_LATER:
            raise OtherDeletion(f"{region} knows of a later deletion of {topic}: {body[:200]}")
        if status not in (200, 404):
            raise RemoteAdminFailed(
                f"{region} answered {status} when asked for the partitions of {topic}: {body[:200]}"
            )
        if count >= partitions:
            return count
        method, query = ("POST", named) if count else ("PUT", making)
        status, body = await self._ask(method, region, path + query, partitions)
        if status == DELETED_LATER:
            raise OtherDeletion(f"{topic} was not created in {region}: {body[:200]}")
        if status == 409:  # another region's replicator was faster: read what it created
            refusal = body
            status, body = await self._ask("GET", region, path + named, None)
            if status == 200 and (count := _count(body)) >= partitions:
                return count
            if status == 200 and count == 0:
                raise OtherKindThere(f"{topic} was not created in {region}: {refusal[:200]}")
            status, body = await self._ask("POST", region, path + named, partitions)
        if status >= 300:
            raise RemoteAdminFailed(
                f"{region} answered {status} to a request for {partitions} partitions of {topic}: {body[:200]}"
            )
        return partitions

    async def _ask(self, method: str, region: str, path: str, number: int | None) -> tuple[int, str]:
        try:
            status, said = await self._calls.ask(region, method, path, number, seconds=TIMEOUT)
        except CallFailed as error:
            raise RemoteAdminFailed(f"{region} cannot be asked: {error}") from error
        return status, said.decode(errors="replace")


def _count(body: str) -> int:
    try:
        return int(json.loads(body)["partitions"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
