# SPDX-License-Identifier: Apache-2.0
"""The verdict's ConfigMaps: no row is lost for lack of space, and runs are never mixed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from meridian_operator.plan.verdicts import Verdicts
from meridian_verifier.cluster import Cluster, ClusterError
from meridian_verifier.report import configmap
from meridian_verifier.report.configmap import (
    GENERATIONS,
    LABEL,
    LARGEST,
    SHARDS_MAX,
    Run,
    TooManyRows,
    manifests,
    shard_name,
)
from meridian_verifier.report.publishing import NotPublished, publish
from support.kubernetes.api_server import ApiServer, serving

FIRST = Run("orders", "run-1", datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1))
SECOND = replace(FIRST, run="run-2", now=datetime(2026, 1, 2, tzinfo=UTC))
TOLD = {"verdict": "misaligned", "summary": "…", "regions": ["us-east", "us-west"], "unreachable": {}}
CHART = Path(__file__).parents[3] / "helm" / "meridian-verifier"
DETAIL = "MissingAck: 3 entries of us-east in us-east -> us-west: (889130598400001:17, 889130598400001:20]; " * 6


def listed(count: int, misaligned: int, detail: str = DETAIL) -> list[dict[str, Any]]:
    """That many subscriptions of 500 topics; every n-th is misaligned."""
    return [
        {
            "topic": f"persistent://airline/operations/departures-and-arrivals-{number % 500:03}",
            "subscription": f"billing-of-department-{number:06}",
            "verdict": "misaligned" if misaligned and number % misaligned == 0 else "aligned",
            "detail": detail if misaligned and number % misaligned == 0 else "",
        }
        for number in range(count)
    ]


def read(written: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Every subject's verdict, as the operator reads it a day after the second run."""
    verdicts = Verdicts({one["metadata"]["labels"][LABEL] for one in written})
    subjects: dict[tuple[str, str], None] = {}
    for one in written:
        verdicts.put(one)
        for row in json.loads(one["data"]["verdict.json"])["subscriptions"]:
            subjects[row["topic"], row["subscription"]] = None
    told = {subject: verdicts.on(*subject, "2026-01-03T00:00:00Z") for subject in subjects}
    return {subject: row for subject, row in told.items() if row is not None}


@pytest.mark.parametrize(("count", "misaligned"), [(3, 0), (3, 1), (3, 7), (10_000, 7), (20_000, 0), (100_000, 1)])
def test_every_row_arrives_and_no_config_map_is_too_large(count: int, misaligned: int) -> None:
    rows = listed(count, misaligned)
    written = manifests(FIRST, TOLD, rows, "a")
    assert all(len(one["data"]["verdict.json"].encode()) <= LARGEST for one in written)
    assert len({one["metadata"]["name"] for one in written}) == len(written)
    assert len(written) <= SHARDS_MAX + 1
    told = read(written)
    assert {subject: row.verdict for subject, row in told.items()} == {
        (row["topic"], row["subscription"]): row["verdict"] for row in rows
    }
    whole = {row.detail for row in told.values() if row.verdict == "misaligned"} <= {DETAIL}
    assert whole or (count, misaligned) == (100_000, 1), "details are cut only there"


def test_details_give_way_before_rows_do() -> None:
    told = read(manifests(FIRST, TOLD, listed(60_000, 1, "x" * 3000), "a"))
    assert len(told) == 60_000
    assert {len(row.detail) for row in told.values()} == {200}


def test_a_verdict_that_does_not_fit_is_refused_and_never_cut() -> None:
    long = [{**row, "topic": row["topic"] + "x" * 500_000} for row in listed(SHARDS_MAX + 1, 1)]
    with pytest.raises(TooManyRows, match="verify fewer topics"):
        manifests(FIRST, TOLD, long, "a")


def test_names_and_reasons_in_any_script_are_counted_in_bytes() -> None:
    rows = [{**row, "topic": row["topic"] + "✈" * 300} for row in listed(2000, 1)]
    written = manifests(FIRST, TOLD, rows, "a")
    assert len(written) > 2
    assert all(len(one["data"]["verdict.json"].encode()) <= LARGEST for one in written)
    assert len(read(written)) == 2000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ApiServer, Cluster]]:
    """And documents of a tenth of their size, so that a tenth of the rows fill as many; those above have all."""
    monkeypatch.setattr(configmap, "LARGEST", LARGEST // 10)
    with serving(tmp_path, monkeypatch) as (api, account):
        yield api, Cluster(account)


def verdicts(api: ApiServer) -> dict[str, int]:
    """The number of subjects per verdict, as the operator sees the cluster now."""
    counts: dict[str, int] = {}
    for row in read(list(api.config_maps().values())).values():
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return counts


def test_a_small_verdict_is_one_config_map(server: tuple[ApiServer, Cluster]) -> None:
    api, cluster = server
    assert publish(cluster, FIRST, TOLD, listed(5, 0)) == []
    assert list(api.config_maps()) == ["meridian-verdict-orders"]
    assert verdicts(api) == {"aligned": 5}


def test_a_run_deletes_the_shards_of_the_previous_one(server: tuple[ApiServer, Cluster]) -> None:
    api, cluster = server
    publish(cluster, FIRST, TOLD, listed(2000, 0))
    first = set(api.config_maps())
    assert len(first) > 3
    publish(cluster, SECOND, TOLD, listed(600, 1, ""))
    assert verdicts(api) == {"misaligned": 600}, "nothing of the previous run"
    assert len(api.config_maps()) < len(first)
    assert not first & set(api.config_maps()) - {"meridian-verdict-orders"}
    publish(cluster, FIRST, TOLD, listed(3, 0))
    assert list(api.config_maps()) == ["meridian-verdict-orders"]


@pytest.mark.parametrize("broken_at", [1, 2, 3, 4])
def test_an_interrupted_run_changes_no_verdict(server: tuple[ApiServer, Cluster], broken_at: int) -> None:
    """Until its head is written the previous run counts, complete; the next run deletes what it wrote."""
    api, cluster = server
    publish(cluster, FIRST, TOLD, listed(2000, 0))
    left = broken_at

    def refuses(method: str, _: str) -> bool:
        nonlocal left
        left -= method == "PATCH"
        return method == "PATCH" and left <= 0

    api.refuses = refuses
    with pytest.raises(NotPublished, match="HTTP 403"):
        publish(cluster, SECOND, TOLD, listed(1500, 1, ""))
    assert verdicts(api) == {"aligned": 2000}
    api.refuses = lambda _method, _path: False
    publish(cluster, SECOND, TOLD, listed(5, 1))
    assert verdicts(api) == {"misaligned": 5}
    assert list(api.config_maps()) == ["meridian-verdict-orders"]


def test_old_shards_that_cannot_be_deleted_are_reported_and_ignored(server: tuple[ApiServer, Cluster]) -> None:
    api, cluster = server
    publish(cluster, FIRST, TOLD, listed(2000, 0))
    api.refuses = lambda method, _: method == "DELETE"
    (left,) = publish(cluster, SECOND, TOLD, listed(5, 1))
    assert "DELETE" in left
    assert verdicts(api) == {"misaligned": 5}


def test_only_objects_named_in_the_role_are_accessed(server: tuple[ApiServer, Cluster]) -> None:
    api, cluster = server
    for count in (2000, 1000, 5):
        publish(cluster, FIRST, TOLD, listed(count, 0))
    allowed = {"meridian-verdict-orders"}
    allowed |= {shard_name("orders", one, number) for one in GENERATIONS for number in range(1, SHARDS_MAX + 1)}
    assert {path.rpartition("/")[2] for _, path in api.requests} <= allowed
    template = (CHART / "templates" / "verifier.yaml").read_text()
    assert f"untilStep 1 {SHARDS_MAX + 1} 1" in template
    assert "list " + " ".join(f'"{one}"' for one in GENERATIONS) in template
    assert "meridian-verdict-{{ $.Values.name }}.{{ $generation }}.{{ $number }}" in template


def test_outside_of_a_pod_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="only in a pod"):
        Cluster(tmp_path)


def test_a_document_is_readable_for_people_too() -> None:
    (head,) = manifests(FIRST, TOLD, listed(2, 0), "a")
    document = json.loads(head["data"]["verdict.json"])
    assert (document["time"], document["expires"]) == ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
    assert document["summary"] == "…"
