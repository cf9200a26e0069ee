# SPDX-License-Identifier: Apache-2.0
"""A broker in the fuzzer's event loop, a pair of honest clients, and measurement of the loop's turns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from support.brokers.broker_inside import broker_inside
from support.brokers.free_ports import free_port
from support.brokers.logged_errors import LoggedErrors
from support.protocol.raw_connection import RawConnection
from turns import LongestTurn

TOPICS = "persistent://public/default"
HONEST_SECONDS_MAX = 10
"""An honest message takes milliseconds; this allows for a busy machine."""
TURN_SECONDS_MAX = 0.050
SCRIPTS_MIN = 20
LATE_SECONDS = 20.0
"""How long each further round lasts when the time is up and too few scripts have run."""
TRIES = 3
"""What is slow only once, such as loading a module or mapping memory, is no attack."""
T = pb.BaseCommand


class Pair:
    """An honest producer and consumer of one topic."""

    def __init__(self, line: RawConnection, topic: str) -> None:
        self.line = line
        self.topic = topic
        self._sequence = itertools.count()

    @classmethod
    async def open(cls, port: int, topic: str) -> Self:
        line = await RawConnection.open(port)
        await line.producer(topic, producer_name="honest")
        ask = pb.CommandSubscribe(
            topic=topic, subscription="honest", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1000
        )
        line.say(T.SUBSCRIBE, ask)
        await line.hear(T.SUCCESS)
        return cls(line, topic)

    async def pass_one(self) -> None:
        """Publish a message, and consume until it arrives."""
        number = next(self._sequence)
        wanted = b"honest-%d" % number
        self.line.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1000))
        self.line.send("honest", number, wanted)
        has_receipt = False
        async with asyncio.timeout(HONEST_SECONDS_MAX):
            while True:
                said = await self.line.hear_any()
                if said[0] == T.SEND_RECEIPT:
                    has_receipt = True
                elif said[0] == T.MESSAGE:
                    place = said.command.message_id
                    self.line.write(encode.ack(1, 0, [(place.ledgerId, place.entryId)]))
                    if bytes(said.body).endswith(wanted):
                        break
            assert has_receipt


class FuzzedBroker:
    """A context manager: a running broker, with an honest pair on a topic of its own."""

    def __init__(self, directory: Path) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.turns = LongestTurn()
        self.other: Pair
        self._runner = asyncio.Runner()
        self._failures = LoggedErrors()
        self._inside = broker_inside(
            directory, brokerServicePort=self.port, webServicePort=self.http_port, keepAliveIntervalSeconds=3600
        )
        self._done = 0

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._failures)
        self._runner.run(self._inside.__aenter__())
        self.other = self._runner.run(Pair.open(self.port, f"{TOPICS}/other"))
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self._failures)
        self._runner.run(self.other.line.close())
        self._runner.run(self._inside.__aexit__(None, None, None))
        # Ends what the broker's process would end as well: aiohttp may wait up to 10 s for the rest of a body whose
        # connection is lost, and its server does not wait for that.
        self._runner.close()

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """:param story: returns the story anew with each call.
        :raises AssertionError: the broker failed, or blocked its event loop.
        """
        self._done += 1
        if self._done % 100 == 0:
            gc.collect()
        longest = [self._longest_turn_of(story())]
        while longest[-1] > TURN_SECONDS_MAX and len(longest) < TRIES:
            longest.append(self._longest_turn_of(story()))
        assert not self._failures.found, self._failures.found.pop()
        shown = ", ".join(f"{seconds * 1000:.0f}" for seconds in longest)
        assert min(longest) <= TURN_SECONDS_MAX, f"turns of the loop took {shown} ms of CPU time"

    def _longest_turn_of(self, story: Coroutine[Any, Any, None]) -> float:
        self.turns.longest = 0.0
        gc.disable()  # collecting the drawn scripts is not part of a turn
        try:
            self._runner.run(story)
        finally:
            gc.enable()
        return self.turns.longest


def fuzz(directory: Path, seconds: float, round_on: Callable[[FuzzedBroker, int, float], int]) -> int:
    """Run rounds, each with a new seed and broker, until the time is up; return the number of scripts. On a machine
    that is too busy for some scripts in that time, it goes on until they have run.

    :param round_on: broker, seed and end by the monotonic clock -> number of scripts.
    """
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end or done <= SCRIPTS_MIN:
        number = random.randrange(1 << 32)
        print(f"seed {number}")
        with FuzzedBroker(directory / str(number)) as broker:
            if done <= SCRIPTS_MIN and time.monotonic() >= end:
                end = time.monotonic() + LATE_SECONDS
            done += round_on(broker, number, end)
    return done
