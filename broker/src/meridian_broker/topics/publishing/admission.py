# SPDX-License-Identifier: Apache-2.0
"""How clients' producers enter and leave a topic: names, limits, and the decisions of ``access_modes.py`` carried
out.

A producer that gets exclusive access has it reserved from the moment of the decision. It is admitted once the new
epoch is durable, so that no epoch is assigned twice after a restart. Waiting producers are admitted one at a time,
oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import NotAllowed, ProducerBusy, ProducerFenced, TopicFenced, TopicTerminated
from meridian_broker.topics.publishing.access_modes import AccessMode, Asked, Present, Verdict, decide, next_epoch

if TYPE_CHECKING:
    from meridian_broker.topics.publishing.producer import Producer, ProducerHost

_NEVER_REACHED: Final = 1 << 63
"""An epoch that cannot be reached by counting."""
Admitted = Callable[[Exception | None], None]
"""Called with None once a producer is admitted, or with the reason why it is not."""


class _Waiting(NamedTuple):
    producer: Producer
    told: Admitted


class Admission:
    """Admits producers to one topic."""

    def __init__(self, topic: ProducerHost) -> None:
        self._topic = topic
        self._waiting: deque[_Waiting] = deque()
        self._exclusive: Producer | None = None
        """The producer with exclusive access, or about to get it."""
        self.epoch: int | None = None
        """The last epoch that began, or is about to."""
        self._on_record: int | None = None
        self.ended: str | None = None
        """Why no producer is admitted any more, if the topic was terminated."""
        self.limit = topic.limits.producers
        """Maximum of client producers, including waiting ones."""

    def follow(self, limit: int) -> None:
        """Admit no more client producers than this from now on; those that are there stay."""
        self.limit = limit

    def restore(self, epoch: int | None) -> None:
        """Set the recorded epoch; None: no producer ever had exclusive access here.

        A client may have made an earlier version record an epoch that leaves hardly any after it. Such a topic
        continues with epochs far from both ends.
        """
        self.epoch = self._on_record = epoch if epoch is None or epoch < _NEVER_REACHED else _NEVER_REACHED >> 1

    def add(self, producer: Producer) -> None:
        """Admit a replicator, which replaces its earlier connection, or a Shared producer.

        :raises ProducerBusy: the name is in use, or another producer has exclusive access.
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
        if producer.from_source is None:
            self._check_going_on()
        other = self._topic.producers.get(producer.name)
        self._enter(producer)
        if other is not None:
            other.gone()
            other.port.disconnect_producer(other)

    def admit(self, producer: Producer, told: Admitted) -> bool:
        """Admit or refuse a client's producer. ``told`` is called with the outcome, now or later. Returns True if it
        waits for others.
        """
        try:
            self._topic.check_admits()
            self._check_going_on()
            verdict, epoch = self._decide(producer)
        except (NotAllowed, ProducerBusy, ProducerFenced, TopicFenced, TopicTerminated) as error:
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
        """:raises ProducerBusy, ProducerFenced: it is refused."""
        topic, before = self._topic, self._predecessor(producer)
        clients = [one for one in topic.producers.values() if one.remote_region is None and one is not before]
        exclusive = self._exclusive is not None and self._exclusive is not before
        waiting = len(self._waiting) if before is None else 0  # connected producers come before waiting ones
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
        """The same producer on an earlier connection that is dead, which was not noticed yet."""
        other = self._topic.producers.get(producer.name)
        if other is None or producer.epoch <= other.epoch:
            return None
        if not producer.name_is_given:
            return other
        # Only a producer that was admitted knows its epoch, so the equal name is not a coincidence.
        is_same_exclusive = other is self._exclusive and producer.access_mode is not AccessMode.SHARED
        return other if is_same_exclusive and producer.asked_epoch == other.topic_epoch else None

    def _fence_others(self, producer: Producer) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._exclusive = producer  # no other producer may get in while the others leave
        taken = ProducerFenced(f"producer {producer.name!r} took exclusive access to {self._topic.name}")
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
            if self.epoch == epoch:  # it never began: a producer admitted before may return
                self.epoch = self._on_record
            self.gone(producer)
            told(error)
            return
        self._on_record = epoch
        self.epoch = epoch if self.epoch is None else max(epoch, self.epoch)
        try:
            topic.check_admits()
        except TopicFenced as error:
            self.gone(producer)
            told(error)
            return
        if self.ended is not None:
            self.gone(producer)
            told(TopicTerminated(self.ended))
        elif self._exclusive is not producer:
            told(ProducerFenced(f"another producer took exclusive access to {topic.name} meanwhile, or this one left"))
        else:
            self._enter(producer)
            told(None)

    def _enter(self, producer: Producer) -> None:
        self._topic.producers[producer.name] = producer
        self._topic.entered(producer)

    def gone(self, producer: Producer) -> None:
        """A producer left, whether it was admitted, waiting or about to be admitted."""
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
        """Whether a producer waits or is about to be admitted."""
        return bool(self._waiting) or self._exclusive is not None

    def _check_going_on(self) -> None:
        """:raises TopicTerminated: it accepts no more messages. :raises NotAllowed: it never did."""
        self._topic.check_own_log("publish to")
        if self.ended is not None:
            raise TopicTerminated(self.ended)

    def close(self, reason: str) -> None:
        """The topic is not served any more: waiting producers look it up again."""
        self._turn_away(TopicFenced(f"{self._topic.name} is not served now ({reason}): look it up again"))

    def end(self, reason: str) -> None:
        """The topic accepts no more messages: no producer is admitted from now on."""
        self.ended = reason
        self._turn_away(TopicTerminated(reason))

    def _turn_away(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._exclusive = None
        notify_all([one.told for one in waiting], error)
