# SPDX-License-Identifier: Apache-2.0
"""One client process of the demo: it publishes an airport's flights, or consumes with several consumers.

A consuming worker stands by until a line arrives on its standard input, as a service in a second region would.

A worker writes its events to a file of fixed-size records, because that is cheap and survives whatever happens to
the worker itself. It ends at SIGTERM: a publisher when its messages are confirmed, consumers after ``close()`` - or at
once, if the region they used is dead.

A consumer's record: ``kind | message id | flight | time ms``. Kind D: delivered, A: acknowledge() returned.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import flights
import pulsar

RECORD = struct.Struct("<cqqhiq")
"""kind, ledger, entry, index in the batch, flight, milliseconds."""
HOLD_SHARE = 0.01
"""This fraction of the messages is acknowledged late, on purpose: out of order, and some not before the region dies."""
HOLD_SECONDS = 3.0
POLITENESS = 10
"""The demo's own clients give way to the brokers: they stand for machines of their own."""

stopping = threading.Event()


def client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)


def publish(url: str, topic: str, airport: str, progress_file: Path) -> None:
    """Publish an airport's flights at full speed; a message counts once its receipt is here."""
    confirmed = 0
    failed: list[str] = []

    def receipt(result: pulsar.Result, _: object) -> None:
        nonlocal confirmed
        if result == pulsar.Result.Ok:
            confirmed += 1
        else:
            failed.append(str(result))

    with_client = client(url)
    producer = with_client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
        send_timeout_millis=0,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for number, origin, message in flights.read():
        if origin == airport:
            producer.send_async(message, receipt)
            if number % 2000 == 0:
                progress_file.write_text(str(confirmed))
    while True:  # the region may be down just now: the client reconnects by itself
        try:
            producer.flush()
            break
        except pulsar.PulsarException:
            time.sleep(0.2)
    progress_file.write_text(str(confirmed))
    if failed:
        sys.exit(f"demo: {len(failed)} flights of {airport} were refused: {failed[0]}")
    with_client.close()


class Consumers:
    """Several consumers of one Shared subscription, each with a thread of its own."""

    def __init__(self, url: str, topic: str, subscription: str, count: int, journal: Path, seed: int) -> None:
        self._client = client(url)
        self._journal = journal.open("wb", buffering=1 << 16)
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._consumers = [
            self._client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                replicate_subscription_state_enabled=True,
                batch_index_ack_enabled=True,
            )
            for _ in range(count)
        ]
        self._threads = [threading.Thread(target=self._consume, args=(c,)) for c in self._consumers]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        while not stopping.wait(0.1):
            with self._lock:
                self._journal.flush()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """In good order: everything acknowledged is known everywhere when this returns."""
        for consumer in self._consumers:
            consumer.close()
        self._journal.close()
        self._client.close()

    def abandon(self) -> None:
        """The region is dead, so there is nothing to close."""
        self._journal.close()
        os._exit(0)

    def _consume(self, consumer: pulsar.Consumer) -> None:
        held: list[tuple[float, pulsar.Message, int]] = []
        while not stopping.is_set():
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                message = None
            except pulsar.PulsarException:
                return
            now = time.monotonic()
            if message is not None:
                flight = flights.number_of(message.data())
                self._note(b"D", message, flight)
                if self._random.random() < HOLD_SHARE:
                    held.append((now + HOLD_SECONDS * self._random.random(), message, flight))
                else:
                    self._acknowledge(consumer, message, flight)
            while held and held[0][0] <= now:
                _, late, flight = held.pop(0)
                self._acknowledge(consumer, late, flight)
        for _, late, flight in held:  # a planned end: acknowledge held messages before close
            if not ABANDON.is_set():
                self._acknowledge(consumer, late, flight)

    def _acknowledge(self, consumer: pulsar.Consumer, message: pulsar.Message, flight: int) -> None:
        try:
            consumer.acknowledge(message)
        except pulsar.PulsarException:
            return
        self._note(b"A", message, flight)

    def _note(self, kind: bytes, message: pulsar.Message, flight: int) -> None:
        place = message.message_id()
        with self._lock:
            self._journal.write(
                RECORD.pack(
                    kind, place.ledger_id(), place.entry_id(), place.batch_index(), flight, time.time_ns() // 1_000_000
                )
            )


ABANDON = threading.Event()


def stop_softly(signum: int, frame: object) -> None:
    del signum, frame
    stopping.set()


def stop_at_once(signum: int, frame: object) -> None:
    del signum, frame
    ABANDON.set()
    stopping.set()


def main(arguments: list[str]) -> None:
    os.nice(POLITENESS)
    signal.signal(signal.SIGTERM, stop_softly)
    signal.signal(signal.SIGUSR1, stop_at_once)
    if arguments[0] == "publish":
        url, topic, airport, progress_file = arguments[1:]
        publish(url, topic, airport, Path(progress_file))
        return
    url, topic, subscription, count, journal, seed = arguments[1:]
    if not sys.stdin.readline():  # a stand-by, ready to go; the demo says when
        return
    consumers = Consumers(url, topic, subscription, int(count), Path(journal), int(seed))
    consumers.run()
    if ABANDON.is_set():
        consumers.abandon()
    consumers.close()


if __name__ == "__main__":
    main(sys.argv[1:])
