# SPDX-License-Identifier: Apache-2.0
"""docs/replicated-subscriptions.md, "Watching it": every reason and every figure that brokers show has a row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.admin.figures import lagging
from meridian_broker.admin.metrics import table
from meridian_broker.cli import status_report
from meridian_broker.replication.entries.replicator_status import StopReason
from meridian_broker.replication.progress.lag import Why

PAGE = (Path(__file__).parents[3] / "docs/replicated-subscriptions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)`[^|]*\|(.*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("reason", [*Why, *StopReason], ids=lambda one: str(one.value))
def test_every_reason_has_a_row_with_what_to_do(reason: Why | StopReason) -> None:
    (told,) = [row for name, row in ROWS if name == reason.value]
    meaning, what_to_do = told.split("|")
    assert len(meaning.strip()) > 10 and len(what_to_do.strip()) > 5


def test_no_row_is_about_a_removed_reason() -> None:
    known = {one.value for one in [*Why, *StopReason]}
    shown = {name for name, row in ROWS if row.count("|") == 1 and not name.startswith("meridian_")}
    assert shown == known


def test_every_reason_has_a_sentence() -> None:
    assert set(lagging.SENTENCES) == set(Why)


def test_every_metric_of_lag_is_explained() -> None:
    named = [name for name in table.GAUGES if "progress_lag" in name or "unreplicated" in name or "in_sync" in name]
    assert len(named) == 9
    assert [name for name in named if f"`{name}`" not in PAGE] == []


HEADERS = [status_report.HERE, status_report.PAIRS, status_report.PULSAR, status_report.STREAMS]


@pytest.mark.parametrize("header", HEADERS, ids=["regions", "pairs", "pulsar", "shares"])
def test_the_tables_of_the_command_are_those_of_the_page(header: tuple[str, ...]) -> None:
    assert " ".join(header).split() in [line.split() for line in PAGE.splitlines()]


def _seen(**more: Any) -> dict[str, Any]:
    figures = dict.fromkeys(("backlog", "holes", "consumers", "set_size", "set_bytes"), 0)
    return {"mode": "exact", "replicated": True, "mark_delete": "1:2", "peers": [], **figures, **more}


def test_the_streams_of_a_subscription_are_shown_with_what_they_wait_for() -> None:
    held = {"origin": "us", "dispatched_by": "us", "lease_ms_left": 5200, "owed": 4, "reason": ""}
    free = {"origin": "eu", "dispatched_by": "", "lease_ms_left": 0, "owed": 0, "reason": "nobody consumes here"}
    answer = {"regions": {"eu": _seen(shares=[free]), "us": {"partitions": {"a": _seen(shares=[held]), "b": _seen()}}}}
    shown = list(status_report.tables(answer, 0))[-1].splitlines()
    assert [line.split() for line in shown] == [
        " ".join(status_report.STREAMS).split(),
        ["eu", "eu", "nobody", "-", "0", "nobody", "consumes", "here"],
        ["us", "us", "us", "5.2", "s", "4", "-"],
    ]


def test_how_messages_of_a_pulsar_region_move_is_shown_and_is_not_a_problem() -> None:
    old = {"region": "apache", "moves": "snapshot", "detail": "apache sends no source positions"}
    new = {"region": "berlin", "moves": "exact", "detail": ""}
    answer = {"regions": {"us": {"partitions": {"a": _seen(pulsar=[old, new]), "b": _seen(pulsar=[old, new])}}}}
    shown = list(status_report.tables(answer, 0))[-1].splitlines()
    assert [line.split() for line in shown] == [
        " ".join(status_report.PULSAR).split(),
        ["us", "apache", "by", "snapshot", "only", "apache", "sends", "no", "source", "positions"],
        ["us", "berlin", "exactly", "-"],
    ]
    assert status_report.verdict(answer, 1000) == (0, [])


def test_a_scope_that_is_not_in_force_is_a_problem() -> None:
    answer = {"regions": {"eu": _seen(scope_reason="us is of an older version")}}
    code, (said,) = status_report.verdict(answer, 1000)
    assert code == 1
    assert said == "eu: dispatch scope origin is not in force: us is of an older version"
