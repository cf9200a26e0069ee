# SPDX-License-Identifier: Apache-2.0
"""Tells a client whose producer or consumer is closed which broker takes over the topic, so that it need not look the
topic up (Pulsar's PIP-307)."""

from __future__ import annotations

from typing import Final

from meridian_broker.gateway.addresses import Addresses
from meridian_broker.wire.proto import pulsar_pb2 as pb

OURS: Final = (1 << 64) - 1
"""Id of the broker's own requests, which clients do not answer."""


def close_producer(producer_id: int, to: Addresses | None) -> pb.CommandCloseProducer:
    """Tells the client to create its producer again. :param to: the topic's next owner, if it moves."""
    message = pb.CommandCloseProducer(producer_id=producer_id, request_id=OURS)
    _name(to, message)
    return message


def close_consumer(consumer_id: int, to: Addresses | None) -> pb.CommandCloseConsumer:
    """Tells the client to subscribe again. :param to: the topic's next owner, if it moves."""
    message = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=OURS)
    _name(to, message)
    return message


def _name(to: Addresses | None, message: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> None:
    if to is not None and to.service_url is not None:
        message.assignedBrokerServiceUrl = to.service_url
    if to is not None and to.service_url_tls is not None:
        message.assignedBrokerServiceUrlTls = to.service_url_tls
