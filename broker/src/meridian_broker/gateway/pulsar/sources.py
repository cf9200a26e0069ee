# SPDX-License-Identifier: Apache-2.0
"""PRODUCER of a replicator of Apache Pulsar. Pulsar accepts a replicator's name from every client; here the client has
to be one of that region's brokers (R7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.topics.errors import NotAllowed, TopicFenced
from meridian_broker.topics.names import REPLICATION_PREFIX
from meridian_broker.topics.topic import Topic

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection
    from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.wire.proto import pulsar_pb2 as pb

_PREFIX: Final = f"{REPLICATION_PREFIX}."
_TOWARDS: Final = "-->"


def region_of(connection: Connection, asked: pb.CommandProducer) -> str:
    """The region whose replicator asks.

    :raises NotAllowed: it runs no Apache Pulsar, or the client is not one of its brokers.
    """
    region, separator, towards = asked.producer_name.removeprefix(_PREFIX).partition(_TOWARDS)
    broker = connection.broker
    cluster = broker.service.parts.catalog.cluster(region)
    if cluster is None or not cluster.is_pulsar or (separator and towards != broker.region):
        raise NotAllowed(
            f"producer name {asked.producer_name!r} is that of a replicator, and {region!r} is not a region of kind "
            "pulsar here (R7)"
        )
    if broker.authentication.required and (not cluster.replicator_role or connection.role != cluster.replicator_role):
        raise NotAllowed(
            f"role {connection.role!r} may not replicate messages of {region}: its replicatorRole is "
            f"{cluster.replicator_role!r} (R7)"
        )
    return region


def belongs_to_pulsar(connection: Connection) -> bool:
    """Whether the client has shown that it is a broker of a region of Apache Pulsar. Only authentication can."""
    catalog = connection.broker.service.parts.catalog
    clusters = (catalog.cluster(region) for region in catalog.pulsar_regions())
    return bool(connection.role) and connection.role in {one.replicator_role for one in clusters if one}


async def enter(service: TopicService, topic: Topic | NonPersistentTopic, made: Producer) -> None:
    """Admit it, in place of its earlier connection.

    :raises NotAllowed: the topic is not replicated with that region.
    :raises LedgerError: the start of replication cannot be recorded.
    """
    region = made.remote_region
    assert region is not None
    if not isinstance(topic, Topic):
        raise NotAllowed(f"{topic.name} is non-persistent, so it cannot be replicated")
    if region not in service.parts.pulsar_regions_of(topic.name):
        raise NotAllowed(f"{topic.name} is not replicated with {region}: add it to the clusters of its namespace")
    topic.pulsar.begin(region)
    await topic.scheduler.answer(topic.progress_log.when_durable)
    if topic.failure is not None:
        raise TopicFenced(f"{topic.name} is not served now ({topic.failure}): look it up again")
    topic.admission.add(made)
