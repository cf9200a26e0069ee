# SPDX-License-Identifier: Apache-2.0
"""PRODUCER of a shadow replicator: the broker of a topic tells a shadow, which this one serves, what is confirmed.

Only a broker of this region may, and only about the shadow's own source (R7). See ``topics/publishing/from_source.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.view import LogView
from meridian_broker.replication.entries.shadow_replicator import PRODUCER_PREFIX, producer_name
from meridian_broker.topics.errors import NotAllowed, TopicFenced
from meridian_broker.topics.publishing.from_source import FromSource
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection
    from meridian_broker.wire.proto import pulsar_pb2 as pb


def is_asked(asked: pb.CommandProducer) -> bool:
    """Whether the producer is to be one."""
    return asked.producer_name.startswith(PRODUCER_PREFIX)


async def make(connection: Connection, asked: pb.CommandProducer) -> Producer:
    """Admit it, in place of its earlier connection.

    :raises NotAllowed: the connection may not say what is confirmed, or not in this topic (R7).
    :raises TopicError, MetadataError, LedgerError: the shadow is not served here now.
    """
    if not connection.is_own_broker:
        raise NotAllowed(
            f"producer name {asked.producer_name!r} is that of a shadow replicator: only brokers of this region, which "
            "prove that by the peer secret, may use it (R7)"
        )
    service, name = connection.broker.service, topic_name.parse(asked.topic)
    record = service.parts.catalog.shadows.find(name)
    if record is None or asked.producer_name != producer_name(str(record.source_of(name)), str(name)):
        raise NotAllowed(f"{name} is not a shadow of the topic in producer name {asked.producer_name!r}")
    topic = await service.opener.served(name, create=False)
    if not isinstance(topic, Topic) or not isinstance(topic.log, LogView) or not topic.log.follows:
        raise TopicFenced(f"{name} does not follow a source at another broker now: look it up again")
    made = Producer(
        topic,
        connection,
        asked.producer_id,
        asked.producer_name,
        name_is_given=True,
        epoch=asked.epoch,
        connected_since_ms=topic.scheduler.now_ms(),
        remote_region=topic.region,
        from_source=FromSource(topic.log),
    )
    topic.admission.add(made)
    return made
