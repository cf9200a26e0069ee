# SPDX-License-Identifier: Apache-2.0
"""Messages for a broker of either kind, Meridian or Apache Pulsar."""

from __future__ import annotations

from typing import Any

import pulsar
from support.brokers.broker_process import BrokerProcess
from support.brokers.pulsar_process import PulsarProcess

NAMESPACE = "shop/orders"
Side = BrokerProcess | PulsarProcess


def publish(side: Side, topic: str, messages: list[bytes], **options: Any) -> None:
    client = pulsar.Client(side.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, **options)
        for message in messages:
            producer.send_async(message, lambda *_: None, partition_key=message[:3].decode())
        producer.flush()
    finally:
        client.close()


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name}-{number:04}".encode() * 20 for number in range(count)]
