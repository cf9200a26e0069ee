# SPDX-License-Identifier: Apache-2.0
"""The event topic of synchronized metadata, as the broker that serves it sees it.

It implements the port ``metadata.sync.synchronizer``: a producer and a Failover consumer inside the broker, so that no
role and no token of clients is involved. In a region of several brokers the one that owns the topic reads it, and the
next owner takes over; the others try again every second.

Clients may write to the topic as well, here or in another region. So each message ends with a proof by the peer secret
that a broker of the region which stored it first made it. One without is set apart, as one that cannot be applied:
it goes to the dead-letter topic of this region, with the reason, and the next message is read.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable
from meridian_broker.metadata.sync.applying import Poison
from meridian_broker.metadata.sync.synchronizer import Listener
from meridian_broker.positions.position import LATEST, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import FAILOVER
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.service import subscribing
from meridian_broker.topics.service.service import TopicService
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata, topic_name
from meridian_broker.wire.pulsar.frames import SEND, Send

SUBSCRIPTION: Final = "metadata-syncer"
"""As in Pulsar."""
DEAD_LETTERS: Final = f"-{SUBSCRIPTION}-DLQ"
RETRY_SECONDS: Final = 1.0
LETTER_BYTES: Final = 64 << 10
"""So much of an event that cannot be applied is kept: a topic may refuse a copy with the reason beside it."""
LETTER_ATTEMPTS: Final = 5
SEND_SECONDS: Final = 30.0
"""A message whose receipt takes longer is sent again, over a new producer."""
PERMITS: Final = 50
"""Messages taken from the topic ahead of the one that is being applied."""
DEAD_KEPT: Final = 20
"""Dead letters that status shows; all are in the dead-letter topic."""
PROOF_BYTES: Final = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was set apart."""

    position: str
    region: str
    """The region that stored it first."""
    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of the topic."""

    position: Position
    region: str
    payload: bytes | None
    """None: it is a batch or compressed, so no broker of a region wrote it."""


class EventTopic:
    """See the module's text. ``run`` belongs to a task of the broker."""

    def __init__(self, topic: str, region: str, service: TopicService, identity: PeerIdentity, name: str) -> None:
        """:param name: of the producer, unlike those of all other brokers of the region."""
        self.topic = topic
        self._region = region
        self._service = service
        self._scheduler: Scheduler = service.parts.scheduler
        self._identity = identity
        self._senders = {one: _Sender(one, name, service) for one in (topic, topic + DEAD_LETTERS)}
        self._listener: Listener | None = None
        self._reader: _Reader | None = None
        self.problem: str | None = f"{topic} is not read yet"
        """Why nothing is read; None: this broker reads the topic."""
        self.dead: deque[DeadLetter] = deque(maxlen=DEAD_KEPT)
        self.dead_letters = 0

    # -- MetadataEventSynchronizer

    async def notify(self, message: bytes) -> None:
        """:raises MetadataError: it may or may not be stored. Publishing it again is right."""
        await self._senders[self.topic].send(message + self._proof(self._region, message, self._secret()))

    def register_sync_listener(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def cluster_name(self) -> str:
        return self._region

    async def close(self) -> None:
        for sender in self._senders.values():
            sender.close("metadata are not synchronized by this topic any more")
        if self._reader is not None:
            self._reader.close()

    # -- reading

    @property
    def is_active(self) -> bool:
        """Whether this broker is the one of its region that reads the topic."""
        return self._reader is not None and self._reader.is_active

    async def run(self) -> None:
        """Read until cancelled. Whatever fails is tried again."""
        while True:
            try:
                await self._read()
            except REFUSALS as error:
                self.problem = f"{self.topic} cannot be read: {error}"
            except Exception:
                log.exception("reading %s failed; trying again", self.topic)
                self.problem = f"{self.topic} cannot be read: see the log"
            finally:
                if self._reader is not None:
                    self._reader.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        topic = await self._service.opener.topic(topic_name.parse(self.topic), create=True)
        subscription = await subscribing.subscription(
            self._service.parts,
            topic,
            SUBSCRIPTION,
            durable=True,
            replicated=False,
            initial=LATEST,  # what was published before is part of the first comparison with each peer
            properties={},
            may_create=True,
        )
        reader = self._reader = _Reader(self._region)
        reader.consumer = topic.subscribing.add_consumer(
            subscription, reader, 0, f"{self._region}-{topic.scheduler.now_ms()}", FAILOVER, 0, None
        )
        self.problem = None
        reader.consumer.flow(PERMITS)
        while (arrived := await reader.next()) is not None:
            await self._take(arrived)
            reader.done(arrived)
        self.problem = f"{self.topic} was closed; reading it again shortly"

    async def _take(self, arrived: Arrived) -> None:
        """Returns once it needs not come again."""
        while True:
            try:
                await self._apply(arrived)
            except Poison as poison:
                await self._set_apart(arrived, str(poison))
            except MetadataError as error:
                self.problem = f"the metadata store does not take an event of {arrived.region}: {error}"
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.problem = None
            return

    async def _apply(self, arrived: Arrived) -> None:
        """:raises Poison: it cannot be applied."""
        if arrived.payload is None:
            raise Poison("it is compressed or a batch: no broker of Meridian wrote it")
        message, proof = arrived.payload[:-PROOF_BYTES], arrived.payload[-PROOF_BYTES:]
        proofs = (self._proof(arrived.region, message, secret) for secret in self._identity.secrets() or (b"",))
        if not any(hmac.compare_digest(one, proof) for one in proofs):
            raise Poison(f"it does not prove that a broker of {arrived.region} wrote it (peerTokenFile)")
        if self._listener is not None:
            await self._listener(message)

    async def _set_apart(self, arrived: Arrived, reason: str) -> None:
        """Keep a copy in the dead-letter topic. Events behind it do not wait for that for long."""
        payload, letters = arrived.payload or b"", self.topic + DEAD_LETTERS
        properties = {"reason": reason, "region": arrived.region, "position": str(arrived.position)}
        if len(payload) > LETTER_BYTES:
            properties["bytes"] = str(len(payload))
        for attempt in range(1, LETTER_ATTEMPTS + 1):
            try:
                await self._senders[letters].send(payload[:LETTER_BYTES], properties, only_to=self._region)
                kept = f"a copy is in {letters}"
                break
            except MetadataError as error:
                kept = f"no copy could be kept: {error}"
                if attempt < LETTER_ATTEMPTS:
                    await asyncio.sleep(RETRY_SECONDS)
        log.warning(
            "an event of %s at %s of %s is not applied: %s (%s)",
            *(arrived.region, arrived.position, self.topic, reason, kept),
        )
        self.dead.append(DeadLetter(str(arrived.position), arrived.region, reason))
        self.dead_letters += 1

    def _secret(self) -> bytes:
        return next(iter(self._identity.secrets()), b"")

    @staticmethod
    def _proof(region: str, message: bytes, secret: bytes) -> bytes:
        return hmac.digest(secret, b"meridian metadata event\x00" + region.encode() + b"\x00" + message, "sha256")


class _Sender:
    """A producer inside the broker that sends one message at a time. Implements ``ProducerPort``."""

    def __init__(self, topic: str, name: str, service: TopicService) -> None:
        self._topic = topic
        self._names = (f"{name}-metadata-{number}" for number in itertools.count())
        self._service = service
        self._producer: Producer | None = None
        self._sequence = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._wait_ms: Callable[[], int] = lambda: 0
        self._lock = asyncio.Lock()

    async def send(self, payload: bytes, properties: dict[str, str] | None = None, only_to: str = "") -> None:
        """Returns once it is durable. :raises MetadataError: it may or may not be."""
        async with self._lock:
            producer = await self._opened()
            if (wait_ms := self._wait_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            sequence, self._sequence = self._sequence, self._sequence + 1
            body = self._body(producer.name, sequence, payload, properties or {}, only_to)
            receipt = self._waiting[sequence] = asyncio.get_running_loop().create_future()
            sent = Send(SEND, 0, sequence, None, 1, False, False, None, None, False, True, body)
            try:
                producer.topic.publish(producer, [sent])
                async with asyncio.timeout(SEND_SECONDS):
                    await receipt
            except TimeoutError:
                self.close(f"{self._topic} did not store a message within {SEND_SECONDS:.0f} s")
                raise MetadataUnavailable(f"{self._topic} did not store an event in time") from None
            finally:
                self._waiting.pop(sequence, None)

    async def _opened(self) -> Producer:
        if self._producer is not None:
            return self._producer
        try:
            topic = await self._service.opener.topic(topic_name.parse(self._topic), create=True)
            made = Producer(
                topic,
                self,
                0,
                next(self._names),
                name_is_given=False,
                epoch=0,
                connected_since_ms=topic.scheduler.now_ms(),
            )
            await topic.scheduler.answer(lambda told: topic.admit(made, told))
        except REFUSALS as error:
            raise MetadataUnavailable(f"{self._topic} takes no events now: {error}") from error
        self._producer = made
        return made

    def _body(self, name: str, sequence: int, payload: bytes, properties: dict[str, str], only_to: str) -> bytes:
        described = pb.MessageMetadata(
            producer_name=name,
            sequence_id=sequence,
            publish_time=self._service.parts.scheduler.now_ms(),
            replicate_to=[only_to] if only_to else [],
        )
        for key, value in properties.items():
            described.properties.add(key=key, value=value)
        return metadata.build_body(described.SerializeToString(), payload)

    def close(self, reason: str) -> None:
        """What has no receipt yet fails."""
        made, self._producer = self._producer, None
        if made is not None:
            made.topic.remove_producer(made)
        for receipt in self._waiting.values():
            if not receipt.done():
                receipt.set_exception(MetadataUnavailable(reason))

    # -- ProducerPort

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:  # noqa: ARG002
        for send in sends:
            self._answer(send, None)

    def dropped(self, sends: list[Send]) -> None:
        for send in sends:
            self._answer(send, MetadataUnavailable(f"{self._topic} was closed before an event was stored"))

    def repeated(self, producer: Producer, send: Send) -> None:  # noqa: ARG002
        self._answer(send, None)

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:  # noqa: ARG002
        self._answer(send, MetadataUnavailable(f"{self._topic} refused an event: {error}"))

    def hold(self, wait_ms: Callable[[], int]) -> None:
        self._wait_ms = wait_ms

    def disconnect_producer(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None

    def _answer(self, send: Send, error: Exception | None) -> None:
        receipt = self._waiting.get(send.sequence_id)
        if receipt is None or receipt.done():
            return
        if error is None:
            receipt.set_result(None)
        else:
            receipt.set_exception(error)


class _Reader:
    """A consumer inside the broker. Implements ``ConsumerPort``."""

    def __init__(self, region: str) -> None:
        self.consumer: Consumer | None = None
        self._region = region
        self.is_active = False
        self._arrived: asyncio.Queue[Arrived | None] = asyncio.Queue(2 * PERMITS)

    async def next(self) -> Arrived | None:
        """None: the topic was closed."""
        return await self._arrived.get()

    def done(self, arrived: Arrived) -> None:
        """It is applied: it needs not come again."""
        if self.consumer is not None:
            self.consumer.subscription.acknowledge(self.consumer, [arrived.position])
            self.consumer.flow(1)

    def close(self) -> None:
        consumer, self.consumer = self.consumer, None
        self.is_active = False
        if consumer is not None:
            consumer.subscription.leave(consumer)

    # -- ConsumerPort

    def deliver(
        self,
        consumer: Consumer,  # noqa: ARG002
        position: Position,
        entry: bytes,
        redeliveries: int,  # noqa: ARG002
        remaining: int | None,  # noqa: ARG002
    ) -> None:
        header = unpack(entry)
        payload = _payload(entry[header.body_offset :])
        self._arrived.put_nowait(Arrived(position, header.region or self._region, payload))

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        if self.consumer is consumer:
            self.consumer = None
        self.is_active = False
        self._arrived.put_nowait(None)

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:  # noqa: ARG002
        self.is_active = active

    def reached_end(self, consumer: Consumer) -> None:
        """Nothing more can be read. Status shows it when the next event cannot be published."""


def _payload(body: bytes) -> bytes | None:
    """The payload of a message as ``_Sender`` makes it; None: it is none."""
    try:
        view = metadata.scan(body)
    except metadata.BodyError:
        return None
    if view.is_batch or view.compression or view.encrypted or view.uuid is not None:
        return None
    return body[view.payload_offset :]
