# SPDX-License-Identifier: Apache-2.0
"""How clients' producers come to a topic and leave it: names, numbers, and the access modes of ``access_modes.py``
done.

A producer that gets the topic alone holds the place from the moment of the decision; it is let in once the new epoch is
durable, so that no restart gives the same epoch twice. Those who wait are let in one after the other, oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import ProducerBusy, ProducerFenced, TopicFenced, TopicTerminated
from meridian_broker.topics.publishing.access_modes import AccessMode, Asked, Present, Verdict, decide, next_epoch

if TYPE_CHECKING:
    from meridian_broker.topics.publishing.producer import Producer, ProducerHost

_NEVER_REACHED: Final = 1 << 63
"""No epoch that was counted up to."""
Admitted = Callable[[Exception | None], None]
"""Hears None once a producer is let in, or why it is not."""


class _Waiting(NamedTuple):
    producer: Producer
    told: Admitted


class Admission:
    """The door of one topic."""

    def __init__(self, topic: ProducerHost) -> None:
        self._topic = topic
        self._waiting: deque[_Waiting] = deque()
        self._exclusive: Producer | None = None
        """Alone here, or about to be."""
        self.epoch: int | None = None
        """The last one that began, or is about to."""
        self._on_record: int | None = None
        self.ended: str | None = None
        """Why no producer comes in any more, when the topic was terminated."""
        self.limit = topic.limits.producers
        """Most producers of clients, those who wait among them."""

    def recall(self, epoch: int | None) -> None:
        """The epoch on record; None: no producer ever was alone here.

        A client may have made an earlier version record one that leaves hardly any after it. They go on far from both
        ends then.
        """
        self.epoch = self._on_record = epoch if epoch is None or epoch < _NEVER_REACHED else _NEVER_REACHED >> 1

    def add(self, producer: Producer) -> None:
        """Let in a replicator, which replaces its earlier connection, or a Shared producer.

        :raises ProducerBusy: the name is taken, or the topic is somebody's alone.
        :raises TopicFenced: the topic is not served now.
        :raises TopicTerminated: it accepts no more messages.
        """
        if producer.remote_region is None:
            refusals: list[Exception | None] = []
            self.admit(producer, refusals.append)
            if refusals[0] is not None:
                raise refusals[0]
            return
        self._topic.check_open()
        self._check_going_on()
        other = self._topic.producers.get(producer.name)
        self._enter(producer)
        if other is not None:
            other.port.disconnect_producer(other)

    def admit(self, producer: Producer, told: Admitted) -> bool:
        """Let a client's producer in, or not. ``told`` hears the outcome, now or later; True: it waits for others."""
        try:
            self._topic.check_open()
            self._check_going_on()
            verdict, epoch = self._decide(producer)
        except (ProducerBusy, ProducerFenced, TopicFenced, TopicTerminated) as error:
            told(error)
            return False
        if verdict is Verdict.WAIT:
            self._waiting.append(_Waiting(producer, told))
            return True
        if verdict is Verdict.SHARE:
            producer.topic_epoch = epoch
            self._enter(producer)
            told(None)
            return False
        if verdict is Verdict.FENCE_OTHERS:
            self._fence_others(producer)
        assert epoch is not None
        self._seize(producer, epoch, told)
        return False

    def _decide(self, producer: Producer) -> tuple[Verdict, int | None]:
        """:raises ProducerBusy, ProducerFenced: it may not come in."""
        topic, before = self._topic, self._predecessor(producer)
        clients = [one for one in topic.producers.values() if one.remote_region is None and one is not before]
        exclusive = self._exclusive is not None and self._exclusive is not before
        waiting = len(self._waiting) if before is None else 0  # who is in comes before those who wait
        asked = Asked(producer.access_mode, producer.asked_epoch)
        verdict, epoch = decide(asked, Present(self.epoch, len(clients), exclusive, waiting))
        if verdict is Verdict.REFUSE_SHARED:
            raise ProducerBusy(f"{topic.name} has an exclusive producer: close that one first")
        if verdict is Verdict.REFUSE_TAKEN:
            raise ProducerFenced(f"{topic.name} has {len(clients)} other producers: close them, wait, or fence them")
        if verdict is Verdict.REFUSE_OLD:
            raise ProducerFenced(
                f"another exclusive producer took over {topic.name} in epoch {self.epoch}, after epoch "
                f"{producer.asked_epoch} of this one: create a new producer"
            )
        if verdict is not Verdict.FENCE_OTHERS:
            if before is None and producer.name in topic.producers:
                raise ProducerBusy(f"producer {producer.name!r} is already connected: choose another name or none")
            if len(clients) + len(self._waiting) >= self.limit:
                raise ProducerBusy(f"the topic has {len(clients)} producers, its limit is {self.limit}: close some")
        if before is not None:
            self._exclusive = producer if self._exclusive is before else self._exclusive
            del topic.producers[before.name]
            before.port.disconnect_producer(before)
        return verdict, epoch

    def _predecessor(self, producer: Producer) -> Producer | None:
        """The same producer over an earlier connection, which nobody has noticed to be gone yet."""
        other = self._topic.producers.get(producer.name)
        if other is None or producer.epoch <= other.epoch:
            return None
        if not producer.name_is_given:
            return other
        # Only who was let in knows the epoch it was let in with, so the name is no coincidence.
        was_alone = other is self._exclusive and producer.access_mode is not AccessMode.SHARED
        return other if was_alone and producer.asked_epoch == other.topic_epoch else None

    def _fence_others(self, producer: Producer) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._exclusive = producer  # nobody else may slip in while the others go
        taken = ProducerFenced(f"producer {producer.name!r} took {self._topic.name} for itself alone")
        notify_all([one.told for one in waiting], taken)
        for other in list(self._topic.producers.values()):
            if other.remote_region is None:
                self._topic.remove_producer(other)
                other.port.disconnect_producer(other)

    def _seize(self, producer: Producer, epoch: int, told: Admitted) -> None:
        self._exclusive = producer
        producer.topic_epoch = epoch
        if epoch == self.epoch:
            self._enter(producer)
            told(None)
            return
        self.epoch = epoch
        self._topic.scheduler.spawn(self._begin_epoch(producer, epoch, told), "begin an exclusive producer's epoch")

    async def _begin_epoch(self, producer: Producer, epoch: int, told: Admitted) -> None:
        topic = self._topic
        try:
            if topic.metadata is not None:
                await topic.metadata.save_topic_epoch(epoch)
        except MetadataError as error:
            if self.epoch == epoch:  # it never began: who was let in before may come again
                self.epoch = self._on_record
            self.gone(producer)
            told(error)
            return
        self._on_record = epoch
        self.epoch = epoch if self.epoch is None else max(epoch, self.epoch)
        if topic.failure is not None:
            told(TopicFenced(f"{topic.name} is not served now ({topic.failure}): look it up again"))
        elif self.ended is not None:
            self.gone(producer)
            told(TopicTerminated(self.ended))
        elif self._exclusive is not producer:
            told(ProducerFenced(f"another producer took {topic.name} for itself alone meanwhile, or this one left"))
        else:
            self._enter(producer)
            told(None)

    def _enter(self, producer: Producer) -> None:
        self._topic.producers[producer.name] = producer
        self._topic.entered(producer)

    def gone(self, producer: Producer) -> None:
        """A producer left, whether it was in, waiting or just about to come in."""
        for one in [one for one in self._waiting if one.producer is producer]:
            self._waiting.remove(one)
            one.told(ProducerFenced("this producer was closed while it waited"))
        if self._exclusive is producer:
            self._exclusive = None
        if self._waiting and self._exclusive is None and not self._clients():
            following = self._waiting.popleft()
            asked = Asked(following.producer.access_mode, following.producer.asked_epoch)
            self._seize(following.producer, next_epoch(asked, self.epoch), following.told)

    def _clients(self) -> bool:
        return any(one.remote_region is None for one in self._topic.producers.values())

    @property
    def is_expecting(self) -> bool:
        """Somebody waits, or is about to come in."""
        return bool(self._waiting) or self._exclusive is not None

    def _check_going_on(self) -> None:
        """:raises TopicTerminated: there is nothing more to publish."""
        if self.ended is not None:
            raise TopicTerminated(self.ended)

    def close(self, reason: str) -> None:
        """The topic is not served any more: those who wait look it up again."""
        self._turn_away(TopicFenced(f"{self._topic.name} is not served now ({reason}): look it up again"))

    def end(self, reason: str) -> None:
        """The topic takes no more messages: nobody comes in from now on."""
        self.ended = reason
        self._turn_away(TopicTerminated(reason))

    def _turn_away(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._exclusive = None
        notify_all([one.told for one in waiting], error)
