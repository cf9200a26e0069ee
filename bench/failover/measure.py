# SPDX-License-Identifier: Apache-2.0
"""``bench/failover/run``: see the head of ``run``."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from clusters import Cluster, by_command
from stories import Moved, Stories

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from processes import Regions

NAMES = ("one", "two", "three")
HOLDS = {"none_held": None, "1_percent_held_2_s": 2.0, "1_percent_held_for_ever": math.inf}
LAG_MS = 25.0
KILLED_PERCENT = 0.1


@dataclass
class Target:
    """One promise, and whether it is kept."""

    value: float
    limit: float
    met: bool


class Bench:
    """Collects figures and targets."""

    def __init__(self, say: bool) -> None:
        self._say = say
        self.figures: dict[str, float | int] = {}
        self.targets: dict[str, Target] = {}

    def figure(self, name: str, value: float | int) -> None:
        self.figures[name] = round(value, 3)
        if self._say:
            print(f"  {name:64} {value:>12,.2f}", flush=True)

    def at_most(self, name: str, value: float, limit: float) -> None:
        self.figures[name] = round(value, 3)
        self.targets[name] = Target(round(value, 3), limit, value <= limit)
        if self._say:
            met = "met" if value <= limit else "MISSED"
            print(f"  {name:64} {value:>12,.2f}  (target <= {limit:g}: {met})", flush=True)

    def title(self, text: str) -> None:
        if self._say:
            print(text, flush=True)


def main() -> int:
    options = _options()
    load_before = os.getloadavg()[0]
    bench = Bench(say=not options.json)
    with ExitStack() as stack:
        regions = None
        if options.a:
            a = Cluster("A", *options.a, kill=by_command(options.kill_a))
            if options.bring_back_a:
                a.bring_back = by_command(options.bring_back_a) or a.bring_back
            b = Cluster("B", *options.b)
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-failover-")))
            regions = stack.enter_context(Regions(directory / "regions", *NAMES))
            a, b = _ours(regions, "one"), _ours(regions, "two")
        stories = Stories(a, b, options.namespace)
        measure(bench, stories, options.quick)
        if regions is not None:
            bench.title("with the third region down")
            regions.kill("three")
            measure_moves(bench, stories, options.quick, "third_region_down", 0)
    machine = {"processors": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    if options.json:
        targets = {name: asdict(target) for name, target in bench.targets.items()}
        json.dump({**bench.figures, "targets": targets, "machine": machine}, sys.stdout)
        print()
    else:
        print(f"load of the machine: {machine['load_before']:.1f} before, {machine['load_after']:.1f} after")
    return 0 if all(target.met for target in bench.targets.values()) else 1


def measure(bench: Bench, stories: Stories, quick: bool) -> None:
    """The cursor's lag, then moves without and with a backlog."""
    bench.title("from an acknowledgement in A until B's admin API counts it")
    lag = stories.lag(1500 if quick else 10_000, 300)
    bench.figure("cursor_lag_p50_ms", lag.p50)
    bench.at_most("cursor_lag_p99_ms", lag.p99, LAG_MS)
    bench.title("acknowledged messages that come again after a move")
    measure_moves(bench, stories, quick, "no_backlog", 0)
    bench.title("the same with 50,000 entries behind them")
    measure_moves(bench, stories, quick, "backlog_50000", 50_000)


def measure_moves(bench: Bench, stories: Stories, quick: bool, case: str, backlog: int) -> None:
    """Planned switches and kills, with nothing held back, a little, and a little for ever."""
    work = 2000 if quick else 10_000
    for name, hold in HOLDS.items():
        if quick and backlog and hold == 2.0:
            continue
        moved = stories.move(hold_seconds=hold, planned=True, work=work, backlog=backlog)
        _tell(bench, f"{case}_{name}_planned", moved, 0.0)
        if stories.a.kill is not None:
            moved = stories.move(hold_seconds=hold, planned=False, work=work, backlog=backlog)
            _tell(bench, f"{case}_{name}_killed", moved, KILLED_PERCENT)


def _tell(bench: Bench, name: str, moved: Moved, limit: float) -> None:
    bench.at_most(f"{name}_again_percent", moved.again_percent, limit)
    bench.at_most(f"{name}_lost", moved.lost, 0)
    bench.figure(f"{name}_first_message_ms", moved.first_message_ms)
    if moved.again_in_client:
        bench.figure(f"{name}_again_that_may_not_have_left_the_client", moved.again_in_client)


def _ours(regions: Regions, name: str) -> Cluster:
    listed = regions.listed[name]

    def kill() -> None:
        regions.kill(name)

    return Cluster(name, listed["service_url"], listed["admin_url"], kill, lambda: regions.bring_back(name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/failover/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look in less than four minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object in the last line")
    parser.add_argument("--prepare", action="store_true", help="nothing has to be prepared; for symmetry with others")
    parser.add_argument("--a", nargs=2, metavar=("SERVICE_URL", "ADMIN_URL"), help="the cluster that is left")
    parser.add_argument("--b", nargs=2, metavar=("SERVICE_URL", "ADMIN_URL"), help="the cluster that goes on")
    parser.add_argument("--kill-a", metavar="COMMAND", help="shell command that kills A's broker with SIGKILL")
    parser.add_argument("--bring-back-a", metavar="COMMAND", help="shell command that starts it again and waits for it")
    parser.add_argument("--namespace", default="public/default", help="one that both replicate to each other")
    options = parser.parse_args()
    if (options.a is None) != (options.b is None):
        parser.error("--a and --b go together")
    if options.prepare:
        raise SystemExit(0)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
