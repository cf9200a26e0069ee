# SPDX-License-Identifier: Apache-2.0
"""Consumer selection for messages that are not stored: a dispatcher without a log."""

from __future__ import annotations

from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.key_ranges import AutoSplit, KeySharedPolicy, Split, StickyRanges, slot_of
from meridian_broker.topics.dispatch.single import preferred
from meridian_broker.topics.errors import ConsumerBusy
from meridian_broker.wire.pulsar import metadata as message_metadata
from meridian_broker.wire.pulsar.metadata import MetadataView


class Selection:
    """Exclusive: the active consumer gets every message."""

    def __init__(self, partition: int, _policy: KeySharedPolicy | None) -> None:
        """:param _policy: the first consumer's key distribution, for Key_Shared."""
        self._partition = partition
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        """:raises ConsumerBusy, ConsumerAssignError: it does not fit the connected consumers."""
        self.consumers.append(consumer)
        self._choose(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._choose(None)

    def _choose(self, _newcomer: Consumer | None) -> None:
        self.active = preferred(self.consumers, self._partition)

    def pick(self, _view: MetadataView) -> Consumer | None:
        """The consumer for this message, if it is ready; None: there is none."""
        return self.active


class FailoverSelection(Selection):
    """Failover: as Exclusive, with standby consumers. Each is told whether it is the active one."""

    def _choose(self, newcomer: Consumer | None) -> None:
        before = self.active
        super()._choose(newcomer)
        affected = self.consumers if self.active is not before else [newcomer] if newcomer is not None else []
        for consumer in affected:
            consumer.port.active_consumer_changed(consumer, consumer is self.active)


class RotatingSelection(Selection):
    """Shared: ready consumers take turns, highest priority first."""

    def __init__(self, partition: int, policy: KeySharedPolicy | None) -> None:
        super().__init__(partition, policy)
        self._turn = 0

    def pick(self, _view: MetadataView) -> Consumer | None:
        ready = [consumer for consumer in self.consumers if consumer.ready]
        if not ready:
            return None
        best = min(consumer.priority for consumer in ready)
        ready = [consumer for consumer in ready if consumer.priority == best]
        self._turn += 1
        return ready[self._turn % len(ready)]


class KeySelection(Selection):
    """Key_Shared: the consumer that owns the message's key."""

    def __init__(self, partition: int, policy: KeySharedPolicy | None) -> None:
        super().__init__(partition, policy)
        self._policy = policy or KeySharedPolicy()
        self._split: Split[Consumer] = StickyRanges() if self._policy.sticky else AutoSplit()

    def add(self, consumer: Consumer) -> None:
        policy = consumer.key_shared or KeySharedPolicy()
        if not policy.fits(self._policy):
            name = consumer.subscription.name
            raise ConsumerBusy(f"consumers of {name!r} share keys by {self._policy}, not by {policy}")
        self._split.join(consumer, consumer.name, policy.ranges)
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._split.leave(consumer)
        super().remove(consumer)

    def pick(self, view: MetadataView) -> Consumer | None:
        return self._split.owner(slot_of(message_metadata.key_hash(view)))
