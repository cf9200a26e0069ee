# SPDX-License-Identifier: Apache-2.0
"""Targets of three regions: acknowledgements visible elsewhere within milliseconds, switches that repeat nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from generator import RECEIPT_RECORD
from processes import Generator, Regions, wait

DEMO = Path(__file__).resolve().parents[2] / "demo"
sys.path.insert(0, str(DEMO))
from judge import Export, Stage, judge  # noqa: E402
from worker import RECORD  # noqa: E402

NAMES = ("one", "two", "three")
SUBSCRIPTION = "s"
CONSUMERS = 4
WARM_UP_SECONDS = 1.0
PER_REGION = 10_000_000
"""Message numbers of each region's publisher begin at a multiple of this."""
RATE = 1000
"""Messages per second and region."""
QUIET_SECONDS = 3.0
LOST_SECONDS = 30.0
"""A message that no consumer gets for this long, while nothing else comes either, is lost."""


class Visible(NamedTuple):
    """Milliseconds from sending an ACK in one region until another one knows it; upper bounds."""

    p50: float
    p99: float
    acks: int


def acks_visible(directory: Path, topic: str, rate: int, seconds: float) -> Visible:
    """Acknowledge ``rate`` messages per second in one region, and read from the others' ack logs when the acks arrived.

    Both times are from this machine's clock. The log has whole milliseconds, rounded down, so one is added.
    """
    with Regions(directory, *NAMES) as regions:
        out = directory / "acks"
        generator = Generator(
            "acknowledge", port=regions.port("one"), topic=topic, subscription=SUBSCRIPTION, rate=rate,
            seconds=seconds + WARM_UP_SECONDS, out=out,
        ).ready()  # fmt: skip
        generator.result()
        data = out.read_bytes()
        acked = sorted(RECEIPT_RECORD.iter_unpack(data))
        begin = acked[0][2] + WARM_UP_SECONDS * 1e9
        waits: list[float] = []
        for name in NAMES[1:]:
            known = _known(Export(regions.listed[name]["admin_url"], topic), acked[-1][:2])
            for ledger, entry, sent_ns in acked:
                if sent_ns >= begin:
                    _, received_ms = known[bisect_left(known, ((ledger, entry), 0))]
                    waits.append(received_ms + 1 - sent_ns / 1e6)
    waits.sort()
    return Visible(waits[len(waits) // 2], waits[len(waits) * 99 // 100], len(waits))


def _known(export: Export, last: tuple[int, int]) -> list[tuple[tuple[int, int], int]]:
    """(entry up to which acks from elsewhere were merged, time), both growing: the acks were sent in order."""
    columns = ("subscription", "upto_ledger", "upto_entry", "received_ms", "firsthand")
    merged = sorted(
        (received_ms, (ledger, entry))
        for name, ledger, entry, received_ms, firsthand in export.rows("acks", columns)
        if name == SUBSCRIPTION and received_ms is not None and not firsthand
    )
    known: list[tuple[tuple[int, int], int]] = []
    for received_ms, place in merged:
        if not known or place > known[-1][0]:
            known.append((place, received_ms))
    if not known or known[-1][0] < last:
        raise SystemExit(f"bench: the last acknowledgement, of {last}, is not in the ack log")
    return known


class Outcome(NamedTuple):
    """Results of one story with a kill and a planned switch."""

    lost: int
    kill_redelivered_acked: int
    kill_redelivered_in_client: int
    planned_redelivered_acked: int
    kill_first_message_ms: int
    planned_first_message_ms: int
    published: int


class Switches:
    """Regions that go through several stories: the first is killed, the second hands over to the third."""

    def __init__(self, regions: Regions, directory: Path, rng: random.Random) -> None:
        self._regions = regions
        self._directory = directory
        self._rng = rng
        self._stories = 0

    def story(self, topic: str) -> Outcome:
        """One kill and one planned switch on its own topic, with publishers in all regions."""
        self._stories += 1
        directory = self._directory / f"story-{self._stories}"
        directory.mkdir()
        regions = self._regions
        workers = {name: self._stand_by(directory, name, topic) for name in NAMES}
        journals = {name: directory / f"{name}.journal" for name in NAMES}
        stages: list[Stage] = []

        def go(name: str, kind: str, began_ms: int) -> None:
            stages.append(Stage(name, journals[name], kind, began_ms))
            worker = workers[name]
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
            worker.stdin.close()

        go("one", "first", _now_ms())
        publishers = [
            Generator(
                "publish_numbers", port=regions.port(name), topic=topic, first=PER_REGION * (at + 1),
                out=directory / f"{name}.receipts", rate=RATE,
            ).ready()
            for at, name in enumerate(NAMES)
        ]  # fmt: skip
        seen = Seen(list(journals.values()))
        seen.wait(seen.count() + self._rng.randint(1000, 6000))
        killed_ms = regions.kill("one")
        workers["one"].send_signal(signal.SIGUSR1)
        go("two", "sigkill", killed_ms)
        seen.wait(seen.count() + self._rng.randint(500, 4000))
        regions.bring_back("one")
        seen.wait(seen.count() + self._rng.randint(500, 4000))
        workers["two"].send_signal(signal.SIGTERM)
        wait(lambda: workers["two"].poll() is not None, "the consumers to close")
        go("three", "planned", _now_ms())
        seen.wait(seen.count() + self._rng.randint(500, 2000))
        for publisher in publishers:
            publisher.stop()
        for publisher in publishers:
            publisher.result()
        expected = _receipted(directory)
        lost = seen.missing(expected)
        workers["three"].send_signal(signal.SIGTERM)
        for worker in workers.values():
            worker.wait(60)
        exports = {name: Export(regions.listed[name]["admin_url"], topic) for name in NAMES}
        _, (kill, planned) = judge(stages, exports, SUBSCRIPTION, killed_ms)
        return Outcome(
            lost,
            kill.redelivered_acked,
            kill.redelivered_in_client,
            planned.redelivered_acked + planned.redelivered_in_client,
            kill.first_message_ms,
            planned.first_message_ms,
            len(expected),
        )

    def _stand_by(self, directory: Path, name: str, topic: str) -> subprocess.Popen[bytes]:
        """The demo's consumers for a region: Shared, 1 % of the messages acknowledged late. They wait for a line."""
        journal = directory / f"{name}.journal"
        journal.touch()
        url = self._regions.listed[name]["service_url"]
        command = [sys.executable, str(DEMO / "worker.py"), "consume", url, topic, SUBSCRIPTION]
        command += [str(CONSUMERS), str(journal), str(self._rng.randrange(1 << 30))]
        with (directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)


class Seen:
    """The messages in consumers' journals, read as they grow."""

    def __init__(self, journals: list[Path]) -> None:
        self._offsets = dict.fromkeys(journals, 0)
        self._numbers: set[int] = set()

    def count(self) -> int:
        for journal, offset in self._offsets.items():
            with journal.open("rb") as file:
                file.seek(offset)
                data = file.read()
            usable = len(data) - len(data) % RECORD.size
            self._numbers.update(number for _, _, _, _, number, _ in RECORD.iter_unpack(data[:usable]))
            self._offsets[journal] = offset + usable
        return len(self._numbers)

    def wait(self, count: int) -> None:
        """Wait for this many, or until nothing new comes for a while: an absent region's own messages are missing."""
        last, since = self.count(), time.monotonic()
        while self.count() < count and time.monotonic() - since < QUIET_SECONDS:
            if self.count() != last:
                last, since = self.count(), time.monotonic()
            time.sleep(0.05)

    def missing(self, expected: set[int]) -> int:
        """How many of these are still missing when nothing new comes any more."""
        since, left = time.monotonic(), len(expected)
        while left and time.monotonic() - since < LOST_SECONDS:
            self.count()
            if len(expected - self._numbers) < left:
                left, since = len(expected - self._numbers), time.monotonic()
            time.sleep(0.05)
        return left


def _receipted(directory: Path) -> set[int]:
    """Numbers of the messages with a receipt."""
    numbers: set[int] = set()
    for path in directory.glob("*.receipts"):
        data = path.read_bytes()
        numbers.update(number for _, _, number in RECEIPT_RECORD.iter_unpack(data))
    return numbers


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
