# SPDX-License-Identifier: Apache-2.0
"""The event topic of synchronized metadata, as the broker that serves it sees it.

It implements the port ``metadata.sync.synchronizer``: a producer and a Failover consumer inside the broker, so no
client role or token is involved. In a region of several brokers the one that owns the topic reads it, and the
next owner takes over; the others try again every second.

Clients are refused (``MetadataSync.reserved``), and those that used the topic before it was chosen are sent away. In a
region that does not use it, clients may still write to it. So each message ends with a proof, made with the peer
secret, that it was written by a broker of the region that stored it first; without a secret nothing is sent or read. A
message without a valid proof, like one that cannot be applied, goes to this region's dead-letter topic with the reason,
and the next message is read.

``missed`` counts the occasions on which events may have been skipped: whoever relies on having heard all of them
compares itself with the other regions again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from meridian_broker.gateway.event_ends import PERMITS, Arrived, Reader, Sender, send_clients_away
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable
from meridian_broker.metadata.sync.applying import Poison
from meridian_broker.metadata.sync.synchronizer import Listener
from meridian_broker.positions.position import LATEST
from meridian_broker.topics.dispatch.types import FAILOVER
from meridian_broker.topics.errors import TopicElsewhere
from meridian_broker.topics.service import subscribing
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.subscriptions.administration import replicate_subscription
from meridian_broker.wire.pulsar import topic_name

SUBSCRIPTION: Final = "metadata-syncer"
"""As in Pulsar."""
DEAD_LETTERS: Final = f"-{SUBSCRIPTION}-DLQ"
RETRY_SECONDS: Final = 1.0
LETTER_BYTES: Final = 64 << 10
"""Bytes kept of an event that cannot be applied: with the reason added, a full copy might exceed the topic's limit."""
LETTER_ATTEMPTS: Final = 5
DEAD_KEPT: Final = 20
"""Dead letters that status shows; all are in the dead-letter topic."""
PROOF_BYTES: Final = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was not applied."""

    position: str
    region: str
    """The region that stored it first."""
    reason: str


class EventTopic:
    """See the module's text. ``run`` belongs to a task of the broker."""

    def __init__(self, topic: str, region: str, service: TopicService, identity: PeerIdentity, name: str) -> None:
        """:param name: of the producer, unique among the brokers of the region."""
        self.topic = topic
        self._region = region
        self._service = service
        self._scheduler: Scheduler = service.parts.scheduler
        self._identity = identity
        self._senders = {one: Sender(one, name, service) for one in (topic, topic + DEAD_LETTERS)}
        self._listener: Listener | None = None
        self._reader: Reader | None = None
        self.problem: str | None = f"{topic} is not read yet"
        """Why nothing is read; None: this broker reads the topic, or another one of the region does."""
        self.dead: deque[DeadLetter] = deque(maxlen=DEAD_KEPT)
        self.dead_letters = 0
        self.missed = 0
        """How often an event was not applied, or the topic was deleted with what was in it."""

    # -- MetadataEventSynchronizer

    async def notify(self, message: bytes) -> None:
        """:raises MetadataError: it may or may not be stored. Publishing it again is safe."""
        await self._senders[self.topic].send(message + self._proof(self._region, message, self._secrets()[0]))

    def register_sync_listener(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def cluster_name(self) -> str:
        return self._region

    async def close(self) -> None:
        for sender in self._senders.values():
            sender.close("this topic no longer synchronizes metadata")
        if self._reader is not None:
            self._reader.close()

    # -- reading

    @property
    def is_active(self) -> bool:
        """Whether this broker is the one of its region that reads the topic."""
        return self._reader is not None and self._reader.is_active

    @property
    def is_applied(self) -> bool:
        """Whether this broker applies what arrives: it reads the topic, and nothing prevents it."""
        return self.is_active and self.problem is None

    async def run(self) -> None:
        """Read until cancelled; failures are retried."""
        while True:
            try:
                await self._read()
            except TopicElsewhere:
                self.problem = None  # another broker of the region reads it
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
        self._secrets()
        topic = await self._service.opener.topic(topic_name.parse(self.topic), create=True)
        self._service.opener.follow(topic)  # policies no longer limit it
        send_clients_away(topic)
        self.missed += SUBSCRIPTION not in topic.subscriptions
        subscription = await subscribing.subscription(
            self._service.parts,
            topic,
            SUBSCRIPTION,
            durable=True,
            replicated=False,
            initial=LATEST,  # the first comparison with each peer covers the rest
            properties={},
            may_create=True,
        )
        if subscription.replicated:  # a client made it; each region must read every event
            await replicate_subscription(subscription, replicated=False)
            self.missed += 1
        reader = self._reader = Reader(self._region)
        reader.consumer = topic.subscribing.add_consumer(
            subscription, reader, 0, f"{self._region}-{topic.scheduler.now_ms()}", FAILOVER, 0, None
        )
        self.problem = None
        reader.consumer.flow(PERMITS)
        while some := await reader.next():
            await self._take(some)
            reader.done(some)
        self.problem = f"{self.topic} was closed; reading it again shortly"

    async def _take(self, some: Sequence[Arrived]) -> None:
        """Returns once they need not be redelivered."""
        while some:
            try:
                await self._apply(some)
                some = ()
            except Poison as poison:
                await self._set_apart(some[poison.behind], str(poison))
                some = some[poison.behind + 1 :]
            except MetadataError as error:
                self.problem = f"the metadata store did not accept an event of {some[0].region}: {error}"
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.problem = None

    async def _apply(self, some: Sequence[Arrived]) -> None:
        """:raises Poison: one of them cannot be applied."""
        messages: list[tuple[str, bytes]] = []
        refusal: Poison | None = None
        for arrived in some:
            try:
                messages.append((arrived.region, self._proven(arrived)))
            except Poison as poison:
                refusal = Poison(str(poison), behind=len(messages))
                break
        if self._listener is not None and messages:
            await self._listener(messages)
        if refusal is not None:
            raise refusal

    def _proven(self, arrived: Arrived) -> bytes:
        """The message without its proof. :raises Poison: it does not prove its origin."""
        if arrived.payload is None:
            raise Poison("it is compressed or a batch: no broker of Meridian wrote it")
        message, proof = arrived.payload[:-PROOF_BYTES], arrived.payload[-PROOF_BYTES:]
        proofs = (self._proof(arrived.region, message, secret) for secret in self._secrets())
        if not any(hmac.compare_digest(one, proof) for one in proofs):
            raise Poison(f"it carries no valid proof that a broker of {arrived.region} wrote it: check peerTokenFile")
        return message

    async def _set_apart(self, arrived: Arrived, reason: str) -> None:
        """Keep a copy in the dead-letter topic, without delaying later events for long."""
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
        self.missed += 1

    def _secrets(self) -> tuple[bytes, ...]:
        """:raises MetadataUnavailable: there is no secret, so forged events would go unnoticed."""
        secrets = self._identity.secrets()
        if not secrets:
            raise MetadataUnavailable(
                "this region has no peer secret, so it cannot detect forged events: set "
                "peerTokenFile, with the same secret in all regions"
            )
        return secrets

    @staticmethod
    def _proof(region: str, message: bytes, secret: bytes) -> bytes:
        return hmac.digest(secret, b"meridian metadata event\x00" + region.encode() + b"\x00" + message, "sha256")
