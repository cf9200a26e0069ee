# SPDX-License-Identifier: Apache-2.0
"""The broker as its connections see it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from meridian_broker.gateway.addresses import AddressBook, Locate, NextOwner, WhenMoved
from meridian_broker.gateway.authentication import Authentication
from meridian_broker.gateway.authorization import Authorization
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.pulsar.connected import Connected
from meridian_broker.gateway.pulsar.expiry import Expiries
from meridian_broker.gateway.pulsar.flow import BYTES, WRITE_BYTES, turn_bytes
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.service.service import TopicService
from meridian_broker.wire.pulsar.encode import BroadcastMessages

LONG_ANSWERS: Final = 4
"""Topic lists and schemas built at the same time; each may take megabytes."""


class Peers(Protocol):
    """Handles the commands of peer brokers."""

    def received(self, connection: Connected, kind: int, message: Any) -> None:
        """A peer command (types from 1000)."""
        ...

    def gone(self, connection: Connected) -> None:
        """A connection that a peer had opened is closed."""
        ...


@dataclass
class Broker:
    """One broker process, seen from its connections."""

    region: str
    service: TopicService
    peers: Peers
    addresses: AddressBook
    """Where lookups send clients."""
    authentication: Authentication
    authorization: Authorization
    identity: PeerIdentity
    max_message_bytes: int
    pending_publishes: int
    publish_bytes_max: int
    """Limit on bytes of messages that are not durable yet, across all connections; at the limit, publishers wait."""
    connections_max: int
    """Limit for client connections; those of other brokers do not count."""
    connections_per_address_max: int
    """0: no limit."""
    strangers_max: int
    """Limit for connections without a CONNECT. One more closes the oldest: clients send CONNECT at once."""
    concurrent_lookups: int
    pattern_length: int
    """Longest topic name pattern that is evaluated for clients."""
    keep_alive_seconds: float
    producer_name: Callable[[], str]
    """Generates names for producers that have none."""
    objections: Callable[[str, str], Awaitable[str | None]]
    """Asks the other regions why a replicated subscription of a topic must not be deleted now; None: it may be."""
    locate: Locate | None = None
    """Where topics are; None: this broker serves every topic of its region."""
    when_moved: WhenMoved | None = None
    """Waits for another owner of topics whose broker has died; None: there is no other broker."""
    next_owner: NextOwner | None = None
    """Where topics that are being closed go; None: they stay, because this broker is its region's only one."""
    reserved: Callable[[str], str | None] = lambda _: None
    """Why clients may not use a topic; None: they may."""
    ready: bool = False
    """Set once everything is open; until then other brokers are served, and clients wait for the answer to CONNECT."""
    waiting: dict[Connected, Callable[[], None]] = field(default_factory=dict)
    """Clients that sent CONNECT before that, with the callback that answers each."""
    draining: bool = False
    lookups: int = 0
    """Lookups and partition queries under way."""
    long_answers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LONG_ANSWERS))
    """Held while an answer that may be long is built."""
    delivered: BroadcastMessages = field(default_factory=BroadcastMessages)
    """The entries that were sent last. A broadcast sends them to the next consumer, too."""
    turn_bytes: int = WRITE_BYTES
    """Limit on what each connection may write in a turn of the loop."""
    publish_bytes: int = 0
    held_back: set[Connected] = field(default_factory=set)
    """Connections not read until ``publish_bytes`` falls to half its limit."""
    connections: set[Connected] = field(default_factory=set)
    strangers: dict[Connected, None] = field(default_factory=dict)
    """Connections without a CONNECT, oldest first."""
    clients: set[Connected] = field(default_factory=set)
    expiries: Expiries = field(default_factory=Expiries)
    addresses_connected: Counter[str] = field(default_factory=Counter)
    """Number of clients per address."""

    def check_for_clients(self, topic: str) -> None:
        """:raises NotAllowed: the topic is not for clients."""
        if (reason := self.reserved(topic)) is not None:
            raise NotAllowed(reason)

    def begin_drain(self) -> None:
        """The broker is about to stop: refuse connections, and say so in health checks."""
        self.draining = True

    def set_limits(self, *, publish_bytes_max: int, concurrent_lookups: int) -> None:
        """Set the limits again, for existing connections as well."""
        self.publish_bytes_max = publish_bytes_max
        self.concurrent_lookups = concurrent_lookups

    def connected(self, connection: Connected) -> None:
        """A connection was accepted."""
        self.connections.add(connection)
        self.turn_bytes = turn_bytes(len(self.connections))
        self.strangers[connection] = None
        if len(self.strangers) > self.strangers_max:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.end("it sent no CONNECT, and new connections need its place")

    def let_in(self, connection: Connected) -> str | None:
        """Admit an authenticated connection. Returns the reason if it may not stay; brokers always may."""
        address = connection.address
        self.strangers.pop(connection, None)
        if connection.is_peer or connection.is_own_broker:
            return None
        if len(self.clients) >= self.connections_max:
            return f"this broker has reached its limit of {self.connections_max} connections (brokerMaxConnections)"
        if 0 < self.connections_per_address_max <= self.addresses_connected[address]:
            return (
                f"{address} is at the limit of {self.connections_per_address_max} connections per address "
                "(brokerMaxConnectionsPerIp)"
            )
        self.clients.add(connection)
        self.addresses_connected[address] += 1
        return None

    def disconnected(self, connection: Connected) -> None:
        self.connections.discard(connection)
        self.turn_bytes = turn_bytes(len(self.connections))
        self.held_back.discard(connection)
        self.strangers.pop(connection, None)
        self.waiting.pop(connection, None)
        if connection in self.clients:
            self.clients.discard(connection)
            address = connection.address
            self.addresses_connected[address] -= 1
            if not self.addresses_connected[address]:
                del self.addresses_connected[address]

    def lets_wait(self, connection: Connected, answer: Callable[[], None]) -> bool:
        """Answer a CONNECT once startup is complete. False: too many are waiting already."""
        if len(self.waiting) >= self.connections_max:
            return False
        self.strangers.pop(connection, None)
        self.waiting[connection] = answer
        return True

    def admit(self) -> None:
        """Startup is complete: answer the waiting clients."""
        self.ready = True
        waiting, self.waiting = self.waiting, {}
        notify_all(list(waiting.values()))

    def let_on(self) -> None:
        """Resume reading from connections that were held back, once half of the bytes are durable."""
        if self.publish_bytes <= self.publish_bytes_max // 2:
            held_back, self.held_back = self.held_back, set()
            for connection in held_back:
                connection.read_on(BYTES)

    def peer_gone(self, connection: Connected) -> None:
        self.peers.gone(connection)

    async def keep_alive(self, *, peers: bool) -> None:
        """Ping silent connections, close dead ones. Call it every ``keep_alive_seconds`` for clients, and every
        ``PEER_KEEP_ALIVE_SECONDS`` for brokers, which must also hold a secret that is in force."""
        for one in tuple(self.connections) if peers else ():
            if one.peer_secret and not self.identity.holds(one.peer_secret):
                one.end("the peer secret that it proved was removed")
        notify_all([one.keep_alive for one in self.connections if bool(one.peer_secret) == peers])
