# SPDX-License-Identifier: Apache-2.0
"""A client whose producer or consumer is closed because its topic goes to another broker is told which, so that it
need not look the topic up (Pulsar's PIP-307)."""

from __future__ import annotations

from typing import Final

from meridian_broker.gateway.addresses import Addresses
from meridian_broker.wire.proto import pulsar_pb2 as pb

OURS: Final = (1 << 64) - 1
"""Id of requests that are the broker's own: clients do not answer them."""


def close_producer(producer_id: int, to: Addresses | None) -> pb.CommandCloseProducer:
    """Tells the client to create its producer again. :param to: the next owner of the topic, if it goes to another."""
    message = pb.CommandCloseProducer(producer_id=producer_id, request_id=OURS)
    _name(to, message)
    return message


def close_consumer(consumer_id: int, to: Addresses | None) -> pb.CommandCloseConsumer:
    """Tells the client to subscribe again. :param to: the next owner of the topic, if it goes to another."""
    message = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=OURS)
    _name(to, message)
    return message


def _name(to: Addresses | None, message: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> None:
    if to is not None and to.service_url is not None:
        message.assignedBrokerServiceUrl = to.service_url
    if to is not None and to.service_url_tls is not None:
        message.assignedBrokerServiceUrlTls = to.service_url_tls
