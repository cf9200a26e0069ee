# SPDX-License-Identifier: Apache-2.0
"""A consumer of a subscription, and the port to its connection."""

from __future__ import annotations

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
    """The topic of a consumer, one that stores its messages or one that does not."""

    name: str
    partition: int
    scheduler: Scheduler


class ConsumerHost(Protocol):
    """The subscription of a consumer, seen from it and from its connection."""

    @property
    def topic(self) -> ConsumerTopic: ...

    @property
    def name(self) -> str: ...

    @property
    def type_name(self) -> str:
        """Its type, as policies and statistics name it."""
        ...

    @property
    def consumers(self) -> list[Consumer]: ...

    @property
    def pace(self) -> Pace | None:
        """The rates it is held to."""
        ...

    def dispatch_soon(self) -> None:
        """A consumer may take more."""
        ...

    def leave(self, consumer: Consumer, /) -> None:
        """The consumer is gone; a subscription that was there for it alone goes with it."""
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
        """Everything up to ``position``, see ``Subscription.acknowledge_cumulative``."""
        ...

    def send_again(self, consumer: Consumer, positions: list[Position] | None, consumer_epoch: int, /) -> None:
        """The consumer gives entries back: those named, or all it holds."""
        ...

    def backlog(self) -> int:
        """Entries owed, as far as can be told at once."""
        ...


class Consumer(AckState):
    """One SUBSCRIBE. Permits count messages and may go below zero, for a batch is sent whole."""

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
        """How it wants keys to be shared; None: in the usual way, or it is of another type."""
        self.read_compacted = read_compacted
        """It asks for the compacted view, as far as there is one."""
        self.consumer_epoch = 0
        self.permits = 0
        self.unacked: dict[Position, int] | None = None
        """Shared: messages of each entry sent and not yet acked."""
        self.unacked_messages = 0
        self.blocked = False
        self.knows_end = False
        """It was told that the topic is terminated and read to its end."""
        self.messages_out = 0
        self.bytes_out = 0

    def flow(self, permits: int) -> None:
        """The client has room for ``permits`` more messages."""
        self.permits += permits
        self.subscription.dispatch_soon()

    def resume(self) -> None:
        """The connection can take more bytes again."""
        self.subscription.dispatch_soon()

    @property
    def ready(self) -> bool:
        """May an entry be sent to it now?"""
        pace = self.subscription.pace
        return self.permits > 0 and not self.blocked and (pace is None or not pace.held) and self.port.writable()
