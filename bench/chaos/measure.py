# SPDX-License-Identifier: Apache-2.0
"""Three regions of real brokers, ordinary clients, and random trouble from a seed; then the outcome is judged.

Nothing may be lost, nothing redelivered without a reason, and each subscription must end at the same position
everywhere. A failed run names its seed; the same seed makes the same trouble.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from story import LOOPS_FAILING, Story

TARGETS = ("wrong", "loops_failing_at_end")
"""Figures that must be 0."""
QUICK_SECONDS = 60
"""A quick run starts no further seed after this time."""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: stopped by SIGTERM"))  # brokers do not outlive it
    began, load_before = time.monotonic(), os.getloadavg()[0]
    counts: Counter[str] = Counter()
    wrongs: list[str] = []
    played = failed = 0

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    for seed in range(options.first, options.first + options.seeds):
        if options.quick and time.monotonic() - began > QUICK_SECONDS:
            break
        directory = Path(tempfile.mkdtemp(prefix=f"bench-chaos-{seed}-"))
        story = Story(seed, directory / "regions", say)
        story.play(options.rounds, options.seconds)
        played += 1
        counts += story.counts
        wrongs += story.wrongs
        failed += bool(story.wrongs)
        say(
            f"seed {seed}: {len(story.wrongs)} wrong; " + ", ".join(f"{n} {k}" for k, n in sorted(story.counts.items()))
        )
        if story.wrongs and options.keep:
            say(f"seed {seed}: logs and disks are kept in {directory}")
        else:
            shutil.rmtree(directory)
    figures: dict[str, float] = {name.replace(" ", "_"): count for name, count in sorted(counts.items())}
    figures |= {"loops_failing_at_end": counts[LOOPS_FAILING], "wrong": len(wrongs)}
    figures |= {"seeds": played, "seconds": round(time.monotonic() - began, 1)}
    machine = {"processors": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    if options.json:
        targets = {name: {"value": figures[name], "limit": 0, "met": not figures[name]} for name in TARGETS}
        print(json.dumps({**figures, "targets": targets, "machine": machine}))
    else:
        for name, value in figures.items():
            target = f"  (target 0: {'MISSED' if value else 'met'})" if name in TARGETS else ""
            print(f"  {name:24} {value:>12,}{target}")
        print(f"load of the machine: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/chaos/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, less than four minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--prepare", action="store_true", help="no effect: other benches fetch what they need")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed; default: 1")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from the first on; default: 10")
    parser.add_argument("--rounds", type=int, help="rounds of trouble and calm per seed; default: 3, or 2 with --quick")
    parser.add_argument("--seconds", type=float, default=8, help="seconds of trouble per round; default: 8")
    parser.add_argument("--keep", action="store_true", help="keep logs and disks of a failed seed")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    if options.prepare:
        raise SystemExit(0)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
