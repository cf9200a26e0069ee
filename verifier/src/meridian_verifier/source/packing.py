# SPDX-License-Identifier: Apache-2.0
"""Rows of one topic and origin packed into one value, so that a million rows cross Spark as a few dozen.

The judge needs all rows of a (topic, origin) together and as columns. Spark would convert columns to rows, shuffle
and sort those, and convert them back to columns, at many times the cost of everything else. Packed, a batch becomes
one row per (topic, origin) in it, whose ``payload`` is the batch's part in Arrow's own format; Spark shuffles payloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from meridian_verifier.source.tables import PROBLEM, TABLES, TAKEN, combined

KEYS: Final = ("topic", "origin_region")
"""Columns that become columns of the packed row, and leave the payload."""

PACKED: Final = pa.schema(
    [
        ("region", pa.string()),
        ("topic", pa.string()),
        ("origin_region", pa.string()),
        ("table", pa.string()),
        TAKEN,
        ("rows", pa.int64()),
        ("payload", pa.binary()),
        PROBLEM,
    ]
)
"""Schema of packed rows. ``table`` is the requested table: for ``ranges`` the payload has more details."""


def payload_schema(table: str) -> pa.Schema:
    """The columns of a payload of this table. All tables of ranges share one, so that they can be read together."""
    schema = TABLES["entries"] if table == "entries" else combined(["progress", "ranges"])
    return pa.schema([field for field in schema if field.name not in (*KEYS, PROBLEM.name)])


def pack(batch: pa.RecordBatch, table: str, taken: int) -> pa.RecordBatch:
    """One row per (topic, origin) in the batch. ``batch`` has the keys and the payload's columns."""
    columns = [batch.column(name).dictionary_encode() for name in KEYS]
    code = np.zeros(batch.num_rows, dtype=np.int64)
    for column in columns:
        # Nulls (rows of ``passed`` have no origin) come last.
        indices = column.indices.fill_null(len(column.dictionary)).to_numpy()
        code = code * (len(column.dictionary) + 1) + indices
    schema = payload_schema(table)
    content = pa.record_batch([batch.column(field.name) for field in schema], schema=schema)
    order = np.argsort(code, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []
    firsts = [int(rows[0]) for rows in groups]
    parts = [content.take(rows) if len(groups) > 1 else content for rows in groups]
    return pa.record_batch(
        [
            batch.column("region").take(firsts),
            *(batch.column(name).take(firsts) for name in KEYS),
            pa.repeat(pa.scalar(table, pa.string()), len(groups)),
            pa.repeat(pa.scalar(taken, pa.int64()), len(groups)),
            pa.array([part.num_rows for part in parts], pa.int64()),
            pa.array([part.serialize().to_pybytes() for part in parts], pa.binary()),
            pa.nulls(len(groups), pa.string()),
        ],
        schema=PACKED,
    )


def unpack(payloads: Iterable[pa.Scalar], table: str) -> pa.Table:
    """The rows of many payloads of one table, or of tables that share their payloads' columns."""
    schema = payload_schema(table)
    return pa.Table.from_batches([pa.ipc.read_record_batch(one.as_buffer(), schema) for one in payloads], schema)
