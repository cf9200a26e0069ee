# SPDX-License-Identifier: Apache-2.0
"""The export's encoder: one partition of one table as an Arrow IPC stream on standard output (``docs/export.md``).

It runs as a process of its own, started for one request, so that the broker never loads pyarrow (some 50 MiB) and an
export costs the broker no more than copying bytes. It holds one topic's line of the snapshot file and one batch of
rows; the pipe's fullness stops it while the reader is slow.

Exit codes: 0 the whole partition was written; 1 the snapshot or a ledger could not be read; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from meridian_broker.admin.export.plan import TABLES, TOPIC_TABLES, Planner, read_plan
from meridian_broker.admin.export.rows import Row, metadata_rows, rows_of
from meridian_broker.ledgers.entry import EntryFormatError
from meridian_broker.ledgers.store import LedgerError

if __name__ == "__main__":
    # pyarrow loads NumPy where it finds it: half of the start-up time of a child that has no use for it.
    sys.modules["numpy"] = None  # type: ignore[assignment]

try:
    import pyarrow as pa
except ImportError:
    sys.stderr.write("the export needs pyarrow: install meridian-broker[export]\n")
    raise SystemExit(2) from None

ROWS_PER_BATCH: Final = 65_536

_PLACES: Final = pa.list_(pa.struct([("region", pa.string()), ("ledger", pa.int64()), ("entry", pa.int64())]))
_BOUNDS: Final = [(name, pa.int64()) for name in ("after_ledger", "after_entry", "upto_ledger", "upto_entry")]
_SUBSCRIPTION: Final = [("region", pa.string()), ("topic", pa.string()), ("subscription", pa.string())]
_RANGES: Final = [
    *_SUBSCRIPTION,
    ("epoch", pa.string()),
    ("origin_region", pa.string()),
    *_BOUNDS,
    ("cause", pa.string()),
    ("batch_size", pa.int64()),
    ("acked_bits", pa.binary()),
    ("received_ms", pa.int64()),
    ("firsthand", pa.bool_()),
]
_LEDGER: Final = [("ledger", pa.int64()), ("entries", pa.int64()), ("size", pa.int64()), ("sealed", pa.bool_())]
_CURSOR: Final = [
    ("subscription", pa.string()),
    ("replicated", pa.bool_()),
    ("durable", pa.bool_()),
    ("type", pa.string()),
    ("mark_delete_ledger", pa.int64()),
    ("mark_delete_entry", pa.int64()),
    ("read_ledger", pa.int64()),
    ("read_entry", pa.int64()),
    ("backlog", pa.int64()),
    ("epoch", pa.string()),
]
_HOLE: Final = [
    ("region", pa.string()),
    *((name, pa.int64()) for name in ("after_ledger", "after_entry", "before_ledger", "before_entry")),
]
_LINK: Final = [
    ("remote", pa.string()),
    ("connected", pa.bool_()),
    ("backlog", pa.int64()),
    ("last_ack_ms", pa.int64()),
]

SCHEMAS: Final[dict[str, Any]] = {
    "topics": pa.schema(
        [
            ("region", pa.string()),
            ("topic", pa.string()),
            ("incarnation", pa.string()),
            ("ledgers", pa.list_(pa.struct(_LEDGER))),
            ("last_origins", _PLACES),
            ("joined", _PLACES),
            ("trimmed_ledger", pa.int64()),
            ("trimmed_entry", pa.int64()),
            ("links", pa.list_(pa.struct(_LINK))),
            ("cursors", pa.list_(pa.struct(_CURSOR))),
            ("trimmed_origins", _PLACES),
            ("holes", pa.list_(pa.struct(_HOLE))),
            ("compacted_ledger", pa.int64()),
            ("compacted_entry", pa.int64()),
            (
                "told",
                pa.list_(
                    pa.struct(
                        [
                            ("subscription", pa.string()),
                            ("region", pa.string()),
                            ("ledger", pa.int64()),
                            ("entry", pa.int64()),
                        ]
                    )
                ),
            ),
            ("skipped", pa.list_(pa.struct([("remote", pa.string()), *_BOUNDS]))),
            ("shadow_of", pa.string()),
            ("unchained", pa.list_(pa.string())),
        ]
    ),
    "cursors": pa.schema([("region", pa.string()), ("topic", pa.string()), *_CURSOR]),
    "progress": pa.schema(_RANGES),
    "acks": pa.schema(_RANGES),
    "dropped": pa.schema(_RANGES),
    "passed": pa.schema([*_SUBSCRIPTION, *_BOUNDS]),
    "compacted": pa.schema([*_SUBSCRIPTION, *_BOUNDS]),
    "ranges": pa.schema([("table", pa.string()), *_RANGES]),
    "entries": pa.schema(
        [
            ("region", pa.string()),
            ("topic", pa.string()),
            ("ledger", pa.int64()),
            ("entry", pa.int64()),
            ("origin_region", pa.string()),
            ("origin_ledger", pa.int64()),
            ("origin_entry", pa.int64()),
            ("prev_ledger", pa.int64()),
            ("prev_entry", pa.int64()),
            ("checksum", pa.int64()),
            ("size", pa.int64()),
            ("messages", pa.int64()),
            ("publish_ms", pa.int64()),
            ("stored_ms", pa.int64()),
            ("key_hash", pa.int64()),
            ("marker", pa.bool_()),
            ("replicate_to", pa.list_(pa.string())),
        ]
    ),
    "metadata": pa.schema(
        [
            ("region", pa.string()),
            ("path", pa.string()),
            ("stamp_ms", pa.int64()),
            ("stamp_counter", pa.int64()),
            ("stamp_region", pa.string()),
            ("digest", pa.string()),
            ("generation", pa.int64()),
            ("deleted", pa.bool_()),
            ("shared", pa.bool_()),
        ]
    ),
}


class UsageError(Exception):
    """The arguments name something that is not there."""


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.partition < 0 or options.after < 0:
            raise UsageError("--partition and --after count from 0")
        _export(options)
        sys.stdout.buffer.flush()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:
        # The reader is gone. Discard whatever the interpreter still flushes, without a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyError as error:
        sys.stderr.write(f"export of {options.table}: a line of {options.snapshot_file} lacks the field {error}\n")
        return 1
    except (LedgerError, EntryFormatError, OSError, ValueError) as error:
        sys.stderr.write(f"export of {options.table}, partition {options.partition}: {error!s}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m meridian_broker.admin.export.child", description=__doc__)
    parser.add_argument("--snapshot-file", type=Path, required=True)
    parser.add_argument("--ledgers", required=True, help="where the broker stores them, as its storage describes it")
    parser.add_argument("--table", choices=TABLES, required=True)
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument("--after", type=int, default=0, help="number of rows to skip")
    return parser


def _export(options: argparse.Namespace) -> None:
    plan = read_plan(options.snapshot_file)
    count = plan.partitions()[options.table]
    if options.partition >= count:
        raise UsageError(f"table {options.table} has {count} partitions: there is no number {options.partition}")
    schema = SCHEMAS[options.table]
    # Rows come by the ten thousand and form no cycles: searching for them would cost a fifth of the time.
    gc.disable()
    compressed = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(pa.PythonFile(sys.stdout.buffer, mode="w"), schema, options=compressed) as writer:
        for rows in _batches(options, plan):
            writer.write_batch(record_batch(schema, rows))


def _batches(options: argparse.Namespace, plan: Planner) -> Iterator[list[Row]]:
    if options.table == "entries":
        # Half of the imports are for this table alone.
        from meridian_broker.admin.export.entries import entry_batches

        stretches = plan.entries[options.partition]
        yield from entry_batches(options.ledgers, stretches, options.after, ROWS_PER_BATCH, plan.copies)
        return
    rows = islice(_rows(options, plan), options.after, None)
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        yield batch


def _rows(options: argparse.Namespace, plan: Planner) -> Iterator[Row]:
    if options.table in TOPIC_TABLES:
        make = rows_of(options.table)
        for record in _records(options.snapshot_file, plan.lines(options.partition)):
            yield from make(record)
        return
    region = ""
    with options.snapshot_file.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            region = record.get("region", region)
            if "metadata" in record:
                yield from metadata_rows(record, region)


def _records(snapshot: Path, wanted: range) -> Iterator[dict[str, Any]]:
    with snapshot.open("rb") as lines:
        for line in islice(lines, wanted.start, wanted.stop):
            yield json.loads(line)


def record_batch(schema: Any, rows: list[Row]) -> Any:
    """The rows in Arrow's form. An integer of more than 64 bits becomes the nearest one that fits, and is reported."""
    try:
        return _encoded(schema, rows)
    except (OverflowError, pa.ArrowInvalid) as error:
        sys.stderr.write(f"numbers beyond 64 bits are exported as the nearest that fit: {error}\n")
        return _encoded(schema, [tuple(map(_fitting, row)) for row in rows])


def _encoded(schema: Any, rows: Iterable[Row]) -> Any:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, type=field.type) for field, column in zip(schema, columns, strict=True)], schema=schema
    )


def _fitting(value: Any) -> Any:
    """The nearest value that fits the column: one nonsensical row must not hide all rows after it."""
    if isinstance(value, int):
        return min(max(value, -(1 << 63)), (1 << 63) - 1)
    if isinstance(value, dict):
        return {key: _fitting(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fitting(one) for one in value]
    return value


if __name__ == "__main__":
    raise SystemExit(main())
