# SPDX-License-Identifier: Apache-2.0
"""Messages for a broker of either kind, Meridian or Apache Pulsar."""

from __future__ import annotations

from typing import Any

from support.brokers.broker_process import BrokerProcess
from support.brokers.pulsar_process import PulsarProcess
from support.brokers.region_clients import connected

NAMESPACE = "shop/orders"
Side = BrokerProcess | PulsarProcess


def publish(side: Side, topic: str, messages: list[bytes], **options: Any) -> None:
    with connected(side.service_url) as client:
        producer = client.create_producer(topic, **options)
        for message in messages:
            producer.send_async(message, lambda *_: None, partition_key=message[:3].decode())
        producer.flush()


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name}-{number:04}".encode() * 20 for number in range(count)]
