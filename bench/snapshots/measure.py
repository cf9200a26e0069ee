# SPDX-License-Identifier: Apache-2.0
"""The cache of snapshots of one subscription (PIP-33): a million snapshots at random distances.

Then subscriptions at random positions look up their snapshot: how far it is behind decides how much is redelivered
after a failover.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_right
from itertools import pairwise

from meridian_broker.positions.position import Position
from meridian_broker.replication.snapshots.cache import SnapshotCache
from meridian_broker.wire.pulsar.markers import Place, Snapshot

PLACES, ADDED, LOOKED_UP = 10_000, 1_000_000, 10_000
ADDING_SECONDS = 15.0
AVERAGE_GAPS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    chosen, at = random.Random(33), 0
    cache = SnapshotCache(PLACES // part)
    elsewhere = (Place("eu", Position(1, 1)),)
    began = time.process_time()
    for _ in range(ADDED // part):
        at += chosen.randint(1, 1000)
        cache.add(Snapshot("", Position(1, at), elsewhere), at)
    adding = time.process_time() - began
    kept = [distance for _, distance in cache.kept()]
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    average = sum(gaps) / len(gaps)
    behind: list[int] = []
    for _ in range(LOOKED_UP):
        place = chosen.randint(kept[0], kept[-1])
        behind.append(place - kept[bisect_right(kept, place) - 1])
    began, taken = time.process_time(), 0
    for place in sorted(chosen.sample(range(kept[0], kept[-1]), LOOKED_UP)):
        taken += cache.take(Position(1, place)) is not None
    taking = (time.process_time() - began) / LOOKED_UP
    figures = {
        "adding a million into ten thousand places, s of CPU": adding * part,
        "the widest gap, in averages": max(gaps) / average,
        "the snapshot found, at most so many averages behind": max(behind) / average,
        "the same on average": sum(behind) / len(behind) / average,
        "a look-up, us of CPU": taking * 1e6,
    }
    met = adding * part <= ADDING_SECONDS and max(max(gaps), max(behind)) <= AVERAGE_GAPS * average
    if options.json:
        print(json.dumps({"figures": figures, "met": met}))
    else:
        for name, value in figures.items():
            print(f"  {name:54} {value:10.3f}")
        print(f"  targets: {ADDING_SECONDS:g} s, {AVERAGE_GAPS:g} averages: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
