# SPDX-License-Identifier: Apache-2.0
"""Translates another region's version of a schema to this region's (R41).

Each region numbers the schemas of a topic in its own order, and an entry names its schema by number. A replicator
rewrites the number before it sends an entry. An entry that is fetched (``backfill.py``) arrives as the other region
stores it, with that region's number: the region is asked for the schema, which is added here if it is new, and the
number is rewritten before the entry is stored. So whatever a region stores has its own numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from meridian_broker.ledgers.entry import UNCHAINED, EntryHeader
from meridian_broker.topics.backfill.questions import Peers
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata as message_metadata
from meridian_broker.wire.pulsar import origin_fields

KNOWN_MAX: Final = 1000
"""Versions remembered per topic."""
_VERSION_TAG: Final = b"\x82\x01"
"""The tag of the field in a message's metadata."""

AddSchema = Callable[[pb.Schema], Awaitable[bytes]]
"""Returns our version of a schema of the topic, which is added if it is new."""


class SchemaNumbers:
    """The translations for one topic."""

    def __init__(self, topic: str, peers: Peers, add: AddSchema) -> None:
        self._topic = topic
        self._peers = peers
        self._add = add
        self._known: dict[tuple[str, bytes], bytes] = {}

    async def renumbered(self, region: str, header: EntryHeader, body: bytes) -> bytes:
        """The body of an entry of another region, with our version of its schema.

        :param region: the region that returned the entry.
        :raises PeerAway: it cannot be asked for the schema.
        :raises MetadataError, TopicError: the schema cannot be added here.
        """
        start, end = message_metadata.metadata_bounds(body)
        if body.find(_VERSION_TAG, start, end) < 0:
            return body  # the usual case, decided without parsing
        theirs = message_metadata.scan(body).schema_version
        assert header.region is not None and header.origin is not None
        if not theirs or (ours := await self._ours(region, theirs)) == theirs:
            return body
        if header.flags & UNCHAINED:
            return message_metadata.with_schema_version(body, ours)
        origin = header.origin
        appended = origin_fields.appended_bytes(body, header.region, *origin)
        original = origin_fields.strip_appended(body, appended)
        override = ours if message_metadata.scan(original).schema_version != ours else None
        return origin_fields.append_replication(original, header.region, *origin, override)[0]

    async def _ours(self, region: str, theirs: bytes) -> bytes:
        known = self._known.get((region, theirs))
        if known is None:
            schema = await self._peers.schema(region, self._topic, theirs)
            # The region does not know it either: the number means nothing, and is kept.
            known = theirs if schema is None else await self._add(schema)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[region, theirs] = known
        return known
