# SPDX-License-Identifier: Apache-2.0
"""What consumers see when their region dies or they leave it: how far behind the other region is, and how many
messages are redelivered or lost.

Without --a and --b it starts three Meridian regions. With them it measures any two clusters that speak Pulsar's
protocol, by the same steps. --pairs puts Apache Pulsar and Meridian side by side, in each combination.
"""

from __future__ import annotations

import argparse
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from clusters import Cluster, by_command
from disasters import NAMES, Disasters
from pairs import PAIRS
from picture import write_report
from processes import Regions
from report import Report
from side_by_side import CASES, compare, figures, limits, table, together_with, unavailable
from stories import Lag, Moved, Stories
from support.brokers.pulsar_process import pulsar_missing
from wired import Wired

HOLDS = {"none_held": 0.0, "1_percent_held_2_s": 2.0, "1_percent_held_for_ever": math.inf}
LAG_MS = 25.0
KILLED_PERCENT = 0.1
IDLE_BYTES_PER_SECOND = 50_000
IDLE_SUBSCRIPTIONS = 100_000
PARTS = ("lag", "moves", "disasters")
FETCH = Path(__file__).resolve().parents[2] / "scripts" / "pulsar"


class Bench(Report):
    """Figures and targets of failovers."""

    def moved(self, name: str, moved: Moved, limit: float) -> None:
        """Messages that were repeated and lost."""
        self.at_most(f"{name}_again_percent", moved.again_percent, limit)
        self.at_most(f"{name}_lost", moved.lost, 0)
        self.figure(f"{name}_again", moved.again)
        self.figure(f"{name}_confirmed", moved.confirmed)
        if moved.unconfirmed:
            self.figure(f"{name}_without_receipt", moved.unconfirmed)
            self.figure(f"{name}_without_receipt_again", moved.unconfirmed_again)
        if moved.first_message_ms >= 0:
            self.figure(f"{name}_first_message_ms", moved.first_message_ms)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the clusters, too
    began = time.monotonic()
    bench = Bench(as_json=options.json)
    lag: Lag | None = None
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-failover-")))
        if options.pairs:
            measure_pairs(bench, options, directory)
        elif options.a:
            a, b = Cluster("A", *options.a), Cluster("B", *options.b)
            a.kill = by_command(options.kill_a)
            a.bring_back = by_command(options.bring_back_a) or a.bring_back
            stories = Stories(a, b, options.namespace, directory)
            lag = measure(bench, stories, options, by_command(options.kill_c))
        else:
            if {"lag", "moves"} & set(options.only):
                with Regions(directory / "regions", *NAMES) as regions:
                    stories = Stories(_ours(regions, "one"), _ours(regions, "two"), options.namespace, directory)
                    lag = measure(bench, stories, options, lambda: regions.kill("three"))
            if "disasters" in options.only:
                with Wired(directory / "wired", *NAMES) as wired:
                    measure_disasters(bench, Disasters(wired, directory), options.quick)
    bench.figure("seconds", time.monotonic() - began)
    if options.report:
        write_report(options.report, lag, bench.figures, bench.missed, bench.machine())
    return bench.finish()


def measure(
    bench: Bench, stories: Stories, options: argparse.Namespace, kill_third: Callable[[], object] | None
) -> Lag | None:
    """The cursor's lag, then moves: without and with a backlog, and while a third region is away."""
    quick: bool = options.quick
    lag = None
    if "lag" in options.only:
        bench.title("from the sending of an acknowledgement in A until B's admin API shows it")
        lag = stories.lag(1500 if quick else 10_000, 300)
        bench.figure("cursor_lag_p50_ms", lag.percentile(50))
        bench.at_most("cursor_lag_p99_ms", lag.percentile(99), LAG_MS)
        bench.figure("cursor_lag_max_ms", lag.sorted_ms[-1])
        bench.figure("cursor_lag_samples", len(lag.samples))
    if "moves" in options.only:
        bench.title("messages that were acknowledged, with the broker's receipt, and come again after a move")
        measure_moves(bench, stories, quick, "no_backlog", 0)
        bench.title("the same, 50,000 entries behind")
        measure_moves(bench, stories, quick, "backlog_50000", 50_000)
        if kill_third is not None:
            bench.title("with the third region down")
            kill_third()
            measure_moves(bench, stories, quick, "third_region_down", 0)
    return lag


def measure_moves(bench: Bench, stories: Stories, quick: bool, case: str, backlog: int) -> None:
    """Planned switches and kills, with no messages held back, a few, and a few forever."""
    work = 2000 if quick else 10_000
    for name, hold in HOLDS.items():
        if quick and case != "no_backlog" and hold != math.inf:
            continue  # the hardest of the three represents them
        moved = stories.move(hold_seconds=hold, planned=True, work=work, backlog=backlog)
        bench.moved(f"{case}_{name}_planned", moved, 0.0)
        if stories.a.kill is not None:
            moved = stories.move(hold_seconds=hold, planned=False, work=work, backlog=backlog)
            bench.moved(f"{case}_{name}_killed", moved, KILLED_PERCENT)


def measure_disasters(bench: Bench, disasters: Disasters, quick: bool) -> None:
    """A cut, an old disk, and idling. A quick run takes less of each, and its figures say how much."""
    cut_seconds = 10 if quick else 60
    bench.title(f"region one is cut off from both others for {cut_seconds} s while its consumer works on, then moves")
    bench.figure("link_cut_seconds", cut_seconds)
    healed = disasters.cut_and_healed(cut_seconds)
    bench.moved("link_cut_and_healed", healed.moved, 0.0)
    bench.figure("link_cut_caught_up_after_ms", healed.caught_up_ms)
    bench.title("the consumer moves over a link that is cut; a third region has links to both")
    bench.moved("link_cut_third_region_relays", disasters.around_a_cut(2 if quick else 10), 0.0)
    old_seconds = 15 if quick else 300
    bench.title(f"a region is killed and returns with its disk of {old_seconds} s ago")
    bench.figure("restored_disk_seconds_old", old_seconds)
    bench.moved("restored_disk", disasters.restored(old_seconds), KILLED_PERCENT)
    count = IDLE_SUBSCRIPTIONS // (10 if quick else 1)
    bench.title(f"{count:,} replicated subscriptions at rest in three regions")
    idle = disasters.idle(count, 10 if quick else 60)
    bench.figure("idle_subscriptions", idle.subscriptions)
    bench.figure("idle_topics", idle.topics)
    bench.at_most("idle_exchange_bytes_per_second", idle.bytes_per_second, IDLE_BYTES_PER_SECOND)
    bench.figure("idle_brokers_cpu_percent", idle.cpu_percent)
    bench.figure("idle_made_in_seconds", idle.made_seconds)
    bench.figure("idle_settled_in_seconds", idle.settled_seconds)


def measure_pairs(bench: Bench, options: argparse.Namespace, directory: Path) -> None:
    """The same moves between each two clusters, side by side."""
    results = compare(
        options.pairs,
        options.case or CASES,
        options.quick,
        directory,
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    if options.results:
        results = together_with(options.results, results)
    bench.title(table(results))
    bench.figures |= {name: round(value, 3) for name, value in figures(results).items()}
    for name, (value, limit) in limits(results).items():
        bench.at_most(name, value, limit)


def _ours(regions: Regions, name: str) -> Cluster:
    listed = regions.listed[name]

    def kill() -> None:
        regions.kill(name)

    return Cluster(name, listed["service_url"], listed["admin_url"], kill, lambda: regions.bring_back(name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/failover/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, less than four minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--prepare", action="store_true", help="fetch what --pairs with Apache Pulsar needs, and exit")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument(
        "--pairs",
        nargs="*",
        choices=PAIRS,
        metavar="FROM-TO",
        help=f"moves between pairs of clusters, side by side: {', '.join(PAIRS)}; default: all",
    )
    parser.add_argument("--case", action="append", choices=CASES, help="of --pairs, only this case; repeatable")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="keep the outcomes of --pairs there, and judge them with those of earlier runs",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="write a page with a plot of the lag and all figures"
    )
    parser.add_argument(
        "--a", nargs=2, metavar=("SERVICE_URL", "ADMIN_URL"), help="the cluster that the consumer leaves"
    )
    parser.add_argument("--b", nargs=2, metavar=("SERVICE_URL", "ADMIN_URL"), help="the cluster where it continues")
    parser.add_argument("--kill-a", metavar="COMMAND", help="shell command that kills A's broker with SIGKILL")
    parser.add_argument("--bring-back-a", metavar="COMMAND", help="shell command that restarts it and waits for it")
    parser.add_argument("--kill-c", metavar="COMMAND", help="shell command that stops a third cluster, at the end")
    parser.add_argument("--namespace", default="public/default", help="a namespace that both replicate to each other")
    options = parser.parse_args()
    if (options.a is None) != (options.b is None):
        parser.error("--a and --b go together")
    options.only = options.only or PARTS
    if options.prepare:
        raise SystemExit(subprocess.run([FETCH], check=False).returncode)
    if options.pairs is not None:
        options.pairs = options.pairs or list(PAIRS)
        if reason := unavailable(options.pairs, pulsar_missing()):
            parser.error(reason)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
