# SPDX-License-Identifier: Apache-2.0
"""Clients that publish numbers, consume them and keep records."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pulsar

PAUSE_SECONDS = 0.05
"""Interval between two messages of a producer."""
SEND_TIMEOUT_MS = 600_000
"""Longer than any part of a walk keeps a region away: each message is stored then, and none is refused."""


class Traffic:
    """Producers in several regions, and in one of them a consumer of a replicated subscription.

    It acknowledges two of three messages.
    """

    def __init__(
        self,
        clients: Mapping[str, pulsar.Client],
        topic: str,
        producers: Sequence[str],
        *,
        consumer: str,
        begin: int = 0,
    ) -> None:
        """
        :param producers: their regions.
        :param consumer: its region.
        :param begin: the first number.
        """
        self.begin = self.published = begin
        self.stored: dict[str, set[int]] = {region: set() for region in producers}
        """Numbers with a receipt, by the region that gave it."""
        self.received: set[int] = set()
        """Numbers that the consumer received, acknowledged or not."""
        self.acked: set[int] = set()
        self.acked_at: dict[int, float] = {}
        """When the consumer last acknowledged each, by the monotonic clock."""
        self.refused: list[str] = []
        self.repeated: list[int] = []
        """Numbers acknowledged and then redelivered."""
        self.repeated_at: list[float] = []
        """When each of them was redelivered, by the monotonic clock."""
        self._over = threading.Event()
        self._consumer = working(clients[consumer], topic)
        self._producers = {
            region: clients[region].create_producer(
                topic, send_timeout_millis=SEND_TIMEOUT_MS, max_pending_messages=20_000
            )
            for region in producers
        }
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; returns once all receipts and acknowledgements have arrived. A second call does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        for producer in self._producers.values():
            producer.flush()
            producer.close()
        self._consumer.close()

    def _publish(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            for region, producer in self._producers.items():
                number, self.published = self.published, self.published + 1
                producer.send_async(str(number).encode(), self._answered(region, number))

    def _answered(self, region: str, number: int) -> Callable[[pulsar.Result, object], None]:
        def answered(result: pulsar.Result, _: object) -> None:
            if result == pulsar.Result.Ok:
                self.stored[region].add(number)
            else:
                self.refused.append(f"{region}: {result}")

        return answered

    def _consume(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = self._consumer.receive(200)
                number = int(message.data())
                self.received.add(number)
                if number in self.acked:
                    self.repeated.append(number)
                    self.repeated_at.append(time.monotonic())
                if number % 3:
                    self._consumer.acknowledge(message)
                    self.acked.add(number)
                    self.acked_at[number] = time.monotonic()


def working(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """A consumer of a replicated subscription."""
    return client.subscribe(
        topic,
        "work",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )


def auditing(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """A consumer of everything that its region has."""
    return client.subscribe(topic, "audit", initial_position=pulsar.InitialPosition.Earliest)


def drain(consumer: pulsar.Consumer, wanted: set[int]) -> list[int]:
    """Receive until everything wanted came, then until nothing more comes, or nothing for a minute."""
    came: list[int] = []
    while True:
        try:
            message = consumer.receive(2_000 if wanted <= set(came) else 60_000)
        except pulsar.Timeout:
            return came
        consumer.acknowledge(message)
        came.append(int(message.data()))


def receive_all(consumer: pulsar.Consumer, wanted: set[str]) -> list[pulsar.Message]:
    """Receive until everything wanted came, then until nothing more comes. Acknowledges everything."""
    came: list[pulsar.Message] = []
    left = set(wanted)
    while True:
        try:
            message = consumer.receive(60_000 if left else 2_000)
        except pulsar.Timeout:
            return came
        consumer.acknowledge(message)
        came.append(message)
        left.discard(message.data().decode())
