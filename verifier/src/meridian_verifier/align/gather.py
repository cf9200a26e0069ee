# SPDX-License-Identifier: Apache-2.0
"""Exported rows of one topic and origin -> :class:`Evidence`.

Whole columns become arrays; no row is handled singly, except partly acked batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meridian_verifier.align.coordinates import Coordinates
from meridian_verifier.align.evidence import Acked, Evidence, Holder, Known, Partial, Stored
from meridian_verifier.align.facts import EARLIEST, Place, World
from meridian_verifier.align.intervals import IntervalSet, Keys

EARLIER: Final = 1
LATER: Final = 2
"""Values of the column ``taken``: which snapshot a range is from."""


def gather(topic: str, origin: str, world: World, entries: pa.Table, ranges: pa.Table) -> Evidence:
    """Evidence from the rows of one topic and origin.

    :param entries: from S2; columns region, ledger, entry, origin_ledger, origin_entry, prev_ledger, prev_entry,
        checksum, messages, publish_ms, stored_ms, marker, replicate_to.
    :param ranges: columns taken, table, region, subscription, after_ledger, after_entry, upto_ledger, upto_entry,
        batch_size, acked_bits; ``passed`` and ``compacted`` are in local coordinates, the others in the origin's.
    """
    entries = entries.filter(pc.invert(entries["marker"]))
    is_local = pc.is_in(ranges["table"], pa.array(["passed", "compacted"]))
    passed, ranges = ranges.filter(is_local), ranges.filter(pc.invert(is_local))
    coordinates = Coordinates.over(
        numbers(entries, "origin_ledger"),
        numbers(entries, "prev_ledger"),
        numbers(ranges, "after_ledger"),
        numbers(ranges, "upto_ledger"),
        [ledger for ledger, _ in _named_places(world, topic, origin)],
    )
    local = Coordinates.over(
        numbers(entries, "ledger"), numbers(passed, "after_ledger"), numbers(passed, "upto_ledger")
    )
    keys = coordinates.keys(numbers(entries, "origin_ledger"), numbers(entries, "origin_entry"))
    locally: dict[str, dict[Holder, IntervalSet]] = {"passed": {}, "compacted": {}}
    after, upto = _bounds(local, passed)
    for (table, *holder), rows in _split(passed, ("table", "region", "subscription")):
        locally[table][(holder[0], holder[1])] = IntervalSet.of(after[rows], upto[rows])
    found: dict[tuple[int, str], dict[Holder, Acked]] = {}
    told = _Told(ranges, coordinates)
    for (taken, table, *holder), rows in _split(ranges, ("taken", "table", "region", "subscription")):
        found.setdefault((taken, table), {})[(holder[0], holder[1])] = told.acked(rows)
    return Evidence(
        topic,
        origin,
        world,
        coordinates,
        _known(entries, keys, coordinates, world, origin),
        {region: _stored(entries, keys, coordinates, local, rows) for (region,), rows in _split(entries, ("region",))},
        found.get((EARLIER, "progress"), {}),
        found.get((LATER, "progress"), {}),
        found.get((LATER, "acks"), {}),
        {holder: acked.full for holder, acked in found.get((LATER, "dropped"), {}).items()},
        locally["passed"],
        locally["compacted"],
    )


def numbers(table: pa.Table, column: str) -> Keys:
    """A whole-number column as an array, nulls as -1."""
    values: Keys = pc.fill_null(table[column], -1).to_numpy()
    return values


def _named_places(world: World, topic: str, origin: str) -> Iterator[Place]:
    yield EARLIEST
    for moment in (world.earlier, world.later):
        for region in moment.values():
            if topic in region.topics:
                state = region.topics[topic]
                yield state.last_origins.get(origin, EARLIEST)
                yield state.joined.get(origin, EARLIEST)
                yield (state.trimmed_origins or {}).get(origin, EARLIEST)
                for ends in state.told.values():
                    yield ends.get(origin, EARLIEST)
                for hole in state.holes.get(origin, ()):
                    yield from hole
        if origin in world.pulsar and topic in world.pulsar[origin].later:
            for cursor in world.pulsar[origin].later[topic].cursors.values():
                yield cursor.mark_delete
                for stretch in cursor.deleted:
                    yield from stretch
        if origin in moment and topic in moment[origin].topics:
            for stretches in moment[origin].topics[topic].skipped.values():
                for stretch in stretches:
                    yield from stretch


def _split(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], Keys]]:
    """The distinct values of the columns, each with the indexes of its rows in order."""
    if not table.num_rows:
        return
    code = np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        coded = table[column].combine_chunks().dictionary_encode()
        code = code * len(coded.dictionary) + coded.indices.to_numpy()
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    for rows in np.split(order, bounds):
        first = int(rows[0])
        yield tuple(table[column][first].as_py() for column in columns), rows


def _bounds(coordinates: Coordinates, ranges: pa.Table) -> tuple[Keys, Keys]:
    """Where each range begins, exclusive, and where it ends, inclusive."""
    after = coordinates.keys(numbers(ranges, "after_ledger"), numbers(ranges, "after_entry"))
    return after, coordinates.keys(numbers(ranges, "upto_ledger"), numbers(ranges, "upto_entry"))


class _Told:
    """Ranges in the origin's coordinates. Their columns are converted once, because most groups are small."""

    def __init__(self, ranges: pa.Table, coordinates: Coordinates) -> None:
        self._ranges = ranges
        self._after, self._upto = _bounds(coordinates, ranges)
        self._in_part = pc.is_valid(ranges["batch_size"]).to_numpy()

    def acked(self, rows: Keys) -> Acked:
        """The acks in these rows."""
        in_part = self._in_part[rows]
        full, batches = rows[~in_part], rows[in_part]
        partial: dict[int, Partial] = {}
        if len(batches):
            told = self._ranges.select(["batch_size", "acked_bits"]).take(batches)
            partial = {
                key: Partial(size, int.from_bytes(bits, "little"))
                for key, size, bits in zip(
                    self._upto[batches].tolist(),
                    told["batch_size"].to_pylist(),
                    told["acked_bits"].to_pylist(),
                    strict=True,
                )
            }
        return Acked(IntervalSet.of(self._after[full], self._upto[full]), partial)


def _known(entries: pa.Table, keys: Keys, coordinates: Coordinates, world: World, origin: str) -> Known:
    unique, first = np.unique(keys, return_index=True)
    chosen = entries.take(first)
    withheld = {}
    if chosen["replicate_to"].null_count < chosen.num_rows:
        lists = chosen["replicate_to"].to_pylist()
        for region in world.asked:
            if region == origin:
                continue
            mask = np.fromiter((to is not None and region not in to for to in lists), dtype=np.bool_, count=len(lists))
            if mask.any():
                withheld[region] = mask
    prev = coordinates.keys(numbers(chosen, "prev_ledger"), numbers(chosen, "prev_entry"))
    return Known(unique, prev, numbers(chosen, "messages"), numbers(chosen, "publish_ms"), withheld)


def _stored(entries: pa.Table, keys: Keys, coordinates: Coordinates, local: Coordinates, rows: Keys) -> Stored:
    chosen = entries.take(rows)
    here = local.keys(numbers(chosen, "ledger"), numbers(chosen, "entry"))
    order = np.argsort(here, kind="stable")
    at_home = pc.and_(
        pc.equal(chosen["ledger"], chosen["origin_ledger"]), pc.equal(chosen["entry"], chosen["origin_entry"])
    )
    return Stored(
        keys[rows][order],
        here[order],
        coordinates.keys(numbers(chosen, "prev_ledger"), numbers(chosen, "prev_entry"))[order],
        numbers(chosen, "checksum")[order],
        numbers(chosen, "stored_ms")[order],
        len(chosen) - int(pc.sum(at_home).as_py() or 0),
    )
