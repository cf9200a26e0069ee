# SPDX-License-Identifier: Apache-2.0
"""Limits on all clients together, so that many of them cannot crowd each other out."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.server.setting_fields import whole

_RATE_MAX = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Connections, rates and memory of all clients together. A client that publishes faster than a rate allows is not
    read from for a while; nothing is refused."""

    broker_max_connections: int = whole(0, 0, 1_000_000)
    """Client connections to the Pulsar ports; those of other regions do not count. Further connections receive an
    error and are closed. 0: as many as the limit of open files allows, minus those reserved for the broker
    itself."""

    broker_max_connections_per_ip: int = whole(0, 0, 1_000_000)
    """The same for connections from one address. 0: no limit."""

    max_http_server_connections: int = whole(2048, 8, 1_000_000)
    """Connections to the HTTP ports. Beyond that, a new connection replaces the one that has been idle longest, and is
    refused if none is idle. The limit of open files may allow fewer."""

    max_http_server_connections_per_ip: int = whole(512, 4, 1_000_000)
    """The same for connections from one address."""

    max_message_publish_buffer_size_in_mb: int = whole(
        256, 0, 1_000_000, key="maxMessagePublishBufferSizeInMB", dynamic=True
    )
    """Mebibytes of messages, of all clients together, that wait to be durable. Beyond that, the broker stops reading
    from connections that publish until half are stored. 0: no limit."""

    max_concurrent_topic_load_request: int = whole(64, 1, 100_000)
    """Topics that are opened at the same time; others wait for their turn. Pulsar's default is 5000. Here, a higher
    limit opens none of them sooner and delays everything else: a broker that takes over the topics of a dead one could
    lose its own lease."""

    broker_publisher_throttling_max_message_rate: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Messages a second that all clients together may publish. 0: no limit."""

    broker_publisher_throttling_max_byte_rate: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Bytes a second that all clients together may publish. 0: no limit."""

    max_publish_rate_per_topic_in_messages: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Messages a second that clients may publish to one topic or partition. Policies of the topic or its namespace come
    first. 0: no limit."""

    max_publish_rate_per_topic_in_bytes: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """The same in bytes a second."""

    dispatch_throttling_rate_per_topic_in_msg: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Messages a second sent to all consumers of one topic or partition. Policies come first. 0: no limit."""

    dispatch_throttling_rate_per_topic_in_byte: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """The same in bytes a second."""

    dispatch_throttling_rate_per_subscription_in_msg: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Messages a second sent to the consumers of one subscription. Policies come first. 0: no limit."""

    dispatch_throttling_rate_per_subscription_in_byte: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """The same in bytes a second."""

    dispatch_throttling_rate_per_replicator_in_msg: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """Messages a second of one topic or partition sent to each other region. Policies come first. 0: no limit."""

    dispatch_throttling_rate_per_replicator_in_byte: int = whole(0, 0, _RATE_MAX, dynamic=True)
    """The same in bytes a second."""

    @property
    def publish_buffer_bytes(self) -> int:
        """0: no limit."""
        return self.max_message_publish_buffer_size_in_mb << 20
