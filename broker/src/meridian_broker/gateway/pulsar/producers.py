# SPDX-License-Identifier: Apache-2.0
"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meridian_broker.gateway.pulsar import permitted, shadow_replicators, sources
from meridian_broker.gateway.pulsar.patience import patiently
from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.authorizing import Wish
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics import validation
from meridian_broker.topics.errors import NotAllowed, TopicFenced
from meridian_broker.topics.names import REPLICATION_PREFIX
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.publishing.access_modes import AccessMode
from meridian_broker.topics.publishing.admission import Admitted
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.topics.service import incarnations, kinds, shadow_topics, subscribing
from meridian_broker.topics.service.kinds import Kind
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import MetadataError, ServiceNotReadyError
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection


def producer(connection: Connection, command: Any) -> None:
    """PRODUCER. For an id already in use: an error while the producer is being created, the same answer afterwards."""
    asked: pb.CommandProducer = command.message
    if asked.producer_id in connection.introducing:
        connection.fail(asked.request_id, ServiceNotReadyError("this producer is still being created"))
        return
    existing = (connection.producers or {}).get(asked.producer_id)
    if existing is not None:
        if existing.remote_region is not None:
            connection.fail(asked.request_id, NotAllowed("this replicator's producer exists already: close it first"))
        else:
            _answer(connection, asked.request_id, existing)
        return
    connection.introducing[asked.producer_id] = asked
    connection.run(_introduce(connection, asked))


async def _introduce(connection: Connection, asked: pb.CommandProducer) -> None:
    make = _make_of_shadow if shadow_replicators.is_asked(asked) else _make
    try:
        await make(connection, asked)
    finally:
        if _is_wanted(connection, asked):
            del connection.introducing[asked.producer_id]


def _is_wanted(connection: Connection, asked: pb.CommandProducer) -> bool:
    """Whether the client still wants this producer: it may have closed it, and requested another with that id."""
    return connection.introducing.get(asked.producer_id) is asked


async def _make(connection: Connection, asked: pb.CommandProducer) -> None:
    service = connection.broker.service
    made: Producer | None = None
    try:
        if not connection.is_peer:  # a peer's replicators have a producer for each topic
            validation.producer(asked, connection.clients - 1)
        remote, pulsar = _replicated_from(connection, asked)
        name = topic_name.parse(asked.topic)
        if pulsar is None:  # R7 admits a replicator's producer
            _check_may(connection, asked, name)
        if not connection.is_peer:
            connection.broker.check_for_clients(str(name))
        if remote is not None:
            shadow_topics.check_for_regions(service.parts, name)
        incarnation = None if remote is None else asked.replication_source.incarnation
        told = None if incarnation is None else await incarnations.differing(service.opener, name, incarnation)
        if told is not None:
            _answer_other(connection, asked, told)
            return
        if remote is None:
            service.registry.check_lives_here(name)
        created = _created(asked)
        plain = None if created is None else kinds.Creation(created, Kind.PLAIN)
        carried = [] if plain is None else await kinds.make_way(service.opener, name, plain)
        if connection.is_peer:
            topic = await service.opener.served(name, create=True, incarnation=incarnation, created=created)
        else:
            topic = await _served(connection, asked, name)
            if connection.transport is None or not _is_wanted(connection, asked):
                return  # it has its answer: nothing is created for it any more
        if isinstance(topic, Topic):
            topic.check_own_log("publish to")
        if isinstance(topic, Topic) and carried:
            await kinds.carry(service.opener, [topic], carried)
        if isinstance(topic, Topic) and topic.backfill is not None:
            await topic.scheduler.answer(topic.backfill.ready)
        if isinstance(topic, Topic):
            other = remote or pulsar
            await (backlog_quotas.check_producer(topic) if other is None else topic.intake.enter(other))
        if topic.rules.encryption_required and not asked.encrypted and not (remote or pulsar):
            raise MetadataError(
                f"{topic.name} accepts encrypted messages only (encryptionRequired): give the producer keys"
            )
        version = b""
        if asked.HasField("schema") and asked.schema.type != pb.Schema.NoSchema:
            version = await service.parts.schemas.add(name, asked.schema, topic.check_open, author=connection.author)
        if asked.initial_subscription_name and isinstance(topic, Topic):
            await subscribing.ensure_subscription(service.parts, topic, asked.initial_subscription_name)
        if connection.transport is None or not _is_wanted(connection, asked):
            return
        if not connection.is_peer:
            connection.broker.check_for_clients(topic.name)  # it may have become an event topic meanwhile
        made = Producer(
            topic,
            connection,
            asked.producer_id,
            asked.producer_name or connection.broker.producer_name(),
            name_is_given=bool(asked.producer_name) and asked.user_provided_producer_name,
            epoch=asked.epoch,
            connected_since_ms=topic.scheduler.now_ms(),
            remote_region=remote or pulsar,
            names_sources=None if pulsar is None else connection.names_sources,
            metadata={pair.key: pair.value for pair in asked.metadata} or None,
            schema_version=version,
            access_mode=AccessMode(asked.producer_access_mode),
            asked_epoch=asked.topic_epoch if asked.HasField("topic_epoch") else None,
        )
        if remote is not None:
            _enter_replicator(topic, made, asked.replication_source)
        elif pulsar is not None:
            await sources.enter(service, topic, made)
        else:
            await _admit(connection, asked.request_id, made)
    except REFUSALS as error:
        if _is_wanted(connection, asked):  # otherwise the client gets no answer at all
            connection.fail(asked.request_id, error)
        return
    except BaseException:
        if made is not None:
            made.topic.remove_producer(made)
        raise
    if not _keep(connection, asked, made):
        return
    if not isinstance(topic, Topic) or (remote is None and made.gate is None):
        _answer(connection, asked.request_id, made)
    else:
        # The state reported to a replicator must survive a crash, because it continues right after it (R4). The same
        # holds for a producer with deduplication. Entries fetched from a third region in the meantime do not
        # count.
        last = None if remote is None else topic.log.last_origin.get(remote, EARLIEST)
        topic.log.when_durable(lambda error: _answer_durable(connection, asked.request_id, made, last, error))


async def _make_of_shadow(connection: Connection, asked: pb.CommandProducer) -> None:
    """For the broker of a shadow's source."""
    try:
        made = await shadow_replicators.make(connection, asked)
    except REFUSALS as error:
        if _is_wanted(connection, asked):
            connection.fail(asked.request_id, error)
        return
    if _keep(connection, asked, made):
        _answer(connection, asked.request_id, made)


def _keep(connection: Connection, asked: pb.CommandProducer, made: Producer) -> bool:
    """The producer was admitted: the client has it from now on. False: it does not want it any more, or lost it."""
    if connection.transport is None or not _is_wanted(connection, asked):
        made.topic.remove_producer(made)
        return False
    if made.topic.producers.get(made.name) is not made:  # disconnected again meanwhile
        connection.fail(
            asked.request_id,
            TopicFenced(f"{made.topic.name} closed this producer while it was being created: create it again"),
        )
        return False
    if connection.producers is None:
        connection.producers = {}
    connection.producers[asked.producer_id] = made
    return True


async def _served(connection: Connection, asked: pb.CommandProducer, name: TopicName) -> Topic | NonPersistentTopic:
    """The topic that a client wants to publish to. :raises TopicError: refused."""
    opener, registry = connection.broker.service.opener, connection.broker.service.registry

    def end(refusal: Exception) -> bool:
        if _is_wanted(connection, asked):
            del connection.introducing[asked.producer_id]
            connection.fail(asked.request_id, refusal)
        return connection.may_wait()

    def is_wanted() -> bool:
        return not registry.closing and connection.may_wait() and _is_wanted(connection, asked)

    return await patiently(lambda: opener.served(name, create=True), is_wanted, end)


def _check_may(connection: Connection, asked: pb.CommandProducer, name: TopicName) -> None:
    """:raises AuthorizationError: the client may not produce, or not create its initial subscription."""
    permitted.check(connection, Wish.PRODUCE, name)
    if asked.initial_subscription_name:
        permitted.check(connection, Wish.CONSUME, name)


def _replicated_from(connection: Connection, asked: pb.CommandProducer) -> tuple[str | None, str | None]:
    """The region whose messages a replicator brings: of Meridian, or of Apache Pulsar. (None, None): it is a client.

    :raises NotAllowed: the connection may not replicate them (R7).
    """
    remote = asked.replication_source.region if asked.HasField("replication_source") else None
    is_replicator = asked.producer_name.startswith(REPLICATION_PREFIX)
    if remote is None and is_replicator and not connection.is_peer:
        return None, sources.region_of(connection, asked)
    if remote is not None and not connection.is_peer:
        raise NotAllowed("producer names of replicators and origins are for brokers of other regions (R7)")
    if remote is not None and remote != connection.peer_name:
        raise NotAllowed(
            f"region {connection.peer_name} may replicate its own messages only, not those of {remote!r} (R7)"
        )
    return remote, None


def _created(asked: pb.CommandProducer) -> Stamp | None:
    """Creation time of a replicator's topic, a topic without partitions; None: it does not say."""
    try:
        return Stamp.parse(asked.replication_source.created) if asked.replication_source.created else None
    except ValueError as error:
        raise MetadataError(f"the topic's creation time is not a valid stamp: {error}") from error


def _answer_durable(
    connection: Connection, request_id: int, made: Producer, last: Position | None, error: LedgerError | None
) -> None:
    """Answer with ``last`` only if it is durable; otherwise the topic is fenced, and the client retries on error."""
    if error is None:
        _answer(connection, request_id, made, last=last)
    else:
        connection.fail(request_id, error)


def _enter_replicator(topic: Topic | NonPersistentTopic, made: Producer, source: peer_pb2.ReplicationSource) -> None:
    """:raises TopicError: it refers to another incarnation of the topic, or to a topic that cannot be replicated."""
    if not isinstance(topic, Topic):
        raise NotAllowed(f"{topic.name} is non-persistent, so it cannot be replicated")
    if source.incarnation != topic.incarnation:
        raise TopicFenced(
            f"{made.remote_region} has another incarnation of {topic.name}: wait until both know the same one (R8)"
        )
    topic.admission.add(made)
    if source.missing_ledger >= 0:
        topic.gaps.told(source.region, Position(source.missing_ledger, source.missing_entry))


async def _admit(connection: Connection, request_id: int, made: Producer) -> None:
    """Admit the producer, now or when the others have closed. :raises TopicError: it is refused."""

    def ask(told: Admitted) -> None:
        if made.topic.admit(made, told):
            if connection.waiting_producers is None:
                connection.waiting_producers = {}
            connection.waiting_producers[made.producer_id] = made
            _answer(connection, request_id, made, ready=False)

    try:
        await made.topic.scheduler.answer(ask)
    finally:
        waiting = connection.waiting_producers or {}
        if waiting.get(made.producer_id) is made:
            del waiting[made.producer_id]


def _answer(
    connection: Connection, request_id: int, made: Producer, *, ready: bool = True, last: Position | None = None
) -> None:
    """:param last: for a replicator, the last entry of its region that is durable here."""
    answer = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=made.name,
        last_sequence_id=made.topic.deduplication.last_sequence_id(made.name) if isinstance(made.topic, Topic) else -1,
        schema_version=made.schema_version,
        topic_epoch=made.topic_epoch,
        producer_ready=ready,
    )
    if last is not None and isinstance(made.topic, Topic):
        answer.replication.CopyFrom(
            peer_pb2.ReplicationState(
                last_origin_ledger=last.ledger, last_origin_entry=last.entry, incarnation=made.topic.incarnation
            )
        )
    connection.write(encode.simple(17, answer))


def _answer_other(connection: Connection, asked: pb.CommandProducer, told: DeletionNotice) -> None:
    """Answer a replicator that knows of another deletion of the topic: our deletion, and no producer (R8)."""
    answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name)
    state = answer.replication
    state.incarnation, state.with_base = told.incarnation, told.is_of_base
    for region, end in told.ends.items():
        state.ends.add(region=region, ledger=end.ledger, entry=end.entry)
    if connection.transport is not None:
        connection.write(encode.simple(17, answer))


def close_producer(connection: Connection, command: Any) -> None:
    """CLOSE_PRODUCER succeeds also for an unknown id."""
    asked: pb.CommandCloseProducer = command.message
    existing = (connection.producers or {}).get(asked.producer_id)
    if existing is None:
        existing = (connection.waiting_producers or {}).get(asked.producer_id)
    if existing is not None:
        existing.topic.remove_producer(existing)
    connection.forget_producer(asked.producer_id)
    connection.succeed(asked.request_id)
