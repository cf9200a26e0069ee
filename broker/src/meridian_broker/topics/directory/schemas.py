# SPDX-License-Identifier: Apache-2.0
"""Topic schemas in wire format: numeric types and eight-byte versions."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import NotFound
from meridian_broker.metadata.records import SchemaRecord
from meridian_broker.metadata.schema_catalog import SchemaQuota
from meridian_broker.topics.directory.schema_rates import SchemaRates
from meridian_broker.topics.errors import IncompatibleSchema
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import TopicName

VERSION: Final = struct.Struct(">q")
"""A schema version on the wire: eight bytes, big-endian."""

NAMES: Final = {
    0: "NONE",
    1: "STRING",
    2: "JSON",
    3: "PROTOBUF",
    4: "AVRO",
    5: "BOOLEAN",
    6: "INT8",
    7: "INT16",
    8: "INT32",
    9: "INT64",
    10: "FLOAT",
    11: "DOUBLE",
    12: "DATE",
    13: "TIME",
    14: "TIMESTAMP",
    15: "KEY_VALUE",
    16: "INSTANT",
    17: "LOCAL_DATE",
    18: "LOCAL_TIME",
    19: "LOCAL_DATE_TIME",
    20: "PROTOBUF_NATIVE",
    21: "AUTO_CONSUME",
}
"""Schema types by the wire's number, named as in the admin API."""
NUMBERS: Final = {name: number for number, name in NAMES.items()}


class SchemaRegistry:
    """Reads and adds schemas. Partitions share the schemas of their topic."""

    def __init__(self, catalog: Catalog, limits: TopicLimits, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._quota = SchemaQuota(limits.schema_bytes, limits.schema_bytes_in_namespace)
        self._rates = SchemaRates(limits.new_schemas_per_minute)

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[pb.Schema, bytes] | None:
        """The schema of ``version``, the newest if None; None: there is no such schema."""
        number = None
        if version is not None and len(version) == VERSION.size:
            (number,) = VERSION.unpack(version)
        try:
            record = await self._catalog.schemas.get(self._catalog.shadows.schemas_of(topic), number)
        except NotFound:
            return None
        schema = pb.Schema(
            name=topic.base.local_name, schema_data=record.data, type=pb.Schema.Type.Name(NUMBERS[record.type])
        )
        for key, value in record.properties.items():
            schema.properties.add(key=key, value=value)
        return schema, VERSION.pack(record.version)

    async def add(
        self,
        topic: TopicName,
        schema: pb.Schema,
        check: Callable[[], None] = lambda: None,
        author: str | None = None,
    ) -> bytes:
        """Add a schema; content that exists already keeps its version. ``check``: as in ``Schemas.add``.

        A shadow has its source's schemas, and takes no others.

        :param author: whose rate limit applies; None: another region, which has the schema already.
        """
        now_ms = self._now_ms()
        properties = {pair.key: pair.value for pair in schema.properties}
        record = SchemaRecord(NAMES.get(schema.type, str(schema.type)), schema.schema_data, properties, now_ms)

        def allowed() -> None:
            check()
            if author is not None:
                self._rates.count(author, now_ms)

        source = self._catalog.shadows.schemas_of(topic)
        if source != topic:
            return await self._known(source, topic, record)
        quota = None if author is None else self._quota
        return VERSION.pack((await self._catalog.schemas.add(topic, record, allowed, quota)).version)

    async def _known(self, source: TopicName, shadow: TopicName, wanted: SchemaRecord) -> bytes:
        """The version of a schema that a shadow's source has. :raises IncompatibleSchema: it does not have it."""
        with suppress(NotFound):
            for record in await self._catalog.schemas.all(source):
                if record.content_id == wanted.content_id:
                    return VERSION.pack(record.version)
        raise IncompatibleSchema(f"{shadow} is a shadow of {source}, which does not have this schema: add it there")

    def for_topic(self, topic: TopicName) -> Callable[[bytes], Awaitable[pb.Schema | None]]:
        """How a replicator looks up schemas of this topic."""

        async def schema_for(version: bytes) -> pb.Schema | None:
            found = await self.get(topic, version)
            return None if found is None else found[0]

        return schema_for
