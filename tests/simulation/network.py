# SPDX-License-Identifier: Apache-2.0
"""Connections between processes: ordered, slow, and breakable.

A connection never loses a message in the middle: like TCP it delivers a prefix and then breaks. Each end learns of the
break at a different time, so messages sent before it may arrive after those of the next connection. A *cut* prevents
one process from dialling another; a *stall* stops one direction of every connection between two regions until it is
released or a keep-alive timeout ends the connection. A connection can also fall silent for good, as when a machine
loses power or a firewall drops the flow: neither end is told, only a timeout ends it, and new connections may be
opened.

TCP does not duplicate messages, but the simulator can (``doubles``): messages between regions then arrive a second
time, later and after messages sent since. This covers every way in which a message can be repeated, and more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from simulation.loop import Loop

PATIENCE_US: Final = 30_000_000
"""Both ends give up a connection on which nothing has arrived for this long, as keep-alive does."""
REDIAL_US: Final = 3_000_000
"""By this long after the end of a silent connection both ends have a new one."""


class Process(Protocol):
    """An end of a connection: a run of a broker, or a client."""

    alive: bool

    @property
    def region(self) -> str: ...


SLOW_US: Final = 50_000
"""A message that takes longer counts as slow."""


@dataclass
class Weather:
    """Delays and repetitions of messages. Without ``random`` every message takes ``base_us``."""

    random: Random | None = None
    base_us: int = 1_000
    doubles: float = 0.0
    """Fraction of messages between regions that arrive twice."""
    strict: bool = True
    distances: dict[frozenset[str], int] = field(default_factory=dict)

    def delay_us(self, source: str, target: str) -> int:
        base = self.distances.get(frozenset((source, target)), self.base_us) if source != target else 100
        if self.random is None:
            return base
        draw = self.random.random()
        if draw < 0.01:
            return base + int(self.random.random() * 200_000)
        return base + int(draw * base)

    def echo_us(self) -> int | None:
        """Delay after which a message arrives again; None: it does not."""
        if self.random is None or not self.doubles or self.random.random() >= self.doubles:
            return None
        return int(self.random.random() ** 4 * 2_000_000)

    def linger_us(self) -> int:
        """For how long messages in flight still arrive after a connection breaks."""
        if self.random is None:
            return 0
        draw = self.random.random()
        return int((draw - 0.97) * 100_000_000) if draw > 0.97 else int(draw**4 * 400_000)


class Network:
    """All connections."""

    def __init__(self, loop: Loop, weather: Weather) -> None:
        self.loop = loop
        self.weather = weather
        self.cuts: set[tuple[str, str]] = set()
        """``(dialler, target)``: pairs that cannot connect."""
        self.stalls: set[tuple[str, str]] = set()
        """``(from, to)``: directions in which nothing arrives."""
        self.connections: list[Connection] = []
        self.slow_us = -SLOW_US
        """When a slow message was last sent."""
        self.silent_until_us = 0

    def connect(self, dialler: Process, target: Process) -> Connection:
        connection = Connection(self, dialler, target)
        if len(self.connections) > 64:
            self.connections = [
                one for one in self.connections if one.is_open or any(way.is_holding for way in one.ways)
            ]
        self.connections.append(connection)
        return connection

    def can_dial(self, dialler: str, target: str) -> bool:
        return (dialler, target) not in self.cuts and (dialler, target) not in self.stalls

    def cut(self, dialler: str, target: str) -> None:
        """Break connections from ``dialler`` to ``target``, and prevent new ones."""
        self.cuts.add((dialler, target))
        for connection in list(self.connections):
            if connection.is_open and connection.regions == (dialler, target):
                connection.snap()

    def reset(self, one: str, other: str) -> None:
        """Break every connection between the two; new ones may be opened at once."""
        for connection in list(self.connections):
            if connection.is_open and set(connection.regions) == {one, other}:
                connection.snap()

    def heal(self, dialler: str, target: str) -> None:
        self.cuts.discard((dialler, target))

    def stall(self, source: str, target: str) -> None:
        self.stalls.add((source, target))

    def release(self, source: str, target: str) -> None:
        self.stalls.discard((source, target))
        for connection in list(self.connections):
            for way in connection.ways:
                if way.regions == (source, target):
                    way.release()

    def lost(self, process: Process, *, silently: bool = False) -> None:
        """The process died: its connections break, or fall silent if its machine died too."""
        for connection in list(self.connections):
            if connection.is_open and process in connection.ends:
                connection.hush() if silently else connection.snap()

    def hush(self, one: str, other: str) -> None:
        """Silence every connection between the two; new ones may be opened at once."""
        for connection in list(self.connections):
            if connection.is_open and set(connection.regions) == {one, other}:
                connection.hush()

    @property
    def is_silent(self) -> bool:
        """Whether an end still relies on a connection on which nothing arrives any more."""
        return self.loop.now_us < self.silent_until_us


class Way:
    """One direction of a connection."""

    def __init__(self, connection: Connection, source: Process, target: Process) -> None:
        self._connection = connection
        self._network = connection.network
        self.source = source
        self.target = target
        self.regions = (source.region, target.region)
        self._last_us = 0
        self.broken_us: int | None = None
        """Messages that would arrive after this time do not."""
        self._held: list[Callable[[], None]] = []

    def send(self, arrive: Callable[[], None], may_double: bool) -> None:
        if not self._connection.is_open:
            return
        loop, weather = self._network.loop, self._network.weather
        delay = weather.delay_us(*self.regions)
        if delay > SLOW_US:
            self._network.slow_us = loop.now_us
        due = loop.now_us + delay
        self._last_us = due = max(due, self._last_us)
        loop.after(due - loop.now_us, self.target, lambda: self._arrive(arrive))
        if may_double and weather.doubles and (echo := weather.echo_us()) is not None:
            loop.after(due - loop.now_us + echo, self.target, lambda: self._arrive(arrive))

    def _arrive(self, arrive: Callable[[], None]) -> None:
        network = self._network
        if self.broken_us is not None and network.loop.now_us > self.broken_us:
            return
        if self._connection.is_hushed:
            return
        if self._held or (network.stalls and self.regions in network.stalls):
            if not self._held:
                network.loop.after(PATIENCE_US, None, self._give_up)
            self._held.append(arrive)
            return
        arrive()

    @property
    def is_holding(self) -> bool:
        """Whether sent messages wait for the end of a stall."""
        return bool(self._held)

    def _give_up(self) -> None:
        """An end that hears nothing closes the connection, even if the other end has already closed it."""
        held, self._held = self._held, []
        if not held:
            return
        self._connection.snap()
        if self.broken_us is None:
            for closed in [one for one in held if one in self._connection.on_closed]:
                closed()

    def release(self) -> None:
        held, self._held = self._held, []
        for arrive in held:
            if self.target.alive and self.broken_us is None and not self._connection.is_hushed:
                arrive()


class Connection:
    """A connection between the process that dialled and its target. ``on_closed`` is called once per end."""

    def __init__(self, network: Network, dialler: Process, target: Process) -> None:
        self.network = network
        self.ends = (dialler, target)
        self.regions = (dialler.region, target.region)
        self.is_open = True
        self.is_hushed = False
        self.ways = (Way(self, dialler, target), Way(self, target, dialler))
        self.on_closed: list[Callable[[], None]] = [_nothing, _nothing]
        """Of the dialler and of the target."""

    def send(self, side: int, arrive: Callable[[], None], *, may_double: bool = False) -> None:
        """``side`` 0: the dialler sends; 1: the target. ``may_double``: the receiver must tolerate it twice."""
        self.ways[side].send(arrive, may_double)

    def snap(self) -> None:
        """Break it. Some messages in flight still arrive; then each end learns of the break."""
        if not self.is_open:
            return
        self.is_open = False
        loop = self.network.loop
        for side, way in enumerate(self.ways):
            grace = self.network.weather.linger_us()
            way.broken_us = loop.now_us + grace
            listener = way.target
            closed = self.on_closed[1 - side]
            loop.after(grace + 1, listener, closed)

    def hush(self) -> None:
        """Silence it: nothing arrives any more, and both ends rely on it until keep-alive times out."""
        if not self.is_hushed:
            self.is_hushed = True
            self.network.silent_until_us = self.network.loop.now_us + PATIENCE_US + REDIAL_US
            self.network.loop.after(PATIENCE_US, None, self.snap)

    def close(self, side: int) -> None:
        """One end closes it cleanly: what that end has sent arrives, then the other end learns of the close."""
        if not self.is_open:
            return
        if self.is_hushed:  # the other end is not told either
            self.network.loop.after(PATIENCE_US, self.ends[1 - side], self.on_closed[1 - side])
        self.send(side, self.on_closed[1 - side])
        self.is_open = False
        self.ways[1 - side].broken_us = self.network.loop.now_us


def _nothing() -> None:
    pass
