# SPDX-License-Identifier: Apache-2.0
"""Rows of the export tables, from a topic's line in the snapshot file or from a stored entry (``docs/export.md``).

Rows are plain tuples in the order of the table's columns. Sets of acks are converted to what counts *now*: where
rewinds made layers, the newest layer that rules an entry decides. A rewind by time applies by publish time, which
ranges of positions cannot express: there both the older and the newer layer are shown.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pyroaring import BitMap

from meridian_broker.ledgers.entry import MARKER, NO_ORIGIN, unpack
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.dropped import Dropped
from meridian_broker.positions.position import EARLIEST, LATEST, Position, parse_position
from meridian_broker.positions.progress import Progress

Row = tuple[Any, ...]
Interval = tuple[Position, Position]
"""``(after, upto]``."""
SKIPPED_COLUMNS: Final = ("remote", "after_ledger", "after_entry", "upto_ledger", "upto_entry")
TOLD_COLUMNS: Final = ("subscription", "region", "ledger", "entry")
CURSOR_COLUMNS: Final = (
    "subscription",
    "replicated",
    "durable",
    "type",
    "mark_delete_ledger",
    "mark_delete_entry",
    "read_ledger",
    "read_entry",
    "backlog",
    "epoch",
)
_NO_BATCH: Final = (None, None)


def epoch_text(epoch: Stamp) -> str:
    """A stamp as text that sorts by age; empty for a subscription that was never rewound."""
    return "" if epoch == ZERO else f"{epoch.time_ms:015d}.{epoch.counter:08d}@{epoch.region}"


def rows_of(table: str) -> Callable[[Mapping[str, Any]], Iterator[Row]]:
    """The function that makes a table's rows from a topic's line.

    :raises KeyError: there is no such table.
    """
    return _TABLES[table]


def topic_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """The one row of ``topics``."""
    region = record["region"]
    last = {**record.get("last_origin", {}), region: record["last_own"]}
    yield (
        region,
        record["topic"],
        record.get("incarnation", ""),
        [
            {"ledger": one["id"], "entries": one["entries"], "size": one["size"], "sealed": one["sealed"]}
            for one in record["ledgers"]
        ],
        _places(last),
        _places(record.get("joined", {})),
        *parse_position(record["trimmed_to"]),
        [
            {name: link[name] for name in ("remote", "connected", "backlog", "last_ack_ms")}
            for link in record.get("links", ())
        ],
        [dict(zip(CURSOR_COLUMNS, _cursor(one), strict=True)) for one in record["subscriptions"]],
        _places(record.get("trimmed_origins", {})),
        _holes(record.get("holes", ())),
        *parse_position(record["view"]["horizon"] if "view" in record else str(EARLIEST)),
        _told(record.get("told", ())),
        _skipped(record.get("skipped", ())),
        record.get("shadow_of", ""),
        record.get("unchained", []),
    )


def _skipped(listed: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(SKIPPED_COLUMNS, (remote, *parse_position(after), *parse_position(upto)), strict=True))
        for remote, after, upto in listed
    ]


def _told(listed: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(TOLD_COLUMNS, (subscription, origin, *parse_position(upto)), strict=True))
        for subscription, origin, upto in listed
    ]


def cursor_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``cursors``: one row per subscription."""
    for one in record["subscriptions"]:
        yield (record["region"], record["topic"], *_cursor(one))


def progress_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``progress``: acked entries, whichever region acked them."""
    for one in record["subscriptions"]:
        head = (record["region"], record["topic"], one["name"])
        yield from _acked(head, _progress(one.get("progress")), (None,), (None, None))


def ack_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``acks``: acks that this region made itself, and, if there is an ack log, the acks as they were received."""
    yield from _firsthand_rows(record)
    for one in record.get("ack_log", ()):
        yield from _logged(record, one)


def dropped_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``dropped``: entries removed without an ack, by cause."""
    for one in record["subscriptions"]:
        encoded = one.get("dropped")
        if encoded:
            for cause, origin, after, upto in Dropped.decode(b64decode(encoded)).runs():
                head = (record["region"], record["topic"], one["name"], "", origin)
                yield (*head, *after, *upto, cause.name.lower(), *_NO_BATCH, None, None)
    for origin, after, upto in record.get("given_up", ()):
        head = (record["region"], record["topic"], "", "", origin)
        yield (*head, *parse_position(after), *parse_position(upto), "lost", *_NO_BATCH, None, None)


def passed_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``passed``: local ranges that the cursor will not dispatch again."""
    for one in record["subscriptions"]:
        head = (record["region"], record["topic"], one["name"])
        mark_delete = parse_position(one["mark_delete"])
        if mark_delete > EARLIEST:
            yield (*head, *EARLIEST, *mark_delete)
        for after, upto in one.get("individually_deleted", ()):
            yield (*head, *parse_position(after), *parse_position(upto))


def compacted_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``compacted``: local ranges that the cursor may pass unacknowledged. The view being read lacks them, or has only
    acknowledged messages of a batch."""
    view = record.get("view", {})
    if "kept" not in view:
        return
    horizon = parse_position(view["horizon"])
    taken = []
    for one in record["ledgers"]:
        ledger = int(one["id"])
        if ledger <= horizon.ledger:
            count = int(one["entries"]) if ledger < horizon.ledger else horizon.entry + 1
            taken.append((ledger, BitMap(range(count)) - _bits(view["kept"], ledger)))
    for one in record["subscriptions"]:
        if "thinned" in one:
            for ledger, entries in taken:
                for first, last in _runs(entries | _bits(one["thinned"], ledger)):
                    yield (record["region"], record["topic"], one["name"], ledger, first - 1, ledger, last)


def range_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """``ranges``: the five tables above in one, each row with its table's name in front.

    From the ack log only what is not in ``firsthand``: one row per ack says the same at a hundred times the length."""
    for row in progress_rows(record):
        yield ("progress", *row)
    for row in _firsthand_rows(record):
        yield ("acks", *row)
    summed = {one["name"] for one in record["subscriptions"] if one.get("firsthand")}
    for one in record.get("ack_log", ()):
        if one["firsthand"] and one["subscription"] not in summed:
            for row in _logged(record, one):
                yield ("acks", *row)
    for row in dropped_rows(record):
        yield ("dropped", *row)
    for table, rows in (("passed", passed_rows), ("compacted", compacted_rows)):
        for row in rows(record):
            yield (table, *row[:3], None, None, *row[3:], None, *_NO_BATCH, None, None)


def metadata_rows(record: Mapping[str, Any], region: str) -> Iterator[Row]:
    """``metadata``, from the trailing line."""
    for one in record["metadata"]:
        yield (region, one["path"], *one["stamp"], one["digest"], *map(one.get, ("generation", "deleted", "shared")))


def entry_row(topic: str, region: str, ledger: int, entry: int, stored: bytes) -> Row:
    """One row of ``entries``.

    :raises EntryFormatError: these bytes are not a valid entry.
    """
    header = unpack(stored)
    if header.flags & NO_ORIGIN:
        origin: Row = (None, None, None)
    elif header.origin is None:
        origin = (region, ledger, entry)
    else:
        origin = (header.region, *header.origin)
    return (
        region,
        topic,
        ledger,
        entry,
        *origin,
        *header.prev,
        header.origin_checksum,
        len(stored),
        header.messages,
        header.publish_time_ms,
        header.stored_time_ms,
        header.key_hash,
        bool(header.flags & MARKER),
        header.replicate_to,
    )


def effective(progress: Progress, region: str) -> tuple[list[Interval], dict[Position, tuple[int, int]]]:
    """The currently acked entries of one origin: disjoint ranges in order, and partly acked batches as ``(size,
    bits)``."""
    layers = [(epoch, rules.get(region), time) for epoch, rules, time in reversed(progress.rewinds())]
    open_ranges: list[Interval] = [(EARLIEST, LATEST)]
    ranges: list[Interval] = []
    batches: dict[Position, tuple[int, int]] = {}
    start = progress.start(region)
    for epoch, rule, time in [*layers, (ZERO, (EARLIEST, LATEST), None)]:
        acks = progress.acks(epoch, region)
        ruled = open_ranges if time is not None else ([] if rule is None else _intersect(open_ranges, [rule]))
        begins_later = epoch == ZERO and start > EARLIEST
        if begins_later and ruled:
            ranges += _intersect([(EARLIEST, start)], ruled)
        if acks is not None and ruled:
            runs = list(acks.runs())
            ranges += runs if ruled == [(EARLIEST, LATEST)] else _intersect(runs, ruled)
            for position, partial in acks.partials():
                if begins_later and position <= start:
                    continue
                if any(after < position <= upto for after, upto in ruled):
                    size, bits = batches.get(position, (partial.size, 0))
                    batches[position] = (min(size, partial.size), bits | partial.acked)
        if rule is not None:
            open_ranges = _subtract(open_ranges, rule)
    return _joined(ranges) if layers or start > EARLIEST else ranges, batches


def _firsthand_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    for one in record["subscriptions"]:
        head = (record["region"], record["topic"], one["name"])
        yield from _acked(head, _progress(one.get("firsthand")), (None,), (None, True))


def _logged(record: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[Row]:
    head = (record["region"], record["topic"], one["subscription"])
    tail = (one["received_ms"], one["firsthand"])
    yield from _acked(head, _progress(one["progress"]), (one.get("cause"),), tail)


def _cursor(one: Mapping[str, Any]) -> Row:
    return (
        one["name"],
        one["replicated"],
        one["durable"],
        one["type"],
        *parse_position(one["mark_delete"]),
        *parse_position(one["read_position"]),
        one.get("backlog"),
        epoch_text(_progress(one.get("progress")).epoch),
    )


def _acked(head: Row, progress: Progress, cause: Row, tail: Row) -> Iterator[Row]:
    epoch = epoch_text(progress.epoch)
    for origin in sorted(progress.regions()):
        ranges, batches = effective(progress, origin)
        for after, upto in ranges:
            yield (*head, epoch, origin, *after, *upto, *cause, *_NO_BATCH, *tail)
        for position, (size, bits) in sorted(batches.items()):
            before = (position.ledger, position.entry - 1)
            acked = (bits & ((1 << size) - 1)).to_bytes((size + 7) // 8, "little")
            yield (*head, epoch, origin, *before, *position, *cause, size, acked, *tail)


def _progress(encoded: str | None) -> Progress:
    return Progress.decode(b64decode(encoded)) if encoded else Progress()


def _places(places: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"region": region, "ledger": place.ledger, "entry": place.entry}
        for region, place in sorted((region, parse_position(text)) for region, text in places.items())
    ]


def _bits(ledgers: Mapping[str, str], ledger: int) -> BitMap:
    encoded = ledgers.get(str(ledger))
    return BitMap() if encoded is None else BitMap.deserialize(b64decode(encoded))


def _runs(entries: BitMap) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as ``(first, last)``."""
    first = last = -1
    for number in entries:
        if number != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = number
        last = number
    if first >= 0:
        yield first, last


def _holes(holes: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    found = []
    for region, after, before in holes:
        one, other = parse_position(after), parse_position(before)
        bounds = {"after_ledger": one.ledger, "after_entry": one.entry}
        found.append({"region": region, **bounds, "before_ledger": other.ledger, "before_entry": other.entry})
    return found


def _intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Both sorted and disjoint; so is the result."""
    found = []
    one = two = 0
    while one < len(left) and two < len(right):
        after, upto = max(left[one][0], right[two][0]), min(left[one][1], right[two][1])
        if after < upto:
            found.append((after, upto))
        if left[one][1] < right[two][1]:
            one += 1
        else:
            two += 1
    return found


def _subtract(ranges: list[Interval], rule: Interval) -> list[Interval]:
    low, high = rule
    pieces = [piece for after, upto in ranges for piece in ((after, min(upto, low)), (max(after, high), upto))]
    return [(after, upto) for after, upto in pieces if after < upto]


def _joined(ranges: list[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for after, upto in sorted(ranges):
        if joined and after <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], upto))
        else:
            joined.append((after, upto))
    return joined


_TABLES: Final[dict[str, Callable[[Mapping[str, Any]], Iterator[Row]]]] = {
    "topics": topic_rows,
    "cursors": cursor_rows,
    "progress": progress_rows,
    "acks": ack_rows,
    "dropped": dropped_rows,
    "passed": passed_rows,
    "compacted": compacted_rows,
    "ranges": range_rows,
}
