# SPDX-License-Identifier: Apache-2.0
"""The order of system calls, seen from outside by strace: no receipt leaves before the fdatasync that covers its entry.

The page cache survives a killed process, so no test that kills a broker can notice a receipt that was sent too early.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.roles import Producer
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.commands import Command
from meridian_broker.wire.pulsar.frames import FrameDecoder
from support.brokers.broker_process import BrokerProcess

TOPICS = 3
ROUNDS = 12
BURST = 25
"""Messages in flight per topic at once: group commits cover several topics."""
SHOWN_BYTES = 1 << 18
"""Bytes of each written buffer that the trace shows: here, all of them."""
MARK = re.compile(rb"marked (\d+) (\d+)!")
CALL = re.compile(r"^(\d+) +(?:(\w+)\((\d+)<((?:[^>]|(?<=-)>)*)>|<\.\.\. (\w+) resumed>)(.*)$")


def unable(reason: str) -> None:
    """Skip the test; in continuous integration, which has everything needed, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def traced(process: BrokerProcess, file: Path) -> Iterator[None]:
    """Record what the broker writes and syncs meanwhile."""
    strace = shutil.which("strace")
    if strace is None:
        unable("strace is not installed: apt-get install strace")
        return
    command = [
        *(strace, "-f", "-yy", "-xx", "-s", str(SHOWN_BYTES), "-o", str(file), "-p", str(process.pid)),
        *("-e", "trace=write,writev,pwrite64,pwritev,pwritev2,send,sendto,sendmsg,sendmmsg,fdatasync,fsync"),
    ]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            unable(f"strace is not allowed to trace here: {said.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


@dataclass
class Order:
    """What a trace says about each marked message; steps are its line numbers."""

    written: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    """The step at which the write of its entry to the log returned, and the file descriptor."""
    synced: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By file descriptor: the steps at which each fdatasync began and returned."""
    sent: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Writes to sockets: the step at which each began, the client's port, the bytes."""


def read(trace: Path) -> Order:
    order = Order()
    begun: dict[tuple[str, str], tuple[int, str, bytes]] = {}
    for step, line in enumerate(trace.read_text(encoding="ascii").splitlines()):
        found = CALL.match(line)
        if found is None:
            continue
        thread, name, descriptor, what, resumed, rest = found.groups()
        if name is not None:
            data = b"".join(bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"((?:\\x..)*)"', rest))
            if what.startswith("TCP"):
                order.sent.append((step, what.rpartition(":")[2].rstrip("]"), data))
                continue
            if rest.endswith("<unfinished ...>"):
                begun[thread, name] = step, descriptor, data
            else:
                ended(order, name, step, step, descriptor, data)
        elif (thread, resumed) in begun:
            began, descriptor, data = begun.pop((thread, resumed))
            ended(order, resumed, began, step, descriptor, data)
    return order


def ended(order: Order, name: str, began: int, step: int, descriptor: str, data: bytes) -> None:
    if name in ("fdatasync", "fsync"):
        order.synced.setdefault(descriptor, []).append((began, step))
        return
    for topic, number in MARK.findall(data):
        order.written[int(topic), int(number)] = step, descriptor


async def publish(broker: BrokerProcess, topic: int) -> str:
    """Publish bursts of messages marked with topic and number; return the connection's local port."""
    connection = await PulsarClientConnection.connect(broker.service_url)
    assert connection._transport is not None
    port = str(connection._transport.get_extra_info("sockname")[1])
    producer = await Producer.open(connection, f"persistent://public/default/traced-{topic}")
    for burst in range(ROUNDS):
        for number in range(burst * BURST, (burst + 1) * BURST):
            await producer.send(b"marked %d %d!" % (topic, number))
        await producer.flush()
    await connection.close()
    return port


@pytest.mark.slow
async def test_no_receipt_leaves_before_its_fdatasync_has_returned(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with BrokerProcess("one", tmp_path / "data") as broker, traced(broker, trace):
        ports = await asyncio.gather(*(publish(broker, topic) for topic in range(TOPICS)))
    order = read(trace)
    receipts = 0
    for topic, port in enumerate(ports):
        decoder = FrameDecoder()
        for step, to, data in order.sent:
            if to != port:
                continue
            for command in decoder.feed(data):
                if not isinstance(command, Command) or command.type != pb.BaseCommand.SEND_RECEIPT:
                    continue
                receipts += 1
                number = command.message.sequence_id
                written, descriptor = order.written[topic, number]
                covering = [end for begin, end in order.synced[descriptor] if begin > written]
                assert covering, f"message {number} of topic {topic} was never synced"
                assert min(covering) < step, f"the receipt of message {number} of topic {topic} left before its sync"
    assert receipts == TOPICS * ROUNDS * BURST
