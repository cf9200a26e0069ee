# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/schemas``: schemas of a topic; its partitions share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from meridian_broker.admin.http.access import ROLE
from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    body,
    number,
    part,
    properties,
    state,
    topic_of,
)
from meridian_broker.admin.pulsar.shadows import check_not_shadow
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.metadata.records import SchemaRecord
from meridian_broker.topics.directory.schemas import NUMBERS, VERSION
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import TopicName


async def newest(request: web.Request) -> web.Response:
    """The newest schema."""
    return answer(_shown(await state(request).catalog.schemas.get(_whose(request))))


async def of_version(request: web.Request) -> web.Response:
    """The schema of one version."""
    version = number(part(request, "version"), "version")
    return answer(_shown(await state(request).catalog.schemas.get(_whose(request), version)))


async def every(request: web.Request) -> web.Response:
    """All schemas, oldest first."""
    found = await state(request).catalog.schemas.all(_whose(request))
    return answer({"getSchemaResponses": [_shown(record) for record in found]})


async def add(request: web.Request) -> web.Response:
    """Add a schema; an identical one keeps its version."""
    schema = _given(await body(request, limit=LARGE_BODY_BYTES))
    service = state(request).service
    name = topic_of(request)
    check_not_shadow(request, name, "add the schema to")
    service.registry.check_exists(name)
    author = request.get(ROLE) or request.remote or ""
    (version,) = VERSION.unpack(await service.parts.schemas.add(name, schema, author=author))
    return answer(_version(version))


async def delete(request: web.Request) -> web.Response:
    """Delete all schemas; returns the newest version."""
    name = topic_of(request)
    check_not_shadow(request, name, "delete the schemas of")
    return answer(_version(await state(request).catalog.schemas.delete(name)))


def _whose(request: web.Request) -> TopicName:
    """The topic in the path, or for a shadow its source, whose schemas it uses."""
    return state(request).catalog.shadows.schemas_of(topic_of(request))


def _given(value: Any) -> pb.Schema:
    """:raises Refused: it is not a schema of a known type."""
    if not isinstance(value, Mapping) or not isinstance(value.get("schema", ""), str):
        raise Refused(422, 'expected the body {"type": .., "schema": text, "properties": {..}}')
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in NUMBERS:
        raise Refused(422, f"{kind!r} is not a schema type: expected one of {', '.join(NUMBERS)}")
    schema = pb.Schema(schema_data=str(value.get("schema", "")).encode(), type=pb.Schema.Type.Name(NUMBERS[kind]))
    for key, text in properties(value.get("properties")).items():
        schema.properties.add(key=key, value=text)
    return schema


def _shown(record: SchemaRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "type": record.type,
        "timestamp": record.timestamp_ms,
        "data": record.data.decode(errors="replace"),
        "properties": dict(record.properties),
    }


def _version(version: int) -> dict[str, Any]:
    return {"version": {"version": version}}
