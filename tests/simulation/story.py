# SPDX-License-Identifier: Apache-2.0
"""The language of stories: each line is one event or question. Seeds generate it, people read and write it.

Messages are named by their origin, with each region's ledgers counted from 1: ``us/1:2``, or several ``us/1:0-2``.
Times are in milliseconds. A line that names something that does not exist (a consumer that a shortened story lacks)
does nothing and says so.

The world::

    regions us eu ap            all of them started, linked to each other, replicating
    chance 17                   before ``regions``: seed of delays and of what a crash leaves
    ledgers of 5                before ``regions``: a ledger is full with this many entries
    brokers 3                   before ``regions``: this many brokers, b1, b2, b3, share the only region
    brokers 2 0 3               before ``regions``: brokers per region; 0: one that owns its region without asking
    bookies 4                   before ``regions``: regions with several brokers store ledgers on this many bookies
    disks engine                before ``regions``: the local engine's files, instead of a list of entries
    doubles 5                   before ``regions``: of 100 messages between regions 5 arrive twice
    tick 10                     let time pass
    quiet                       repair everything, wait for agreement, check every promise

Everything else is described at the top of the file that implements it::

    client_steps.py             producers, subscriptions, consumers
    trouble_steps.py            what breaks, and what a region does by itself: trim, expire, evict
    brokers_steps.py            brokers that share a region
    bookie_steps.py             the bookies that store its ledgers
    region_steps.py             whole regions, the regions of topics, deletions, gaps
    topic_steps.py              quotas, terminations
    partition_steps.py          topics with partitions
    shadow_steps.py             shadow topics
    scopes.py                   dispatch scope
    questions.py                questions about the state
"""

from __future__ import annotations

from simulation.bookie_steps import BookieSteps
from simulation.brokers_steps import BrokersSteps
from simulation.client_steps import ClientSteps
from simulation.partition_steps import PartitionSteps
from simulation.questions import Questions
from simulation.quiet import Quiet
from simulation.region_steps import RegionSteps
from simulation.scopes import ScopeSteps
from simulation.shadow_steps import ShadowSteps
from simulation.teller import StoryError, run_command
from simulation.topic_steps import TopicSteps
from simulation.trouble_steps import TroubleSteps
from simulation.world import World

__all__ = ["Story", "StoryError"]


class Story(
    ClientSteps,
    TroubleSteps,
    RegionSteps,
    TopicSteps,
    PartitionSteps,
    ScopeSteps,
    BrokersSteps,
    BookieSteps,
    ShadowSteps,
    Questions,
):
    """A running story."""

    def __init__(self) -> None:
        super().__init__()
        self._chance: int | None = None
        self._ledger_entries = 50_000
        self._doubles = 0.0
        self._engine = False
        self._brokers: list[int] = []
        self._bookies = 0

    @property
    def is_begun(self) -> bool:
        return self._world is not None

    def run(self, line: str) -> list[str]:
        """Run one line. Returns its output, and that of events in the meantime."""
        run_command(self, line)
        if self._world is not None:
            self._world.run(0)
            for violation in self._world.model.violations:
                self.say(f"VIOLATION {violation}")
        said, self._said = self._said, []
        return said

    # -- the world

    def do_chance(self, number: str) -> None:
        self._chance = int(number)

    def do_ledgers(self, _of: str, count: str) -> None:
        self._ledger_entries = int(count)

    def do_disks(self, what: str) -> None:
        self._engine = what == "engine"

    def do_brokers(self, *counts: str) -> None:
        self._brokers = [int(count) for count in counts]

    def do_bookies(self, count: str) -> None:
        self._bookies = int(count)

    def do_doubles(self, percent: str) -> None:
        self._doubles = int(percent) / 100

    def do_regions(self, *names: str) -> None:
        self._world = World(
            names,
            chance=self._chance,
            ledger_entries=self._ledger_entries,
            engine=self._engine,
            brokers=self._brokers,
            bookies=self._bookies,
        )
        self._world.weather.doubles = self._doubles
        self._world.run(1000)
        self._world.sent.clear()

    def do_tick(self, ms: str) -> None:
        self.world.run(int(ms))

    def do_quiet(self) -> None:
        Quiet(self.world).come()
        if not self.world.model.violations:
            self.say("all regions agree, every promise is kept")
