# SPDX-License-Identifier: Apache-2.0
"""Costs of the progress algebra: processor time per operation, bytes per set.

Times are the best of several rounds of processor time, minus the cost of the empty loop: the smallest is the one least
disturbed by other processes. Sizes are exact, and the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import log2
from pathlib import Path
from random import Random
from typing import Any

from meridian_broker.positions import EARLIEST, ZERO, AckSet, Position, Progress
from meridian_broker.positions.beginning import UNKNOWN
from meridian_broker.positions.reports import NONE as NO_REPORTS
from pyroaring import BitMap

LEDGER = 750_000_000_000_123
REGIONS = ("us-east", "us-west", "eu-central")

TARGETS_NS = {
    "claim, in order": 1000,
    "claim, above a hole": 1000,
    "contains, below the floor": 1000,
    "contains, above the floor": 1000,
    "Progress.ack, in order": 1500,
    "Progress.is_acked": 1500,
}
TARGETS_BYTES = {
    "idle Progress, 3 regions, in memory": 700,
    "AckSet with a floor only, in memory": 200,
    "1 M random holes over 2 M entries, encoded": 256 * 1024,
}


def place(entry: int) -> Position:
    return Position(LEDGER, entry)


def loop_ns(prepare: Callable[[], Callable[[int], object]], count: int, rounds: int) -> float:
    """Nanoseconds per call of the function that ``prepare`` returns, called with 0 to ``count - 1``."""

    def once(action: Callable[[int], object]) -> int:
        begin = time.process_time_ns()
        for number in range(count):
            action(number)
        return time.process_time_ns() - begin

    empty = min(once(lambda _: None) for _ in range(rounds))
    return max(0.0, (min(once(prepare()) for _ in range(rounds)) - empty) / count)


def operations(count: int) -> Iterator[tuple[str, Callable[[], Callable[[int], object]]]]:
    places = [place(entry) for entry in range(-1, count + 8)]
    order = list(range(2, count + 4))
    Random(1).shuffle(order)
    near = [number ^ 1 for number in range(count + 2)]

    def claiming(start: AckSet, pick: Callable[[int], int]) -> Callable[[], Callable[[int], object]]:
        def prepare() -> Callable[[int], object]:
            acks = start.copy()

            def action(number: int) -> object:
                entry = pick(number)
                return acks.claim(places[entry], places[entry + 1])

            return action

        return prepare

    empty, hole = AckSet(place(-1)), AckSet(place(-1))
    hole.claim(place(1), place(2))
    yield "claim, in order", claiming(empty, lambda number: number)
    yield "claim, above a hole", claiming(hole, lambda number: number + 3)
    yield "claim, pairs swapped", claiming(empty, near.__getitem__)
    yield "claim, wholly at random", claiming(hole, order.__getitem__)
    sparse = AckSet(place(1000))
    for entry in range(1002, 2000, 2):
        sparse.claim_point(place(entry))
    yield "contains, below the floor", lambda: lambda number: sparse.contains(places[number % 1000])
    yield "contains, above the floor", lambda: lambda number: sparse.contains(places[1001 + number % 1000])

    def fresh() -> Progress:
        progress = Progress()
        for region in REGIONS:
            progress.ack(ZERO, region, EARLIEST, place(0))
        return progress

    def acking() -> Callable[[int], object]:
        progress = fresh()
        return lambda number: progress.ack(ZERO, "us-east", places[number + 1], places[number + 2])

    def batching() -> Callable[[int], object]:
        progress = fresh()

        def action(number: int) -> object:
            entry = number // 10
            return progress.ack_batch(ZERO, "us-east", places[entry + 2], 10, 1 << number % 10, places[entry + 1])

        return action

    yield "Progress.ack, in order", acking
    yield "Progress.ack_batch, 10 messages each", batching
    full = fresh()
    yield "Progress.is_acked", lambda: lambda number: full.is_acked("us-west", places[number % 2])

    def delta(number: int) -> Progress:
        progress = Progress()
        progress.ack(ZERO, "us-east", places[number + 1], places[number + 2])
        return progress

    def joining(first: int) -> Callable[[], Callable[[int], object]]:
        def prepare() -> Callable[[int], object]:
            progress, deltas = fresh(), [delta(number + first) for number in range(count)]
            return lambda number: progress.join(deltas[number])

        return prepare

    yield "make a delta of one ack", lambda: delta
    yield "join a delta of one ack, in order", joining(0)
    yield "join a delta of one ack, above a hole", joining(2)
    one = delta(4)
    data = one.encode()
    yield "encode a delta of one ack", lambda: lambda _: one.encode()
    yield "decode a delta of one ack", lambda: lambda _: Progress.decode(data)
    yield "digests of an idle Progress", lambda: lambda _: full.digests()


def texture(entries: int, holes: int, seed: int) -> AckSet:
    """A set with this many holes at random, the first entry among them, so that nothing is below the floor."""
    bits = BitMap()
    bits.add_range(0, entries)
    bits -= BitMap([0, *Random(seed).sample(range(1, entries), holes - 1)])
    acks = AckSet(place(-1))
    detail = acks._claims_of(LEDGER)  # one by one, this would take longer than the rest
    detail.bits = bits
    acks._normalise()
    return acks


def timed_ms(action: Callable[[], Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time_ns()
        action()
        best = min(best, (time.process_time_ns() - begin) / 1e6)
    return round(best, 2)


def sets(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    for entries in (1_000_000,) if quick else (1_000_000, 2_000_000):
        for percent in (1, 10, 50):
            holes = entries * percent // 100
            one, two = texture(entries, holes, 1), texture(entries, holes, 2)
            data = one.encode()
            share = percent / 100
            entropy = -entries * (share * log2(share) + (1 - share) * log2(1 - share)) / 8
            copies = [one.copy() for _ in range(rounds)]
            yield {
                "entries": entries,
                "holes": holes,
                "bytes": len(data),
                "bytes_per_entropy": round(len(data) / entropy, 3),
                "encode_ms": timed_ms(one.encode, rounds),
                "decode_ms": timed_ms(lambda data=data: AckSet.decode(data), rounds),  # type: ignore[misc]
                "join_ms": timed_ms(lambda copies=copies, two=two: copies.pop().join(two), rounds),  # type: ignore[misc]
                "minus_ms": timed_ms(lambda one=one, two=two: one.minus(two), rounds),  # type: ignore[misc]
                "digest_ms": timed_ms(lambda one=one: one.digest(LEDGER), rounds),  # type: ignore[misc]
            }


SHAPES = (
    # entries, holes, most bytes of one subscription, subscriptions measured, three regions by turns
    (2_000_000, 1_000_000, 256 * 1024, 6, 0),
    (10_000_000, 1_000_000, 1_363_148, 1, 0),
    (2_000_000, 1_000_000, None, 2, 1),
)


def subscriptions(quick: bool) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Whole subscriptions over many ledgers, each shape in its own process. A tenth of the size if quick."""
    script = Path(__file__).with_name("holes.py")
    for entries, holes, most, count, mixed in SHAPES:
        part = 10 if quick else 1
        words = [str(number) for number in (entries // part, holes // part, count, mixed)]
        # The allocator's cache of small blocks is the process's, and grows by as much as five pages meanwhile.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        command = [sys.executable, str(script), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        yield json.loads(done.stdout), None if most is None else most // part


SINGLE_TIMES = 2.0
"""Maximum cost of an acknowledgement with many rewinds, as a multiple of that with none."""
LONGEST_MS = 20.0
"""The longest turn of the loop that a cumulative acknowledgement, a seek, a lookahead or damage may cause."""


def acknowledging(quick: bool) -> Iterator[tuple[str, float, float]]:
    """``(what, limit, measured)`` for acknowledgements on a real topic, in its own process."""
    script = Path(__file__).with_name("acks.py")
    words = ["2000", "100000"] if quick else ["10000", "1000000"]
    command = [sys.executable, str(script), *words]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    none, *rewound = found["singles"]
    print(f"\n{'one acknowledgement, rewinds':>34}{'alone, us':>12}{'of 100, us':>12}")
    for case in found["singles"]:
        print(f"{case['rewinds']:>20,} by {case['kind']:>9}{case['alone_us']:>13}{case['together_us']:>12}")
    for case in rewound:
        name = f"one acknowledgement, {case['rewinds']:,} rewinds by {case['kind']}"
        for how in ("alone_us", "together_us"):
            yield f"{name}, {how[:-3]}, times that without", SINGLE_TIMES, round(case[how] / none[how], 2)
    entries = found["entries"]
    print(f"\n{'one over entries':>20}{'':10}{'longest turn, ms':>18}{'receipt, ms':>13}{'cursor, ms':>12}")
    for kind, case in found["cumulative"].items():
        print(f"{entries:>20,}{kind:>10}{case['longest']:>18}{case['durable']:>13}{case['whole']:>12}")
        yield f"cumulative over {entries:,} entries, {kind}, longest turn, ms", LONGEST_MS, case["longest"]


def seeking(quick: bool) -> Iterator[tuple[str, float, float]]:
    """The same for seeks and other lookaheads, over alternating entries of two regions."""
    command = [sys.executable, str(Path(__file__).with_name("seeks.py")), "100000" if quick else "1000000"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    entries = found["entries"]
    print(f"\n{f'over {entries:,} entries of two regions':>45}{'':10}{'longest turn, ms':>18}{'all, ms':>12}")
    for name, cases in found["worlds"].items():
        for what, case in cases.items():
            print(f"{what:>45}{name:>10}{case['longest']:>18}{case['whole']:>12}")
            yield f"{what}, over {entries:,} entries, {name}, longest turn, ms", LONGEST_MS, case["longest"]


def damaging(quick: bool) -> Iterator[tuple[str, float, float]]:
    """The same for very many damaged entries."""
    command = [sys.executable, str(Path(__file__).with_name("damage.py")), "50000" if quick else "100000"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    entries = found["entries"]
    print(f"\n{f'{entries:,} damaged entries':>45}{'':10}{'longest turn, ms':>18}{'all, ms':>12}")
    for what, case in found["cases"].items():
        print(f"{what:>45}{'':10}{case['longest']:>18}{case['whole']:>12}")
        yield f"{what}, {entries:,}, longest turn, ms", LONGEST_MS, case["longest"]


def memory_bytes(thing: object, seen: set[int] | None = None) -> int:
    """``sys.getsizeof`` of an object and everything it holds, including region names; without what all objects of its
    kind share."""
    seen = {id(UNKNOWN), id(NO_REPORTS), id(sys.modules)} if seen is None else seen
    if thing is None or id(thing) in seen:
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, dict):
        size += sum(memory_bytes(part, seen) for pair in thing.items() for part in pair)
    elif isinstance(thing, (list, tuple)):
        size += sum(memory_bytes(part, seen) for part in thing)
    for kind in type(thing).__mro__:
        size += sum(memory_bytes(getattr(thing, slot), seen) for slot in getattr(kind, "__slots__", ()))
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: numbers are rough")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    count, rounds = (5_000, 3) if options.quick else (50_000, 7)
    load_before = os.getloadavg()[0]

    times = {}
    print(f"{'operation':42}{'ns':>8}{'target':>9}")
    for name, prepare in operations(count):
        times[name] = round(loop_ns(prepare, count, rounds))
        target = TARGETS_NS.get(name)
        print(f"{name:42}{times[name]:>8,}{f'<= {target:,}' if target else '':>9}")

    idle = Progress()
    for region in REGIONS:
        idle.ack(ZERO, region, EARLIEST, place(1_000_000))
    sizes = {
        "idle Progress, 3 regions, in memory": memory_bytes(idle),
        "AckSet with a floor only, in memory": memory_bytes(AckSet(place(1_000_000))),
        "idle Progress, 3 regions, encoded": len(idle.encode()),
        "1 M random holes over 2 M entries, encoded": len(texture(2_000_000, 1_000_000, 1).encode()),
    }
    print(f"\n{'size':46}{'bytes':>9}{'target':>12}")
    for name, size in sizes.items():
        target = TARGETS_BYTES.get(name)
        print(f"{name:46}{size:>9,}{f'<= {target:,}' if target else '':>12}")

    print(f"\n{'entries':>10}{'holes':>10}{'bytes':>9}{'/ entropy':>10}  encode  decode    join   minus  digest  (ms)")
    shapes = []
    for shape in sets(options.quick, 2 if options.quick else 4):
        shapes.append(shape)
        print(
            f"{shape['entries']:>10,}{shape['holes']:>10,}{shape['bytes']:>9,}{shape['bytes_per_entropy']:>10}"
            + "".join(f"{shape[key]:>8.1f}" for key in ("encode_ms", "decode_ms", "join_ms", "minus_ms", "digest_ms"))
        )

    print(
        f"\n{'one subscription: entries':>26}{'holes':>10}{'regions':>8}{'entropy':>9}{'encoded':>9}"
        f"{'memory':>9}{'busy':>9}{'target':>12}{'index':>12}{'unpacked':>12}"
    )
    whole = []
    for shape, most in subscriptions(options.quick):
        whole.append((shape, most))
        print(
            f"{shape['entries']:>26,}{shape['holes']:>10,}{shape['regions']:>8}{shape['entropy_bytes']:>9,}"
            f"{shape['encoded_bytes']:>9,}{shape['memory_bytes']:>9,}{shape['memory_warm_bytes']:>9,}"
            f"{f'<= {most:,}' if most else '':>12}{shape['index_bytes']:>12,}{shape['index_unpacked_bytes']:>12,}"
        )

    limits = [*acknowledging(options.quick), *seeking(options.quick), *damaging(options.quick)]
    limits += [(f"{name}, ns", limit, times[name]) for name, limit in TARGETS_NS.items()]
    limits += [(f"{name}, bytes", limit, sizes[name]) for name, limit in TARGETS_BYTES.items()]
    for shape, most in whole:
        name = f"subscription with {shape['holes']:,} random holes over {shape['entries']:,} entries"
        if most is not None:
            limits.append((f"{name}, encoded, bytes", most, shape["encoded_bytes"]))
        if most is not None and not options.quick:  # a tenth is less than the pages that a process is given
            limits.append((f"{name}, in memory, bytes", most, shape["memory_bytes"]))
    targets = {name: {"target": limit, "measured": got, "met": got <= limit} for name, limit, got in limits}
    if options.json:
        machine = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
        result = {"targets": targets, "times_ns": times, "sizes_bytes": sizes, "sets": shapes}
        result |= {"subscriptions": [shape for shape, _ in whole], "machine": machine}
        print(json.dumps(result))
    sys.exit(0 if all(target["met"] for target in targets.values()) else 1)


if __name__ == "__main__":
    main()
