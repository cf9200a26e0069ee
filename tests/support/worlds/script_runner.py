# SPDX-License-Identifier: Apache-2.0
"""Text scenarios: readable stories of several regions, run by the real cores.

A script that begins with ``regions`` runs whole regions in the simulator; ``tests/simulation/story.py`` describes its
language. One that begins with ``exchange`` tests only the progress exchange, message by message; one that begins with
``metadata``, see ``sync_script.py``, only the synchronization of metadata; one that begins with ``snapshots``, see
``snapshot_script.py``, only subscriptions that follow each other by snapshots.

A script is a list of commands. A command's output follows it, each line after ``> ``; the runner compares it, or
updates it with ``--rewrite-scripts``::

    PYTHONPATH=tests python tests/support/worlds/script_runner.py [--rewrite-scripts] [FILE ...]

Commands of the exchange (times in milliseconds, messages by origin: ``us/1:2``, or several ``us/1:0-2``)::

    exchange us eu ap           all of them linked to each other, replicating
    produce us t x3             publish; ``ledger=2`` opens another ledger
    hold us-eu / release us-eu  entries do not replicate between two regions / do again
    subscribe us t sub
    take us t sub x2            dispatch to a consumer; its acks count in the current epoch (R13)
    ack us t sub us/1:2 ...     one ACK command
    rewind us t sub us/1:0      seek back to a message
    barrier us t sub            wait, as before the first dispatch (R20); its end is shown when it happens
    flush us t sub              wait, as before a close is answered (R20)
    cut us-eu / heal us-eu      both links between two regions; ``heal`` alone: all
    cut us>eu / heal us>eu      only the link that us dialled
    crash us                    us loses what is not on disk, and its links
    disk us 20                  a write takes 20 ms
    refuse us REASON / accept us
    delete us t / learn eu t us  delete a topic / learn of its deletion in another region (R8)
    tick 10                     let time pass
    trace on / trace off        show every message of the exchange as it arrives
    expect progress t sub       what each region knows to be acked
    expect next us t sub        what a consumer there would get
    expect links us t sub       status of the exchange
    expect messages             messages sent since the last such command, by kind
    expect agreement t sub      whether all regions have the same progress
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from meridian_broker.positions.position import Origin, parse_position
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.messages import PeerMessage
from meridian_broker.replication.progress.waits import WaitResult
from simulation.story import Story, StoryError
from simulation.teller import run_command
from simulation.telling import link_parts, tell
from support.worlds.exchange_world import Entry, ExchangeWorld, WorldRegion
from support.worlds.snapshot_script import SnapshotScript
from support.worlds.sync_script import SyncScript

SCRIPTS = Path(__file__).parents[2] / "unit/scripts"
OUTPUT = "> "


class Script:
    """A running scenario."""

    def __init__(self, make_world: Callable[[list[str]], ExchangeWorld] = ExchangeWorld) -> None:
        self._make_world = make_world
        self._world: ExchangeWorld | None = None
        self._said: list[str] = []
        self._held: set[frozenset[str]] = set()

    @property
    def world(self) -> ExchangeWorld:
        if self._world is None:
            raise StoryError("begin with: exchange NAME NAME ...")
        return self._world

    def run(self, line: str) -> list[str]:
        """Run one command. Returns its output, including that of events meanwhile."""
        run_command(self, line)
        if self._world is not None:
            self._replicate()
            self._world.settle()
        said, self._said = self._said, []
        return said

    def say(self, text: str) -> None:
        self._said.append(text)

    # -- the world

    def do_exchange(self, *names: str) -> None:
        self._world = self._make_world(list(names))
        self._world.connect_all()
        self._world.run(100)
        self._world.sent.clear()

    def do_tick(self, ms: str) -> None:
        self.world.run(int(ms))

    def do_trace(self, mode: str) -> None:
        self.world.on_message = self._trace if mode == "on" else None

    def do_cut(self, pair: str) -> None:
        for owner, remote in self._links(pair):
            self.world.disconnect(owner, remote)

    def do_heal(self, pair: str | None = None) -> None:
        for owner, remote in self._links(pair) if pair else list(self.world.links):
            self.world.connect(owner, remote)

    def _links(self, pair: str) -> list[tuple[str, str]]:
        if ">" in pair:
            owner, remote = pair.split(">")
            return [(owner, remote)]
        one, two = pair.split("-")
        return [(one, two), (two, one)]

    def do_hold(self, pair: str) -> None:
        self._held.add(frozenset(pair.split("-")))

    def do_release(self, pair: str) -> None:
        self._held.discard(frozenset(pair.split("-")))

    def do_crash(self, region: str) -> None:
        self.world.crash(region)

    def do_disk(self, region: str, ms: str) -> None:
        self._region(region).disk_ms = int(ms)

    def do_refuse(self, region: str, *reason: str) -> None:
        self._region(region).refuses = " ".join(reason)

    def do_accept(self, region: str) -> None:
        self._region(region).refuses = ""

    def _region(self, name: str) -> WorldRegion:
        return self.world.regions[name]

    def _replicate(self) -> None:
        for source, target in self.world.links:
            link_up = self.world.links[source, target].up
            if link_up and frozenset((source, target)) not in self._held:
                for topic in list(self._region(source).topics):
                    self.world.replicate(source, target, topic)

    # -- topics and clients

    def do_produce(self, region: str, topic: str, count: str, option: str = "ledger=1") -> None:
        ledger = int(option.removeprefix("ledger="))
        made = self.world.produce(region, topic, int(count.removeprefix("x")), ledger=ledger)
        self.say(_names(made))

    def do_subscribe(self, region: str, topic: str, name: str) -> None:
        self._region(region).subscribe(topic, name)

    def do_take(self, region: str, topic: str, name: str, count: str) -> None:
        self.say(_names(self._region(region).take(topic, name, int(count.removeprefix("x")))))

    def do_ack(self, region: str, topic: str, name: str, *messages: str) -> None:
        self._region(region).ack(topic, name, [entry for text in messages for entry in self._entries(topic, text)])

    def do_rewind(self, region: str, topic: str, name: str, message: str) -> None:
        self._region(region).rewind(topic, name, self._entries(topic, message)[0])

    def do_delete(self, region: str, topic: str) -> None:
        self._region(region).delete_topic(topic)

    def do_learn(self, region: str, topic: str, source: str) -> None:
        self._region(region).learn_deletion(topic, self._region(source).topics[topic].incarnation)

    def do_barrier(self, region: str, topic: str, name: str) -> None:
        self._wait("barrier", region, topic, name)

    def do_flush(self, region: str, topic: str, name: str) -> None:
        self._wait("flush", region, topic, name)

    def _wait(self, what: str, region: str, topic: str, name: str) -> None:
        begun = self.world.now_ms

        def done(result: WaitResult) -> None:
            parts = [f"{region}: {what} over after {self.world.now_ms - begun} ms"]
            if result.confirmed:
                parts.append("confirmed by " + " ".join(sorted(result.confirmed)))
            parts += [f"without {missing}: {reason}" for missing, reason in sorted(result.missing.items())]
            self.say(", ".join(parts))

        getattr(self._region(region).exchange, what)(topic, name, begun, done)

    def _entries(self, topic: str, text: str) -> list[Entry]:
        """``us/1:2`` or ``us/1:0-2``."""
        region, _, place = text.partition("/")
        first, _, last = place.partition("-")
        start = parse_position(first)
        wanted = {Origin(region, start.ledger, entry) for entry in range(start.entry, int(last or start.entry) + 1)}
        found = self._everywhere(topic)
        return [found[origin] for origin in sorted(wanted)]

    def _everywhere(self, topic: str) -> dict[Origin, Entry]:
        topics = [region.topics[topic] for region in self.world.regions.values() if topic in region.topics]
        return {entry.origin: entry for found in topics for entry in found.entries}

    # -- questions

    def do_expect(self, what: str, *arguments: str) -> None:
        getattr(self, "expect_" + what)(*arguments)

    def expect_progress(self, topic: str, name: str) -> None:
        for region in self.world.names:
            progress = self._region(region).progress(topic, name)
            shown = "no such subscription" if progress is None else self.acked(topic, progress)
            self.say(f"{region}: {shown}")

    def expect_next(self, region: str, topic: str, name: str) -> None:
        self.say(_names(self._region(region).unacked(topic, name)))

    def expect_links(self, region: str, topic: str, name: str) -> None:
        for status in self._region(region).exchange.status(topic, name, self.world.now_ms):
            parts = ["up" if status.connected else "down", f"sent {status.last_sent}, applied {status.last_applied}"]
            self.say(f"{status.region}: " + ", ".join([*parts, *link_parts(status)]))

    def expect_messages(self) -> None:
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(self.world.sent.items()))
        self.world.sent.clear()
        self.say(counts or "none")

    def expect_agreement(self, topic: str, name: str) -> None:
        found = [self._region(region).progress(topic, name) for region in self.world.names]
        same = len({None if progress is None else progress.encode() for progress in found}) == 1
        self.say("all regions agree" if same else "regions differ")

    # -- how things read

    def acked(self, topic: str, progress: Progress) -> str:
        """The acked ones among messages that exist anywhere."""
        entries = self._everywhere(topic)
        acked = [
            entries[origin]
            for origin in sorted(entries)
            if progress.is_acked(origin.region, origin.position, entries[origin].publish_time_ms)
        ]
        rewinds = len(progress.rewinds())
        return _names(acked) + (f", after {rewinds} rewind" + "s" * (rewinds > 1) if rewinds else "")

    def _trace(self, source: str, target: str, message: PeerMessage) -> None:
        self.say(tell(self, source, target, message))


def _names(entries: Iterable[Entry]) -> str:
    """``us/1:0-2 eu/1:4``: in the given order, consecutive messages joined."""
    shown: list[tuple[Origin, int]] = []
    for entry in entries:
        origin = entry.origin
        if shown and shown[-1][0][:2] == origin[:2] and shown[-1][1] + 1 == origin.entry:
            shown[-1] = (shown[-1][0], origin.entry)
        else:
            shown.append((origin, origin.entry))
    return " ".join(str(first) + (f"-{last}" if last != first.entry else "") for first, last in shown) or "nothing"


def teller(text: str) -> Script | SyncScript | SnapshotScript | Story:
    """The runner for this story."""
    commands = [line for line in text.splitlines() if line.strip() and line[0] not in "#>"]
    if commands and commands[0].startswith("metadata"):
        return SyncScript()
    if commands and commands[0].startswith("snapshots"):
        return SnapshotScript()
    return Script() if commands and commands[0].startswith("exchange") else Story()


def replay(text: str) -> str:
    """The script with the current output of its commands."""
    script, lines = teller(text), []
    for line in text.splitlines():
        if line.startswith(OUTPUT.rstrip()):
            continue
        lines.append(line.rstrip())
        if line.strip() and not line.startswith("#"):
            lines += [(OUTPUT + said).rstrip() for said in script.run(line)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run text scenarios.")
    parser.add_argument("--rewrite-scripts", action="store_true", help="update the output in the files")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(SCRIPTS.glob("*.txt")))
    options = parser.parse_args(arguments)
    differ = []
    for path in options.files:
        text = path.read_text(encoding="utf-8")
        now = replay(text)
        if now != text:
            differ.append(path.name)
            if options.rewrite_scripts:
                path.write_text(now, encoding="utf-8")
    print(f"{'rewritten' if options.rewrite_scripts else 'different'}: {', '.join(differ) or 'none'}")
    return 0 if options.rewrite_scripts or not differ else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
