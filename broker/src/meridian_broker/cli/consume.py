# SPDX-License-Identifier: Apache-2.0
"""``meridian consume``: prints the messages of a subscription as lines, acknowledged once they are written.

A message is acknowledged after its line has left this process, and of a batch only the printed messages, so that
``meridian consume ... | head`` does not consume messages that were never shown.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from dataclasses import dataclass
from typing import Any, Final, cast

import click

from meridian_broker.cli.names import TopicName, topic_name
from meridian_broker.cli.output import COULD_NOT_TELL, NO, error, say
from meridian_broker.cli.service import Access, Service, finish, service_option, until_signal
from meridian_broker.gateway.roles import RECEIVER_QUEUE, Consumer, Delivery, Received, UnreadablePayload
from meridian_broker.wire.proto import pulsar_pb2 as pb

TYPES: Final = {
    name.lower().replace("_", "-"): cast("pb.CommandSubscribe.SubType", number)
    for name, number in pb.CommandSubscribe.SubType.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The options of the command."""

    topic: TopicName
    subscription: str
    access: Access
    kind: pb.CommandSubscribe.SubType
    replicated: bool
    earliest: bool
    acknowledge: bool
    count: int | None
    patience: float | None
    """Seconds without a message after which the command ends."""
    as_json: bool


@click.command("consume")
@click.argument("topic", type=topic_name)
@click.option(
    "-s", "--subscription", required=True, help="Name under which progress is kept. Created if it does not exist."
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    default="shared",
    show_default=True,
    help="shared: consumers share the messages. exclusive: one consumer only. failover: one at a time, others wait. "
    "key-shared: as shared, and messages of one key go to one consumer.",
)
@click.option(
    "--replicated",
    is_flag=True,
    help="Keep the progress the same in all regions, to continue in another one at any time.",
)
@click.option(
    "--earliest/--latest",
    default=True,
    show_default=True,
    help="Where a new subscription begins: with the oldest message kept, or with the next one.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--timeout",
    "patience",
    type=click.FloatRange(min=0, min_open=True),
    help="End when no message arrives for this many seconds.",
)
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: the messages will be delivered again.")
@service_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with key and properties.")
def consume(
    topic: TopicName,
    subscription: str,
    kind: str,
    replicated: bool,
    earliest: bool,
    count: int | None,
    patience: float | None,
    no_ack: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one per line, and acknowledge them for a subscription.

    Runs until Ctrl-C, --count or --timeout. The subscription stays and keeps every message published from now on until
    it is consumed; `meridian subscriptions delete` removes it.

    \b
      meridian consume orders -s billing
      meridian consume orders -s billing --replicated --url pulsar://127.0.0.1:6660
      meridian consume orders -s look --no-ack --json --timeout 2
      meridian consume orders -s billing --count 10

    Exit code 0: done. 1: the broker refused, or fewer than --count messages arrived. 2: unknown, or a message could not
    be read.
    """
    job = Job(
        topic=topic,
        subscription=subscription,
        access=access,
        kind=TYPES[kind],
        replicated=replicated,
        earliest=earliest,
        acknowledge=not no_ack,
        count=count,
        patience=patience,
        as_json=as_json,
    )
    finish(_run(job))


async def _run(job: Job) -> int:
    printer = Printer(job)
    async with Service(job.access) as service:
        consumers: list[tuple[str, Consumer]] = []
        await until_signal(_consume(service, job, printer, consumers))
        for _, consumer in consumers:
            await consumer.close()
    if printer.unreadable:
        error(
            f"{printer.unreadable} entries cannot be read by this command and stay unacknowledged: consume them with a "
            "Pulsar client library"
        )
        return COULD_NOT_TELL
    if job.count is not None and printer.printed < job.count and not printer.nobody_reads:
        error(f"{printer.printed} of {job.count} messages arrived")
        return NO
    return 0


async def _consume(service: Service, job: Job, printer: Printer, consumers: list[tuple[str, Consumer]]) -> None:
    """Subscribe to the topic or its partitions, and print until the count or the time-out is reached.

    ``consumers`` belongs to the caller, who closes them even after a Ctrl-C.
    """
    for topic in await service.topics(str(job.topic)):
        consumer = await Consumer.subscribe(
            await service.owner(topic),
            topic,
            job.subscription,
            kind=job.kind,
            earliest=job.earliest,
            replicated=job.replicated or None,
            queue=min(RECEIVER_QUEUE, job.count or RECEIVER_QUEUE),
        )
        consumers.append((topic, consumer))
    arrivals: asyncio.Queue[tuple[str, Consumer, Delivery | UnreadablePayload]] = asyncio.Queue(maxsize=1)
    feeders = [asyncio.create_task(_feed(topic, consumer, arrivals)) for topic, consumer in consumers]
    printing = asyncio.create_task(printer.run(arrivals))
    try:
        done, _ = await asyncio.wait([printing, *feeders], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (printing, *feeders):
            task.cancel()
        await asyncio.gather(printing, *feeders, return_exceptions=True)


async def _feed(
    topic: str, consumer: Consumer, arrivals: asyncio.Queue[tuple[str, Consumer, Delivery | UnreadablePayload]]
) -> None:
    while True:
        try:
            arrived: Delivery | UnreadablePayload = await consumer.receive()
        except UnreadablePayload as unreadable:
            arrived = unreadable
        await arrivals.put((topic, consumer, arrived))


class Printer:
    """Writes messages to standard output and acknowledges those written."""

    def __init__(self, job: Job) -> None:
        self.printed = 0
        self.unreadable = 0
        self.nobody_reads = False
        """The other end of the pipe is closed."""
        self._job = job

    async def run(self, arrivals: asyncio.Queue[tuple[str, Consumer, Delivery | UnreadablePayload]]) -> None:
        """Until the count is reached, the time-out has passed or standard output was closed."""
        while self._job.count is None or self.printed < self._job.count:
            try:
                async with asyncio.timeout(self._job.patience):
                    topic, consumer, arrived = await arrivals.get()
            except TimeoutError:
                return
            if isinstance(arrived, UnreadablePayload):
                self.unreadable += 1
                say(f"{topic}: {arrived}", err=True)
            elif not self._show(topic, consumer, arrived):
                return

    def _show(self, topic: str, consumer: Consumer, delivery: Delivery) -> bool:
        """False: standard output was closed."""
        left = len(delivery.messages) if self._job.count is None else self._job.count - self.printed
        shown = delivery.messages[:left]
        out = sys.stdout.buffer
        try:
            for message in shown:
                out.write(self._line(topic, delivery, message) + b"\n")
            out.flush()
        except BrokenPipeError:
            # Buffered output would be written again at the end of the process, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.nobody_reads = True
            return False
        self.printed += len(shown)
        if self._job.acknowledge:
            consumer.acknowledge_first(delivery, len(shown))
        return True

    def _line(self, topic: str, delivery: Delivery, message: Received) -> bytes:
        if not self._job.as_json:
            return message.payload
        return json.dumps(as_json(topic, delivery, message), ensure_ascii=False).encode("utf-8", "surrogatepass")


def as_json(topic: str, delivery: Delivery, message: Received) -> dict[str, Any]:
    """A message as ``--json`` prints it. A payload that is not UTF-8 is printed as ``payloadBase64`` instead."""
    described = delivery.metadata
    place = f"{delivery.position.ledger}:{delivery.position.entry}"
    shown: dict[str, Any] = {
        "topic": topic,
        "id": place if message.batch_index < 0 else f"{place}:{message.batch_index}",
        "publishTime": described.publish_time,
        "producer": described.producer_name,
        "redeliveryCount": delivery.redelivery_count,
    }
    optional = {
        "key": message.key,
        "properties": message.properties or None,
        "eventTime": message.event_time_ms,
        "replicatedFrom": described.replicated_from or None,
    }
    shown |= {name: value for name, value in optional.items() if value is not None}
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payloadBase64"] = base64.b64encode(message.payload).decode()
    return shown
