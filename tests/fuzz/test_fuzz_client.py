# SPDX-License-Identifier: Apache-2.0
"""A hostile client beside honest ones, on real sockets, until the time is up (``FUZZ_SECONDS``, default 60).

Whatever it sends, an honest producer and consumer on the same topic, and a pair on another one, get their messages, no
turn of the broker's loop takes more than 50 ms of CPU time, and the broker logs no failure of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from pathlib import Path

import pytest
from drawn_commands import Step, opening, steps
from fuzzed_broker import TOPICS, FuzzedBroker, Pair, fuzz
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.protocol.raw_connection import RawConnection

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
ROUND = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
ANSWER_SECONDS = 0.003
"""How long the client waits for an answer to a step."""
T = pb.BaseCommand


class Hostile:
    """Sends its steps, and keeps the ids of the messages that it receives."""

    def __init__(self, port: int, topic: str) -> None:
        self._port = port
        self._topic = topic
        self._delivered: list[pb.MessageIdData] = []
        self._heard = asyncio.Event()

    async def live(self, script: list[Step]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        line = RawConnection(reader, writer)
        line.say(T.CONNECT, pb.CommandConnect(client_version="hostile", protocol_version=21))
        listening = asyncio.create_task(self._listen(line))
        try:
            for step in script:
                frame = step.frame(self._topic, self._delivered)
                with contextlib.suppress(ConnectionError):
                    writer.write(frame)
                    await writer.drain()
                await self._answered()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answered(self) -> None:
        """Wait until the broker answers, or does not answer soon."""
        self._heard.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), ANSWER_SECONDS)

    async def _listen(self, line: RawConnection) -> None:
        with contextlib.suppress(AssertionError, ConnectionError):
            while True:
                said = await line.hear_any()
                self._heard.set()
                if said[0] == T.MESSAGE:
                    self._delivered.append(said.command.message_id)


async def live_beside(broker: FuzzedBroker, topic: str, script: list[Step]) -> None:
    """:raises AssertionError, TimeoutError: an honest client was harmed."""
    attacked = await Pair.open(broker.port, topic)
    async with broker.turns.watching():
        await Hostile(broker.port, topic).live(script)
        await attacked.pass_one()
        await broker.other.pass_one()
    await attacked.line.close()


def scripts() -> st.SearchStrategy[list[Step]]:
    """Scripts of the client, most of them after ``opening``."""
    drawn = st.lists(steps(), min_size=5, max_size=15)
    begun = drawn.map(lambda more: [*opening(), *more])
    return st.one_of(begun, begun, begun, drawn)


def round_on(broker: FuzzedBroker, number: int, end: float) -> int:
    """Run scripts from this seed until the time is up; return their number."""
    done, topics = 0, itertools.count()

    @seed(number)
    @ROUND
    @given(scripts())
    def round_of(script: list[Step]) -> None:
        nonlocal done
        if time.monotonic() < end:
            done += 1
            broker.run(lambda: live_beside(broker, f"{TOPICS}/attacked-{next(topics)}", script))

    round_of()
    return done


@pytest.mark.timeout(SECONDS + 900)
def test_fuzz_client(tmp_path: Path) -> None:
    done = fuzz(tmp_path, SECONDS, round_on)
    print(f"client: {done} scripts")
    assert done > 20, "too few scripts were tried"
