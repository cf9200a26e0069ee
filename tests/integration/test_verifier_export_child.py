# SPDX-License-Identifier: Apache-2.0
"""The encoder child as the broker starts it: a real log directory, a snapshot file, Arrow on standard output."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from meridian_broker.admin.export.child import SCHEMAS
from meridian_broker.admin.export.plan import TABLES
from meridian_verifier.source import tables
from support.verifier.verifier_regions import record, write_log, write_snapshot
from support.verifier.verifier_worlds import TOPIC, Simulation

REGION = "us-west"


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(21, 200, trim=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, simulation: Simulation) -> Path:
    place = tmp_path_factory.mktemp("export")
    region = simulation.regions[REGION]
    asyncio.run(write_log(place / "log", REGION, region.log))
    write_snapshot(place / "snapshot", [record(TOPIC, region, earlier=False)])
    return place


def described(directory: Path) -> str:
    """The location of the ledgers, as a broker describes it."""
    return json.dumps({"directory": str(directory / "log")})


def child(directory: Path, *arguments: str, snapshot: str = "snapshot") -> subprocess.CompletedProcess[bytes]:
    files = (
        "--snapshot-file",
        str(directory / snapshot),
        "--ledgers",
        json.dumps({"directory": str(directory / "log")}),
    )
    command = [sys.executable, "-m", "meridian_broker.admin.export.child", *files, *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def read(directory: Path, table: str, *arguments: str, snapshot: str = "snapshot") -> list[dict[str, Any]]:
    done = child(directory, "--table", table, *arguments, snapshot=snapshot)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    rows: list[dict[str, Any]] = pa.ipc.open_stream(done.stdout).read_all().to_pylist()
    return rows


def test_both_sides_have_the_same_tables() -> None:
    assert set(TABLES) == set(SCHEMAS) == set(tables.TABLES)
    for table, schema in SCHEMAS.items():
        assert schema == tables.TABLES[table], table


def test_entries_come_out_as_they_were_stored(directory: Path, simulation: Simulation) -> None:
    def shape(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            tuple(value) if isinstance(value, list) else value for name, value in row.items() if name not in ("size",)
        )

    expected = {shape(row) for row in simulation.entries().to_pylist() if row["region"] == REGION}
    rows = read(directory, "entries")
    assert len(rows) == len(expected) > 50
    assert {shape(row) for row in rows} == expected


@pytest.mark.parametrize("table", ["entries", "ranges", "passed"])
def test_a_reader_goes_on_after_the_rows_it_has(directory: Path, table: str) -> None:
    rows = read(directory, table)
    for after in (1, len(rows) // 2, len(rows) - 1, len(rows), len(rows) + 5):
        assert read(directory, table, "--after", str(after)) == rows[after:]


def test_entries_not_confirmed_in_the_snapshot_are_not_exported(directory: Path, simulation: Simulation) -> None:
    cut = record(TOPIC, simulation.regions[REGION], earlier=False)
    cut["ledgers"] = [{**cut["ledgers"][0], "entries": 2}]
    write_snapshot(directory / "cut", [cut])
    rows = read(directory, "entries", snapshot="cut")
    assert [(row["ledger"], row["entry"]) for row in rows] == [(cut["ledgers"][0]["id"], at) for at in (0, 1)]


def test_progress_contains_every_ack(directory: Path, simulation: Simulation) -> None:
    region = simulation.regions[REGION]
    rows = read(directory, "progress")
    for name, acks in region.later.items():
        for entry in simulation.known():
            mine = [row for row in rows if (row["subscription"], row["origin_region"]) == (name, entry.origin)]
            whole = any(
                (row["after_ledger"], row["after_entry"]) < entry.place <= (row["upto_ledger"], row["upto_entry"])
                for row in mine
                if row["batch_size"] is None
            )
            assert whole == (acks.get(entry, 0) == (1 << entry.messages) - 1)


def test_a_missing_ledger_cuts_the_stream_short(directory: Path, simulation: Simulation) -> None:
    lost = record(TOPIC, simulation.regions[REGION], earlier=False)
    lost["ledgers"].append({"id": 999_999, "entries": 3, "size": 0, "sealed": True})
    write_snapshot(directory / "lost", [lost])
    done = child(directory, "--table", "entries", snapshot="lost")
    assert done.returncode == 1
    assert b"999999" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--table", "nothing"), 2),
        (("--table", "entries", "--partition", "7"), 2),
        (("--table", "topics", "--after", "-1"), 2),
    ],
)
def test_wrong_arguments(directory: Path, arguments: tuple[str, ...], code: int) -> None:
    done = child(directory, *arguments)
    assert done.returncode == code
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr


def test_an_invalid_snapshot(directory: Path) -> None:
    (directory / "broken").write_text("{}\nnot json\n")
    done = child(directory, "--table", "topics", snapshot="broken")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


def test_a_reader_that_disconnects_ends_it_quietly(directory: Path) -> None:
    files = (
        "--snapshot-file",
        str(directory / "snapshot"),
        "--ledgers",
        json.dumps({"directory": str(directory / "log")}),
    )
    command = [sys.executable, "-m", "meridian_broker.admin.export.child", *files, "--table", "entries"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert said == b""
