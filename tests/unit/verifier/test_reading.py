# SPDX-License-Identifier: Apache-2.0
"""The verifier's reading side without Spark: regions, options, packing, broken streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from meridian_verifier.align.verdicts import judge
from meridian_verifier.command import verify
from meridian_verifier.job import Timing
from meridian_verifier.report.summary import summary
from meridian_verifier.source import client as client_module
from meridian_verifier.source.client import RegionClient, RegionUnreachable
from meridian_verifier.source.datasource import Wanted, parse_tables
from meridian_verifier.source.packing import pack, payload_schema, unpack
from meridian_verifier.source.regions import Region, RegionsError, parse_regions
from meridian_verifier.source.tables import TABLES, conform
from support.verifier.verifier_worlds import REGIONS, TOPIC, Simulation

SCHEMA = pa.schema([("region", pa.string()), ("topic", pa.string()), ("subscription", pa.string())])


def batch(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([["r"] * count, ["t"] * count, [str(first + at) for at in range(count)]], schema=SCHEMA)


def stream(batches: list[pa.RecordBatch], *, end: bool = True) -> bytes:
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA)
    for one in batches:
        writer.write_batch(one)
    if end:
        writer.close()
    data: bytes = sink.getvalue().to_pybytes()
    return data


@contextmanager
def answering(answers: list[tuple[int, bytes]], asked: list[str]) -> Iterator[RegionClient]:
    """A region that gives these answers, one per request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield RegionClient(Region("us-east", f"http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rows(client: RegionClient) -> list[str]:
    return [row["subscription"] for one in client.rows("s", "cursors", 0) for row in one.to_pylist()]


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_SECONDS", 0.0)


def test_a_broken_stream_is_resumed_after_the_rows_received() -> None:
    asked: list[str] = []
    answers = [(200, stream([batch(0, 3)], end=False)), (200, stream([batch(3, 2)]))]
    with answering(answers, asked) as client:
        assert rows(client) == ["0", "1", "2", "3", "4"]
    assert [path.partition("after=")[2] for path in asked] == ["0", "3"]


def test_a_stream_without_its_end_mark_is_not_taken_for_complete() -> None:
    cut = (200, stream([batch(0, 1)], end=False))
    with answering([cut, cut, cut], []) as client, pytest.raises(RegionUnreachable, match="ended early, after 3 rows"):
        rows(client)


def test_a_snapshot_that_is_gone_is_not_requested_again() -> None:
    asked: list[str] = []
    with answering([(404, b"")], asked) as client, pytest.raises(RegionUnreachable, match="HTTP 404"):
        rows(client)
    assert len(asked) == 1


def test_another_format_is_refused_with_an_explanation() -> None:
    told = json.dumps({"format": 2, "snapshot": "s", "taken_ms": 0, "partitions": {}}).encode()
    with answering([(200, told)], []) as client, pytest.raises(RegionUnreachable, match="export format 2"):
        client.take()


def test_a_region_that_is_down_says_so() -> None:
    with pytest.raises(RegionUnreachable, match=r"nowhere: no snapshot from http://127\.0\.0\.1:9"):
        RegionClient(Region("nowhere", "http://127.0.0.1:9")).take()


def test_any_broker_of_a_region_is_asked() -> None:
    asked: list[str] = []
    with answering([(200, stream([batch(0, 1)])), (200, stream([batch(0, 1)])), (404, b"")], asked) as client:
        alive = client.region.admin_url.removeprefix("http://")
        several = RegionClient(Region("us-east", f"http://127.0.0.1:9,{alive}"))
        assert rows(several) == rows(several) == ["0"]
        with pytest.raises(RegionUnreachable, match="HTTP 404"):  # it answers: no other broker is asked
            rows(several)
    assert len(asked) == 3
    with pytest.raises(RegionUnreachable, match="no snapshot from"):
        RegionClient(Region("nowhere", "http://127.0.0.1:9,127.0.0.1:10")).take()


def test_a_region_of_several_brokers(tmp_path: Path) -> None:
    named = [Region("us-east", "http://127.0.0.1:8080,127.0.0.1:8081"), Region("us-west", "https://west:8443")]
    assert parse_regions("us-east=http://127.0.0.1:8080/, 127.0.0.1:8081/,us-west=https://west:8443") == named
    assert parse_regions(",".join(f"{one.name}={one.admin_url}" for one in named)) == named
    assert named[0].admin_urls == ["http://127.0.0.1:8080", "http://127.0.0.1:8081"]
    brokers = [{"broker_id": str(port), "admin_url": f"http://127.0.0.1:{port}"} for port in (8080, 8081)]
    brokers.append({"broker_id": "tls", "admin_url": "https://127.0.0.1:8443"})
    file = tmp_path / "regions.json"
    listed = [
        {"name": "us-east", **brokers[0], "brokers": brokers},
        {"name": "us-west", "admin_url": "https://west:8443"},
    ]
    file.write_text(json.dumps({"regions": listed}))
    assert parse_regions(str(file)) == named


def test_regions_by_hand_and_from_a_file(tmp_path: Path) -> None:
    named = [Region("us-east", "http://127.0.0.1:8080"), Region("us-west", "https://west:8443")]
    assert parse_regions("us-east=http://127.0.0.1:8080/, us-west=https://west:8443") == named
    file = tmp_path / "regions.json"
    listed = [{"name": one.name, "admin_url": one.admin_url, "service_url": "pulsar://x"} for one in named]
    file.write_text(json.dumps({"regions": listed}))
    assert parse_regions(str(file)) == named


@pytest.mark.parametrize(
    "text", ["a=ftp://x", "a=http://x,a=http://y", "=http://x", "/no/such/file", "a=http://", "a=http://x,,y=,"]
)
def test_invalid_regions(text: str) -> None:
    with pytest.raises(RegionsError):
        parse_regions(text)


def test_tables_to_read() -> None:
    assert parse_tables("progress@1, ranges@2") == [Wanted("progress", 1), Wanted("ranges", 2)]
    with pytest.raises(ValueError, match="only topics, cursors"):
        parse_tables("nothing")


def test_missing_columns_are_null_and_unknown_ones_ignored() -> None:
    sent = pa.record_batch([["r"], ["t"], ["s"], [1]], names=["region", "topic", "subscription", "new"])
    (row,) = conform(sent, TABLES["passed"]).to_pylist()
    assert row["subscription"] == "s"
    assert row["upto_entry"] is None


def test_packing_loses_nothing() -> None:
    simulation = Simulation(4)
    for table, full in (("entries", simulation.entries()), ("ranges", simulation.ranges())):
        (whole,) = full.combine_chunks().to_batches()
        packed = pack(whole, table, 2)
        assert packed.num_rows == len({(row["topic"], row["origin_region"]) for row in whole.to_pylist()})
        for origin in REGIONS:
            mine = pa.Table.from_batches([packed]).filter(pa.compute.equal(packed["origin_region"], origin))
            assert mine["topic"].to_pylist() == [TOPIC]
            expected = full.filter(pa.compute.equal(full["origin_region"], origin))
            columns = payload_schema(table).names
            assert unpack(mine["payload"], table).select(columns) == expected.select(columns)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(verify, arguments)


def test_without_regions_the_command_ends_as_unknown() -> None:
    assert run().exit_code == 2
    assert "give either --regions-file or --regions" in run().output


def test_without_java_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("--regions", "a=http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "openjdk-17-jre-headless" in result.output


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("--regions", "a=http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "is version 11" in result.output


def test_the_summary_is_json() -> None:
    simulation = Simulation(4)
    findings, flows = simulation.examined()
    told = summary(judge(simulation.world(), findings, flows, []), Timing(1.0, 2.0, 3.0), "r.html")
    assert json.loads(json.dumps(told))["aligned"] is True
    assert told["seconds"] == {"session": 1.0, "snapshots": 2.0, "examination": 3.0}
