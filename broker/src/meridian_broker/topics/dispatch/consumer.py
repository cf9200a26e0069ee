# SPDX-License-Identifier: Apache-2.0
"""A consumer of a subscription, and the port to its connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors.ack_state import AckState
from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.dispatch.rates import Pace


class ConsumerPort(Protocol):
    """A client connection, seen from a consumer."""

    def deliver(
        self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None
    ) -> None:
        """Send one stored entry. ``remaining``: bits of the batch indexes not yet acked, None for all."""
        ...

    def writable(self) -> bool:
        """False while the client reads too slowly: the connection calls ``Consumer.resume`` when that ends."""
        ...

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Tell the client to look up and subscribe again."""
        ...

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell a Failover consumer whether it is the one that gets messages."""
        ...

    def reached_end(self, consumer: Consumer) -> None:
        """Tell the client that the topic is terminated and read to its end."""
        ...


class ConsumerTopic(Protocol):
    """What a consumer needs from its topic, persistent or not."""

    name: str
    partition: int
    scheduler: Scheduler


class ConsumerHost(Protocol):
    """What a consumer and its connection need from its subscription."""

    @property
    def topic(self) -> ConsumerTopic: ...

    @property
    def name(self) -> str: ...

    @property
    def type_name(self) -> str:
        """Name of the subscription type, as in policies and statistics."""
        ...

    @property
    def consumers(self) -> Sequence[Consumer]: ...

    @property
    def pace(self) -> Pace | None:
        """The subscription's rate limits; None: it has none."""
        ...

    def dispatch_soon(self) -> None:
        """A consumer may be able to take more entries."""
        ...

    def leave(self, consumer: Consumer, /) -> None:
        """The consumer left. A subscription that existed for it alone is removed as well."""
        ...

    def acknowledge(
        self,
        consumer: Consumer,
        positions: list[Position],
        batches: dict[Position, int] | None = None,
        confirmed: Done | None = None,
        /,
    ) -> None:
        """Individual acknowledgement, see ``Subscription.acknowledge``."""
        ...

    def acknowledge_cumulative(
        self, consumer: Consumer, position: Position, part: int | None = None, confirmed: Done | None = None, /
    ) -> None:
        """Acknowledge everything up to ``position``, see ``Subscription.acknowledge_cumulative``."""
        ...

    def send_again(self, consumer: Consumer, positions: list[Position] | None, consumer_epoch: int, /) -> None:
        """The consumer returns entries: those named, or all that it holds."""
        ...

    def backlog(self) -> int:
        """Entries owed, as far as they can be counted without I/O."""
        ...


class Consumer(AckState):
    """A consumer: one SUBSCRIBE. Permits count messages and may become negative, because a batch is sent whole."""

    __slots__ = (
        "blocked",
        "bytes_out",
        "connected_since_ms",
        "consumer_epoch",
        "consumer_id",
        "key_shared",
        "knows_end",
        "messages_out",
        "metadata",
        "name",
        "permits",
        "port",
        "priority",
        "read_compacted",
        "stalled",
        "subscription",
        "unacked",
        "unacked_messages",
    )

    def __init__(
        self,
        subscription: ConsumerHost,
        port: ConsumerPort,
        consumer_id: int,
        name: str,
        priority: int,
        connected_since_ms: int,
        metadata: dict[str, str] | None,
        key_shared: KeySharedPolicy | None = None,
        epoch: Stamp = ZERO,
        read_compacted: bool = False,
    ) -> None:
        super().__init__(epoch)
        self.subscription = subscription
        self.port = port
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.connected_since_ms = connected_since_ms
        self.metadata = metadata
        self.key_shared = key_shared
        """How it wants keys to be distributed; None: by the default, or the type is not Key_Shared."""
        self.read_compacted = read_compacted
        """It asks for the compacted view, if there is one."""
        self.consumer_epoch = 0
        self.permits = 0
        self.unacked: dict[Position, int] | None = None
        """Shared: number of messages of each entry that was sent and not acked yet."""
        self.unacked_messages = 0
        self.blocked = False
        self.stalled = False
        """Something was not sent to it because its connection took no more."""
        self.knows_end = False
        """It was notified that the topic is terminated and that it has read all of it."""
        self.messages_out = 0
        self.bytes_out = 0

    def flow(self, permits: int) -> None:
        """The client granted ``permits`` more messages."""
        had, self.permits = self.permits, self.permits + permits
        if had <= 0:  # otherwise nothing waited for permits
            self.subscription.dispatch_soon()

    def resume(self) -> None:
        """The connection accepts output again."""
        if self.stalled:
            self.stalled = False
            self.subscription.dispatch_soon()

    def writable(self) -> bool:
        """Whether its connection accepts output. If not, it is dispatched to again once the connection does."""
        return self.port.writable() or self._stall()

    def _stall(self) -> bool:
        self.stalled = True
        return False

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent to it now."""
        if self.permits <= 0 or self.blocked:
            return False
        pace = self.subscription.pace
        if pace is not None and pace.held:
            return False
        return self.port.writable() or self._stall()  # as ``writable``, without the call: asked for every message
