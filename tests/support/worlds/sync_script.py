# SPDX-License-Identifier: Apache-2.0
"""Text stories of regions that share no metadata store, see ``sync_world``. Paths are given without ``/geo/``.

::

    metadata us eu ap           these regions; nothing arrives anywhere unless a command says so
    set us tenants/t {"n":1}    write a value; several pairs of path and value are one transaction
    delete us tenants/t ...     delete, in one transaction
    publish us                  send the outbox
    mark us                     send the outbox, and a mark after it
    deliver us>eu               everything from us that eu has not applied; ``deliver`` alone: everything everywhere
    repeat us>eu 0              a message arrives again
    poison us>eu BYTES          eu gets a message from us that consists of these bytes
    retention 3600              tombstones wait 3600 seconds for a region that is away
    stay 7200 us eu / ap        7200 seconds pass; us and eu hear each other, ap hears only itself
    tick 10 / clock us 60000    10 ms pass / the clock of us is 60000 ms ahead
    crash us                    its brokers die and start again
    release us                  decide on parked states that are due
    forget us                   remove tombstones that no region needs
    restamp us tenants/t        the next generation of a path (R43)
    compare us eu               us compares its metadata with eu's, and takes what differs
    copy us / restore us        copy the store of us / restore it, and us compares itself with all others
    expect values|tombstones|outbox|parked|conflicts|hidden us
    expect counts us            outcomes of the events that us applied
    expect agreement            whether all regions have the same values
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync.applying import Poison
from meridian_broker.metadata.sync.converging import hidden
from meridian_broker.metadata.sync.events import decode
from meridian_broker.metadata.sync.paths import parent_of
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp
from simulation.teller import StoryError, run_command
from support.worlds.sync_store import Broken, StoreInMemory
from support.worlds.sync_world import START_MS, SyncWorld


class SyncScript:
    """A running story."""

    def __init__(self) -> None:
        self._world: SyncWorld | None = None
        self._copies: dict[str, StoreInMemory] = {}
        self._said: list[str] = []

    @property
    def world(self) -> SyncWorld:
        if self._world is None:
            raise StoryError("begin with: metadata NAME NAME ...")
        return self._world

    def run(self, line: str) -> list[str]:
        """Run one command. Returns its output."""
        self._said = []
        try:
            run_command(self, line)
        except MetadataError as error:
            self._say(f"refused: {error}")
        except Broken as broken:
            self._say(f"broken: {broken}")
        return self._said

    def _say(self, text: str) -> None:
        self._said.append(text)

    # -- commands

    def do_metadata(self, *names: str) -> None:
        self._world = SyncWorld(names)

    def do_set(self, region: str, *pairs: str) -> None:
        self._write(region, {_path(path): json.loads(value) for path, value in zip(*[iter(pairs)] * 2, strict=True)})

    def do_delete(self, region: str, *some: str) -> None:
        self._write(region, dict.fromkeys(map(_path, some)))

    def _write(self, region: str, values: dict[str, Any]) -> None:
        if not self.world.finish(region, self.world.write(region, values)):
            self._say("others came first")

    def do_publish(self, region: str) -> None:
        self._say(f"{self.world.finish(region, self.world.publish(region))} events")

    def do_mark(self, region: str) -> None:
        self.world.finish(region, self.world.mark(region))

    def do_deliver(self, link: str | None = None) -> None:
        names = self.world.names
        links = sorted(product(names, names)) if link is None else [tuple(link.split(">"))]
        for source, name in links:
            reader = self.world.regions[name].readers[source]
            for index in reader.waiting(len(self.world.topic[source])):
                self._deliver(name, source, index)

    def do_repeat(self, link: str, index: str) -> None:
        source, name = link.split(">")
        self._deliver(name, source, int(index))

    def _deliver(self, name: str, source: str, index: int) -> None:
        try:
            self.world.finish(name, self.world.deliver(name, source, index))
        except Poison as poison:
            self.world.regions[name].readers[source].delivered.add(index)
            self._say(f"{name}: dead letter: {poison}")

    def do_poison(self, link: str, data: str) -> None:
        source, name = link.split(">")
        try:
            decode(bytes.fromhex(data))
        except ValueError as error:
            self._say(f"{name}: dead letter: {error}")
            return
        raise StoryError(f"{data} is a message from {source}")

    def do_tick(self, ms: str) -> None:
        self.world.now_ms += int(ms)

    def do_retention(self, seconds: str) -> None:
        self.world.retention_ms = int(seconds) * 1000

    def do_stay(self, seconds: str, *names: str) -> None:
        self.world.stay(int(seconds) * 1000, *(group.split() for group in " ".join(names).split("/")))

    def do_clock(self, region: str, ms: str) -> None:
        self.world.regions[region].skew_ms = int(ms)

    def do_crash(self, region: str) -> None:
        self.world.crash(region)

    def do_release(self, region: str) -> None:
        self.world.finish(region, self.world.regions[region].brokers[0].applier.release())

    def do_forget(self, region: str) -> None:
        removed = self.world.finish(region, self.world.regions[region].brokers[0].applier.forget())
        self._say(f"{removed} tombstones")

    def do_restamp(self, region: str, path: str) -> None:
        state = self.world.finish(region, self.world.regions[region].brokers[0].catalog.restamp(_path(path)))
        self._say(_shown(state))

    def do_compare(self, region: str, peer: str) -> None:
        self._say(f"{self.world.finish(region, self.world.catch_up(region, peer))} paths")

    def do_copy(self, region: str) -> None:
        self._copies[region] = self.world.regions[region].store.copy()

    def do_restore(self, region: str) -> None:
        self.world.restore(region, self._copies[region])

    # -- questions

    def do_expect(self, what: str, *arguments: str) -> None:
        getattr(self, "expect_" + what)(*arguments)

    def expect_values(self, region: str) -> None:
        states = self.world.regions[region].store.states()
        self._list({path: _shown(state) for path, state in states.items() if state.value is not None})

    def expect_tombstones(self, region: str) -> None:
        self._list(dict.fromkeys(self.world.tombstones(region), ""))

    def expect_outbox(self, region: str) -> None:
        self._list(dict.fromkeys(self.world.outbox(region), ""))

    def expect_parked(self, region: str) -> None:
        self._list({path: _shown(state) for path, state in self.world.parked(region).items()})

    def expect_hidden(self, region: str) -> None:
        states = self.world.regions[region].store.states()
        parents = {path: parent for path in states if (parent := parent_of(path)) is not None}
        self._list(dict.fromkeys(hidden(states, parents), ""))

    def expect_conflicts(self, region: str) -> None:
        for path, one in self.world.conflicts(region).items():
            lost, won = (
                f"{'a deletion' if state.is_deletion else json.dumps(state.value, separators=(',', ':'))} of "
                f"{_when(state.stamp)}"
                for state in (one.lost, one.won)
            )
            self._say(f"{_short(path)}: {lost} lost to {won}")
        if not self._said:
            self._say("none")

    def expect_counts(self, region: str) -> None:
        counts = self.world.regions[region].brokers[0].applier.counts
        shown = [f"{verdict.value} {count}" for verdict, count in counts.verdicts.items()]
        self._say(", ".join(sorted([*shown, f"conflicts {counts.conflicts}"])))

    def expect_agreement(self) -> None:
        values = [self.world.values(name) for name in self.world.names]
        self._say("all regions agree" if all(one == values[0] for one in values) else "regions differ")

    def _list(self, found: dict[str, str]) -> None:
        for path, text in sorted(found.items()):
            self._say(f"{_short(path)} {text}".rstrip())
        if not found:
            self._say("none")


def _path(short: str) -> str:
    return keys.GEO + short


def _short(path: str) -> str:
    return path.removeprefix(keys.GEO)


def _shown(state: Stamped) -> str:
    value = "deleted" if state.value is None else state.value.decode()
    return f"{value} of {_when(state.stamp)}" + (f", generation {state.generation}" if state.generation else "")


def _when(stamp: Stamp) -> str:
    """Milliseconds since the story began."""
    return str(stamp._replace(time_ms=stamp.time_ms - START_MS))
