# SPDX-License-Identifier: Apache-2.0
"""Whether a connection's role may do what a command asks for. Brokers of other regions always may (R7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.metadata.authorizing import Wish
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection


def check(connection: Connection, wish: Wish, topic: TopicName) -> None:
    """:raises AuthorizationError: it may not."""
    if not connection.is_peer:
        connection.broker.authorization.check(connection.role, wish, topic)


def check_listing(connection: Connection, namespace: str) -> None:
    """:raises AuthorizationError: it may not list the topics of ``tenant/namespace``."""
    if not connection.is_peer:
        connection.broker.authorization.check_in(connection.role, Wish.LIST, namespace)
