# SPDX-License-Identifier: Apache-2.0
"""``python -m simulation``: run seeds or story files, and print the shortest failing story."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from simulation import brokers_stories, divided_stories, generate
from simulation.running import Outcome, run_story, shorten

STORIES: Final = {
    "regions": generate.story_of,
    "brokers": brokers_stories.story_of,
    "divided": divided_stories.story_of,
}
"""World -> the story of a seed."""


def run_seed(world: str, seed: int) -> tuple[int, Outcome, float]:
    began = time.process_time()
    outcome = run_story(STORIES[world](seed))
    gc.collect()
    return seed, outcome, time.process_time() - began


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument(
        "--world",
        choices=STORIES,
        default="regions",
        help="several regions, brokers that share one, or several regions that brokers share",
    )
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this many seconds; 0: never")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=int, default=1, help="stop after this many failing seeds")
    parser.add_argument("--as-found", action="store_true", help="do not shorten failing stories")
    parser.add_argument("--print", action="store_true", help="print the stories of the seeds, run nothing")
    parser.add_argument("--order", type=int, default=0, help="order of sets of names: each is another world")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.print:
        for seed in seeds:
            print(f"# seed {seed}", *STORIES[options.world](seed), sep="\n")
        return 0
    return _run(seeds, options)


def _run(seeds: range, options: argparse.Namespace) -> int:
    began = time.monotonic()
    done = messages = failed = 0
    hours = cpu = 0.0
    gc.freeze()  # so that after each story only its own garbage is collected
    with ProcessPoolExecutor(options.jobs, initializer=gc.freeze) as pool:
        run = partial(run_seed, options.world)
        results = map(run, seeds) if options.jobs == 1 else pool.map(run, seeds, chunksize=4)
        for seed, outcome, spent in results:
            done += 1
            hours += outcome.seconds * outcome.regions / 3600
            messages += outcome.messages
            cpu += spent
            if outcome.violation is not None:
                failed += 1
                _tell(seed, outcome, options)
                if failed >= options.failures:
                    break
            if options.seconds and time.monotonic() - began > options.seconds:
                break
        pool.shutdown(cancel_futures=True)
    rate = hours / (cpu / 3600) if cpu else 0.0
    print(
        f"{done} seeds, {failed} failed; {hours:.1f} region-hours and {messages:,} deliveries in {cpu:.0f} s of "
        f"processor time: {rate:,.0f} region-hours an hour"
    )
    return 1 if failed else 0


def _tell(seed: int, outcome: Outcome, options: argparse.Namespace) -> None:
    assert outcome.violation is not None
    print(f"seed {seed}{f' in order {options.order}' if options.order else ''}: {outcome.violation}")
    lines = STORIES[options.world](seed)
    if not options.as_found:
        lines = shorten(lines, outcome.violation.kind)
        print(f"  shortest story found ({len(lines)} lines), {run_story(lines).violation}:")
    for line in lines:
        print("   ", line)
    sys.stdout.flush()


def _ordered(arguments: list[str]) -> None:
    """Iteration over sets of names depends on their hashes, which must be equal in every run for seeds to replay."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--order", type=int, default=0)
    order = str(parser.parse_known_args(arguments)[0].order)
    if os.environ.get("PYTHONHASHSEED") != order:
        folder = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))
        os.environ |= {"PYTHONHASHSEED": order, "PYTHONPATH": path}
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *arguments])


if __name__ == "__main__":
    _ordered(sys.argv[1:])
    sys.exit(main(sys.argv[1:]))
