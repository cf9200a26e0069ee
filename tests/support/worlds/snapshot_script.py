# SPDX-License-Identifier: Apache-2.0
"""Text stories of regions whose subscriptions follow each other by snapshots (PIP-33), see ``snapshot_world``.

Messages are named by origin: ``us/0`` is the first one published in us. Times are in milliseconds::

    snapshots us eu ap          these regions, replicating to each other; a message takes 20 ms
    exact                       Meridian regions exchange acknowledgements at once
    join us                     one more region: a region of Apache Pulsar sends it only what it publishes from now on
    subscribe us s              a replicated subscription, from the earliest message
    publish us x3 [eu,ap]       three messages, only for these regions
    ack us s x2 / ack us s all  a consumer acknowledges the oldest messages, or all
    ack us s eu/1 ...           ... or these
    leave us                    a consumer of a replicated subscription leaves
    delay us>eu 500             entries take 500 ms
    cut us>eu [2] / heal us>eu  nothing arrives / what did not arrive is sent again, and two that did; also us-eu
    lose us>eu 1                the next marker is lost
    fail us 1                   the next marker cannot be stored
    stop us / start us          the broker of a region dies / another one starts
    pulsar ap                   it applies updates as Pulsar does, without R31
    apache ap                   it runs Apache Pulsar
    giveup us eu / takeback us eu  us takes snapshots without eu / with it again
    tick 1000                   let time pass
    trace on / trace off        show markers as they arrive
    expect owed s               what each region would deliver
    expect held us s            what us withholds from Apache Pulsar regions, and which regions have not confirmed it
    expect markers              number of markers written since the last such command, by type
    expect counts us            outcomes of the snapshots that us took
"""

from __future__ import annotations

from collections.abc import Iterable

from meridian_broker.replication.snapshots.controller import SnapshotController
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)
from simulation.teller import StoryError, run_command
from support.worlds.snapshot_world import Broken, Message, SnapshotRegion, SnapshotWorld


class SnapshotScript:
    """A running story."""

    def __init__(self) -> None:
        self._world: SnapshotWorld | None = None
        self._said: list[str] = []

    @property
    def world(self) -> SnapshotWorld:
        if self._world is None:
            raise StoryError("begin with: snapshots NAME NAME ...")
        return self._world

    def run(self, line: str) -> list[str]:
        """Run one command. Returns its output."""
        self._said = []
        try:
            run_command(self, line)
        except Broken as broken:
            self._said.append(f"broken: {broken}")
        return self._said

    # -- commands

    def do_snapshots(self, *names: str) -> None:
        self._world = SnapshotWorld(names)

    def do_exact(self) -> None:
        self.world.is_exact = True

    def do_join(self, region: str) -> None:
        self.world.join(region)

    def do_subscribe(self, region: str, name: str) -> None:
        self.world.acked.setdefault(name, set())
        self._region(region).subscribe(name)

    def do_publish(self, region: str, count: str, only: str | None = None) -> None:
        chosen = tuple(only.split(",")) if only else None
        self._said.append(_together(self.world.publish(region, chosen) for _ in range(int(count.removeprefix("x")))))

    def do_ack(self, region: str, name: str, *messages: str) -> None:
        found = self._region(region)
        owed = found.owed(name)
        if messages == ("all",):
            chosen = owed
        elif messages[0].startswith("x"):
            chosen = owed[: int(messages[0].removeprefix("x"))]
        else:
            chosen = [entry for entry in owed if str(found.log[entry].content) in messages]
            if len(chosen) != len(messages):
                raise StoryError(f"{region} does not have all of {', '.join(messages)}")
        found.consume(name, chosen)

    def do_leave(self, region: str) -> None:
        self._region(region).controller.consumer_left()

    def do_delay(self, link: str, ms: str) -> None:
        for pair in self._links(link):
            self.world.links[pair].delay_ms = int(ms)

    def do_cut(self, link: str, repeat: str = "0") -> None:
        for source, target in self._links(link):
            self.world.cut(source, target, int(repeat))

    def do_heal(self, link: str) -> None:
        for source, target in self._links(link):
            self.world.heal(source, target)

    def do_lose(self, link: str, count: str) -> None:
        for pair in self._links(link):
            self.world.links[pair].lose = int(count)

    def do_fail(self, region: str, count: str) -> None:
        self._region(region).failing_writes = int(count)

    def do_stop(self, region: str) -> None:
        self.world.stop(region)

    def do_start(self, region: str) -> None:
        self.world.start(region)

    def do_pulsar(self, region: str) -> None:
        self._region(region).is_pulsar = True

    def do_apache(self, region: str) -> None:
        self._region(region).become_pulsar()

    def do_giveup(self, region: str, lost: str) -> None:
        self._region(region).lost.add(lost)
        self._region(region).controller.regions_changed()

    def do_takeback(self, region: str, lost: str) -> None:
        self._region(region).lost.discard(lost)
        self._region(region).controller.regions_changed()

    def do_tick(self, ms: str) -> None:
        self.world.run(int(ms))

    def do_trace(self, mode: str) -> None:
        self.world.on_marker = self._trace if mode == "on" else None

    # -- questions

    def do_expect(self, what: str, *arguments: str) -> None:
        getattr(self, "expect_" + what)(*arguments)

    def expect_owed(self, name: str) -> None:
        for region in self.world.regions.values():
            if name not in region.subscriptions:
                self._said.append(f"{region.region}: no such subscription")
                continue
            owed = [region.log[entry].content for entry in region.owed(name)]
            self._said.append(f"{region.region}: {_together(one for one in owed if isinstance(one, Message))}")

    def expect_held(self, region: str, name: str) -> None:
        controller = self._region(region).controller
        assert isinstance(controller, SnapshotController), "an Apache Pulsar region holds nothing back"
        held = controller.held_back(name).items()
        self._said.append("; ".join(f"{one} waits for {' '.join(sorted(them))}" for one, them in held) or "nothing")

    def expect_markers(self) -> None:
        counts = [f"{_KINDS[kind]} {count}" for kind, count in sorted(self.world.written.items())]
        self.world.written.clear()
        self._said.append(", ".join(counts) or "none")

    def expect_counts(self, region: str) -> None:
        controller = self._region(region).controller
        assert isinstance(controller, SnapshotController), "an Apache Pulsar region has no counts"
        counts = controller.counts
        parts = [f"completed {counts.completed}", f"timed out {counts.timed_out}", f"failed {counts.failed}"]
        parts.append(f"under way {controller.pending}")
        if counts.completed:
            parts.append(f"the last took {counts.last_ms} ms")
        if controller.missing:
            parts.append(f"waits for {' '.join(controller.missing)}")
        self._said.append(", ".join(parts))

    # -- how things read

    def _region(self, name: str) -> SnapshotRegion:
        return self.world.regions[name]

    def _links(self, link: str) -> list[tuple[str, str]]:
        one, arrow, two = link.partition(">")
        if arrow:
            return [(one, two)]
        one, _, two = link.partition("-")
        return [(one, two), (two, one)]

    def _trace(self, source: str, target: str, marker: Marker) -> None:
        match marker:
            case SnapshotRequest(snapshot_id, _):
                what = f"snapshot {snapshot_id}?"
            case SnapshotResponse(snapshot_id, place):
                what = f"snapshot {snapshot_id}: {self._place(place)}"
            case Snapshot() as snapshot:
                what = str(snapshot)
            case SubscriptionUpdate(subscription, places):
                what = f"{subscription} is at {', '.join(map(self._place, places))}"
        self._said.append(f"{self.world.now_ms - 1000} {source}>{target} {what}")

    def _place(self, place: Place) -> str:
        """The last message up to this position."""
        log = self._region(place.region).log[: place.position.entry + 1]
        last = next((one.content for one in reversed(log) if isinstance(one.content, Message)), None)
        return f"{place.region} " + ("before all messages" if last is None else f"up to {last}")


_KINDS = {
    "SnapshotRequest": "requests",
    "SnapshotResponse": "answers",
    "Snapshot": "snapshots",
    "SubscriptionUpdate": "updates",
}


def _together(messages: Iterable[Message]) -> str:
    """``us/0-2 eu/1``: in the given order, consecutive messages joined."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][-1] == (message.origin, message.number - 1):
            runs[-1].append(message)
        else:
            runs.append([message])
    return " ".join(str(run[0]) + (f"-{run[-1].number}" if len(run) > 1 else "") for run in runs) or "nothing"
