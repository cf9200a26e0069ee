# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/topics/.../growth``: what the broker that adds partitions to a topic asks of their owners, in a region
of several brokers. These requests are not for users: they do nothing unless partitions are being added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from meridian_broker.admin.elsewhere.parts import Part, ask_each, done_by
from meridian_broker.admin.http.requests import Refused, answer, body, done, state, topic_of
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.metadata.errors import Invalid
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service import partition_growth
from meridian_broker.topics.service.partition_growth import Growth, Owners
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path


def owners(request: web.Request) -> Owners | None:
    """Who creates the partitions; None: this broker, its region's only one."""
    return None if state(request).brokers is None else _OwnersOverHttp(request)


class _OwnersOverHttp:
    """Implements ``Owners``."""

    def __init__(self, request: web.Request) -> None:
        self._request = request

    async def subscriptions(self, first: TopicName) -> Mapping[str, bool]:
        return _subscriptions(await self._ask("GET", first))

    async def prepare(self, partition: TopicName, growth: Growth) -> None:
        told = {
            "partitions": growth.partitions,
            "version": growth.version,
            "subscriptions": dict(growth.subscriptions),
        }
        await self._ask("PUT", partition, told)

    async def _ask(self, method: str, partition: TopicName, told: object = None) -> Any:
        data = b"" if told is None else json.dumps(told).encode()
        path = f"/meridian/v1/topics/{in_path(str(partition))}/growth"
        try:
            (said,) = done_by(await ask_each(self._request, [Part(partition, method, path, data)]))
        except Refused as refused:
            raise TopicFenced(f"the broker of {partition} cannot create or read it: {refused}") from None
        return said.value


async def begun(request: web.Request) -> web.Response:
    """What new partitions of the topic start with: the subscriptions of this one, the first."""
    return answer(dict(await partition_growth.subscriptions(state(request).service.opener, topic_of(request))))


async def prepare(request: web.Request) -> web.Response:
    """Create this partition, or remove it again, before the topic has its new number."""
    given = await body(request, limit=LARGE_BODY_BYTES)
    name = topic_of(request)
    if not isinstance(given, Mapping) or name.partition < 0:
        raise Invalid("expected the name of a partition and a description of the growth")
    partitions, version = given.get("partitions"), given.get("version")
    if not isinstance(partitions, int) or not isinstance(version, int):
        raise Invalid("partitions, version: expected whole numbers")
    growth = Growth(partitions, version, _subscriptions(given.get("subscriptions")))
    await partition_growth.prepare(state(request).service.opener, name, growth)
    return done()


def _subscriptions(given: object) -> Mapping[str, bool]:
    if not isinstance(given, dict) or not all(isinstance(one, bool) for one in given.values()):
        raise Invalid("subscriptions: expected names, and true for those that are replicated")
    return given
