# SPDX-License-Identifier: Apache-2.0
"""``meridian produce``: lines or texts become messages, and the exit code says whether all of them are stored."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from meridian_broker.cli.names import TopicName, topic_name
from meridian_broker.cli.output import COULD_NOT_TELL, NO, error, say
from meridian_broker.cli.service import Access, Service, finish, service_option, until_signal
from meridian_broker.gateway.client_errors import ClientError, ConnectionLost, RequestRefused
from meridian_broker.gateway.roles import Producer
from meridian_broker.positions.position import Position

CHUNK_BYTES: Final = 65536
LAST_RECEIPTS_SECONDS: Final = 10.0
"""How long Ctrl-C waits for the receipts of messages already sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The options of the command."""

    topic: TopicName
    access: Access
    messages: tuple[str, ...]
    """Empty: the lines of standard input."""
    key: str | None
    properties: dict[str, str]
    rate: float | None
    count: int | None
    as_json: bool


@dataclass(slots=True)
class Tally:
    """Counts of messages sent and stored."""

    sent: int = 0
    stored: int = 0
    last: str | None = None
    failure: BaseException | None = None
    """The first one."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, receipt: asyncio.Future[Position]) -> None:
        """Record a receipt, or the reason why there is none."""
        failure = receipt.exception()
        if failure is None:
            position = receipt.result()
            self.stored += 1
            self.last = f"{position.ledger}:{position.entry}"
        else:
            self.fail(failure)

    def fail(self, failure: BaseException) -> None:
        """Nothing more can be sent."""
        if self.failure is None:
            self.failure = failure
            self.failed.set()


def property_pair(text: str) -> tuple[str, str]:
    """``name=value``.

    :raises click.BadParameter: there is no ``=``, or no name before it.
    """
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"{text!r} is not a property: write NAME=VALUE")
    return name, value


@click.command("produce")
@click.argument("topic", type=topic_name)
@click.option("-m", "--message", "messages", multiple=True, metavar="TEXT", help="A message. Repeatable.")
@click.option("--key", help="Key of every message. Messages with the same key keep their order and share a partition.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    type=property_pair,
    metavar="NAME=VALUE",
    help="Property of every message. Repeatable.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages per second.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Number of messages to publish: repeats --message, or stops after this many input lines.",
)
@service_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def produce(
    topic: TopicName,
    messages: tuple[str, ...],
    key: str | None,
    properties: tuple[tuple[str, str], ...],
    rate: float | None,
    count: int | None,
    access: Access,
    as_json: bool,
) -> None:
    """Publish messages to TOPIC, which is created if it does not exist.

    Without --message, every line of standard input is a message. The command ends once all of them are on the region's
    disk. Ctrl-C ends it after the messages sent so far.

    \b
      meridian produce orders -m 'one espresso' -m 'two ristretti'
      meridian produce orders --key table-7 --property waiter=Ada < orders.txt
      meridian produce load -m ping --rate 100 --count 6000
      meridian produce orders -m 'one tea' --url pulsar://127.0.0.1:6660

    Exit code 0: all are stored. 1: the broker refused, or the input had fewer than --count lines. 2: unknown; messages
    without a receipt may be stored or not.
    """
    job = Job(
        topic=topic,
        access=access,
        messages=messages,
        key=key,
        properties=dict(properties),
        rate=rate,
        count=count,
        as_json=as_json,
    )
    finish(_run(job))


async def _run(job: Job) -> int:
    tally = Tally()
    async with Service(job.access) as service:
        publisher = Publisher(service, job, tally, await service.topics(str(job.topic)))
        failed: ClientError | None = None
        try:
            await until_signal(publisher.publish_all())
            async with asyncio.timeout(LAST_RECEIPTS_SECONDS):
                await publisher.close()
        except TimeoutError:
            failed = ClientError(f"{job.access.url} sent no receipt within {LAST_RECEIPTS_SECONDS:g} s")
        except ClientError as problem:
            failed = problem
    return _conclude(job, tally, tally.failure or failed)


def _conclude(job: Job, tally: Tally, failure: BaseException | None) -> int:
    if job.as_json:
        say(json.dumps({"topic": str(job.topic), "sent": tally.sent, "stored": tally.stored, "last": tally.last}))
    elif tally.stored:
        say(f"stored {_messages(tally.stored)} in {job.topic}, the last at {tally.last}")
    else:
        say(f"stored no message in {job.topic}")
    open_still = tally.sent - tally.stored
    if isinstance(failure, RequestRefused):
        error(failure)
        return NO
    if failure is not None or open_still:
        left = f". {_messages(open_still)} got no receipt and may be stored or not: check before sending again"
        error(f"{failure or 'stopped'}{left if open_still else ''}")
        return COULD_NOT_TELL
    if job.count is not None and tally.sent < job.count:
        error(f"{tally.sent} of {job.count} messages sent, then the input ended")
        return NO
    return 0


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


class Publisher:
    """Sends to a topic or its partitions and counts the receipts."""

    def __init__(self, service: Service, job: Job, tally: Tally, topics: Sequence[str]) -> None:
        self._service = service
        self._job = job
        self._tally = tally
        self._topics = topics
        self._producers: dict[str, tuple[Producer, int]] = {}
        """By topic: the producer, and the largest message its broker takes."""
        self._watchers: list[asyncio.Task[None]] = []

    async def publish_all(self) -> None:
        """Send until the input ends, the count is reached, or a send fails, even while waiting for input.

        :raises ClientError: a producer cannot be opened, or the connection is gone.
        :raises RequestRefused: a message is too large.
        """
        sending = asyncio.create_task(self._send_all())
        failing = asyncio.create_task(self._tally.failed.wait())
        try:
            await asyncio.wait([sending, failing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (sending, failing, *self._watchers)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not sending.cancelled():
            sending.result()

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self._producer(self._topics[0])  # before the first line is typed, so that a refusal is seen at once
        async for payload in self._payloads():
            if self._job.rate is not None:
                await asyncio.sleep(started + self._tally.sent / self._job.rate - loop.time())
            await self._send(payload)

    async def close(self) -> None:
        """Wait for the last receipts, then close the producers.

        :raises ClientError: one is a refusal, or the connection is gone.
        """
        for producer, _ in self._producers.values():
            await producer.flush()
            await producer.close()

    async def _send(self, payload: bytes) -> None:
        topic = self._topics[self._partition()]
        producer, largest = await self._producer(topic)
        if len(payload) > largest:
            raise RequestRefused(
                0, f"message {self._tally.sent + 1} has {len(payload)} bytes; the broker accepts {largest} at most"
            )
        receipt = await producer.send(payload, key=self._job.key, properties=self._job.properties)
        self._tally.sent += 1
        receipt.add_done_callback(self._tally.hear)

    async def _producer(self, topic: str) -> tuple[Producer, int]:
        if topic not in self._producers:
            connection = await self._service.owner(topic)
            producer = await Producer.open(connection, topic)
            self._producers[topic] = producer, connection.max_message_size or sys.maxsize
            self._watchers.append(asyncio.create_task(self._watch(producer)))
        return self._producers[topic]

    async def _watch(self, producer: Producer) -> None:
        self._tally.fail(ConnectionLost(await producer.wait_closed()))

    def _partition(self) -> int:
        if self._job.key is None:
            return self._tally.sent % len(self._topics)
        return key_hash(self._job.key) % len(self._topics)

    async def _payloads(self) -> AsyncIterator[bytes]:
        if self._job.messages:
            texts = [text.encode("utf-8", "surrogateescape") for text in self._job.messages]
            for text in texts if self._job.count is None else itertools.islice(itertools.cycle(texts), self._job.count):
                yield text
            return
        if sys.stdin.isatty():
            say("one message per line; Ctrl-D ends", err=True)
        left = self._job.count
        async for line in lines(sys.stdin.fileno()):
            yield line
            if left is not None and (left := left - 1) == 0:
                return


def key_hash(key: str) -> int:
    """The hash of a key; modulo the number of partitions it gives the key's partition, as in Pulsar's Java client.

    It is the hash that the Java language defines for strings, over UTF-16, without its sign. Pulsar's C++ and Python
    clients hash differently, so publish a key with one kind of client only.
    """
    value = 0
    data = key.encode("utf-16-le", "surrogatepass")
    for low, high in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


async def lines(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of a file, pipe or terminal without their ends, while the loop stays free.

    The descriptor is watched only while we wait, and read only when something is there: no thread, and its flags,
    which other processes may share, stay as they are.
    """
    rest = b""
    while chunk := await _readable(descriptor):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _readable(descriptor: int) -> bytes:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file: always ready
        return os.read(descriptor, CHUNK_BYTES)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)
