# SPDX-License-Identifier: Apache-2.0
"""The tables of the export contract (``docs/export.md``, format 1) as this side reads them.

Columns a broker sends beyond these are ignored; columns it does not send are null.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

FORMAT: Final = 1

_PLACE: Final = pa.list_(pa.struct([("region", pa.string()), ("ledger", pa.int64()), ("entry", pa.int64())]))
_LEDGERS: Final = pa.list_(
    pa.struct([("ledger", pa.int64()), ("entries", pa.int64()), ("size", pa.int64()), ("sealed", pa.bool_())])
)
_LINKS: Final = pa.list_(
    pa.struct(
        [("remote", pa.string()), ("connected", pa.bool_()), ("backlog", pa.int64()), ("last_ack_ms", pa.int64())]
    )
)
_HOLES: Final = pa.list_(
    pa.struct(
        [
            ("region", pa.string()),
            *((name, pa.int64()) for name in ("after_ledger", "after_entry", "before_ledger", "before_entry")),
        ]
    )
)
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
_BOUNDS: Final = [
    ("after_ledger", pa.int64()),
    ("after_entry", pa.int64()),
    ("upto_ledger", pa.int64()),
    ("upto_entry", pa.int64()),
]
_RANGES: Final = pa.schema(
    [
        ("region", pa.string()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("epoch", pa.string()),
        ("origin_region", pa.string()),
        *_BOUNDS,
        ("cause", pa.string()),
        ("batch_size", pa.int64()),
        ("acked_bits", pa.binary()),
        ("received_ms", pa.int64()),
        ("firsthand", pa.bool_()),
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "topics": pa.schema(
        [
            ("region", pa.string()),
            ("topic", pa.string()),
            ("incarnation", pa.string()),
            ("ledgers", _LEDGERS),
            ("last_origins", _PLACE),
            ("joined", _PLACE),
            ("trimmed_ledger", pa.int64()),
            ("trimmed_entry", pa.int64()),
            ("links", _LINKS),
            ("cursors", pa.list_(pa.struct(_CURSOR))),
            ("trimmed_origins", _PLACE),
            ("holes", _HOLES),
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
    "progress": _RANGES,
    "acks": _RANGES,
    "dropped": _RANGES,
    "passed": pa.schema([("region", pa.string()), ("topic", pa.string()), ("subscription", pa.string()), *_BOUNDS]),
    "compacted": pa.schema([("region", pa.string()), ("topic", pa.string()), ("subscription", pa.string()), *_BOUNDS]),
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

PROBLEM: Final = pa.field("problem", pa.string())
"""Added to every table by the data source: null in rows; set in the one row that says why a region sent no more."""

TAKEN: Final = pa.field("taken", pa.int64())
"""Added when several tables are read as one: which of the region's snapshots the row is from, counted from 1."""

TABLE: Final = pa.field("table", pa.string())
"""Added with ``taken``: which table the row is from."""


def combined(names: list[str]) -> pa.Schema:
    """The schema that fits rows of all these tables: ``taken``, ``table``, the widest table's columns, ``problem``.

    :raises ValueError: the tables have no such schema in common.
    """
    widest = max((_plain(name) for name in names), key=len)
    for name in names:
        strange = [field.name for field in _plain(name) if widest.get_field_index(field.name) < 0]
        if strange:
            raise ValueError(f"table {name} cannot be read together with {', '.join(names)}: column {strange[0]}")
    return pa.schema([TAKEN, TABLE, *widest, PROBLEM])


def _plain(name: str) -> pa.Schema:
    at = TABLES[name].get_field_index(TABLE.name)
    return TABLES[name].remove(at) if at >= 0 else TABLES[name]


def conform(batch: pa.RecordBatch, schema: pa.Schema, **constants: object) -> pa.RecordBatch:
    """The batch with exactly the columns of ``schema``: by name, absent ones null, ``constants`` filled in."""
    columns = []
    for field in schema:
        if field.name in constants:
            columns.append(pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows))
        elif batch.schema.get_field_index(field.name) >= 0:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.record_batch(columns, schema=schema)
