# SPDX-License-Identifier: Apache-2.0
"""The whole verification in Spark, over HTTP, from real encoder children: one sound topic and one with known faults.
Then live regions that keep their metadata equal: it finds nothing while they write, and names a path that one of them
lacks, with both stamps.

All in one file, because they share a Spark session: starting and warming up another takes 20 seconds of processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.positions.clock import Stamp
from meridian_verifier.align.facts import Place
from meridian_verifier.align.findings import METADATA, Reason
from meridian_verifier.align.verdicts import State, Verdict
from meridian_verifier.job import Request, verify_in
from meridian_verifier.report.page import page
from meridian_verifier.session import start_session, stop_session
from meridian_verifier.source.datasource import MeridianDataSource
from meridian_verifier.source.regions import PULSAR, Region
from pyspark.sql import SparkSession
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.etcd_server import EtcdServer
from support.brokers.regions_with_stores import started
from support.verifier.stand_in_pulsar import answering, ok
from support.verifier.verifier_regions import ServedRegion, encoded, serve, text
from support.verifier.verifier_worlds import SUBSCRIPTIONS, Acks, Simulation, whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # Spark starts, which takes half a minute of processor time

SOUND = "persistent://public/default/sound"
BROKEN = "persistent://public/default/broken"
EVENTS = "persistent://public/default/metadata-events"
SILENT = Region("nowhere", "http://127.0.0.1:9")
"""Nothing listens on the discard port."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session("local[2]", tmp_path_factory.mktemp("spark"))
    session.dataSource.register(MeridianDataSource)
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def broken() -> Simulation:
    """A world in which us-west lacks one ack that both others have."""
    simulation = Simulation(11, 200, base=50_000, trim=False)
    west, name = simulation.regions["us-west"], SUBSCRIPTIONS[0]
    entry = next(
        one
        for one in simulation.known()
        if simulation.regions["us-east"].earlier[name].get(one) == whole(one)
        and simulation.regions["eu-central"].earlier[name].get(one) == whole(one)
        and one not in west.dropped[name]
    )
    west.later[name].pop(entry)
    west.passed[name] -= {copy.place for copy in west.log if copy.entry is entry}
    return simulation


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory, broken: Simulation) -> Iterator[list[ServedRegion]]:
    simulations = {SOUND: Simulation(5, 300, trim=False), BROKEN: broken}
    with serve(tmp_path_factory.mktemp("regions"), simulations) as served:
        yield served


def request(regions: list[ServedRegion], *more: Region, topics: str | None = None) -> Request:
    named = [Region(one.region, f"http://127.0.0.1:{one.port}") for one in regions]
    return Request([*named, *more], topics, max_lag_ms=0)


def test_the_fault_is_found_and_nothing_else(spark: SparkSession, regions: list[ServedRegion], tmp_path: Path) -> None:
    verdict, _ = verify_in(spark, request(regions), lambda _: None)
    assert {(one.topic, one.reason, one.subscription, one.source, one.target) for one in verdict.findings} == {
        (BROKEN, Reason.MISSING_ACK, SUBSCRIPTIONS[0], source, "us-west") for source in ("us-east", "eu-central")
    }
    assert verdict.exit_code == 1
    wrong = [pair for pair in verdict.pairs if pair.state is not State.ALIGNED]
    assert {(pair.source, pair.target) for pair in wrong} == {("us-east", "us-west"), ("eu-central", "us-west")}
    assert len(verdict.flows) == 18
    assert {strip.subscription for strip in verdict.strips} == set(SUBSCRIPTIONS)
    html = page(verdict)
    assert "MissingAck" in html
    assert "us-west" in html


def test_faults_of_a_shadow_are_found_and_sound_shadows_pass(
    spark: SparkSession, regions: list[ServedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is sound; one lacks a ledger, and one has an entry more; one subscription skipped an entry, and one is beyond
    the end."""
    east = regions[0]
    log = Simulation(5, 300, trim=False).regions["us-east"].log
    acks = {copy.entry: whole(copy.entry) for copy in log[: len(log) // 2] if not copy.entry.marker}
    lost = next(copy for copy in log[:20] if not copy.entry.marker)

    def shadow(
        name: str,
        records: list[dict[str, Any]],
        acks: Acks,
        ledgers: int | None = None,
        more: int = 0,
        read: Place | None = None,
    ) -> dict[str, Any]:
        """``more``: entries that only the shadow has."""
        (source,) = [one for one in records if one["topic"] == SOUND]
        told = {"name": "sub", "replicated": False, "durable": True, "type": "Shared", "individually_deleted": []}
        place = text(read or log[len(log) // 2 - 1].place)
        told |= {"mark_delete": place, "read_position": place, "progress": encoded(acks), "firsthand": encoded(acks)}
        view = {"topic": name, "shadow_of": SOUND, "links": [], "subscriptions": [told]}
        kept = [dict(one) for one in source["ledgers"][:ledgers]]
        kept[-1]["entries"] += more
        return {**source, **view, "ledgers": kept}

    passing = {entry: bits for entry, bits in acks.items() if entry is not lost.entry}
    end = max(copy.place for copy in log)
    beyond = (end[0], end[1] + 2)
    everything = {copy.entry: whole(copy.entry) for copy in log if not copy.entry.marker}
    records = [
        [
            *both,
            shadow("v-good", both, acks),
            shadow("v-lost", both, passing),
            shadow("v-short", both, acks, -1),
            shadow("v-strange", both, acks, more=1),
            shadow("v-ahead", both, everything, read=beyond),
        ]
        for both in east.records
    ]
    monkeypatch.setattr(east, "records", records)
    said = request(regions)
    verdict, _ = verify_in(spark, said, lambda _: None)
    found = [one for one in verdict.findings if one.topic != BROKEN]
    last = records[1][0]["ledgers"][-1] if records[1][0]["topic"] == SOUND else records[1][1]["ledgers"][-1]
    assert {(one.topic, one.reason, one.subscription, one.shadow_of, one.source, one.entries) for one in found} == {
        ("v-lost", Reason.PASSED_UNACKED, "sub", SOUND, "us-east", 1),
        ("v-short", Reason.SHADOW_INCOMPLETE, "", SOUND, "us-east", last["entries"]),
        ("v-strange", Reason.SHADOW_STRANGE, "", SOUND, "us-east", 1),
        ("v-ahead", Reason.SHADOW_CURSOR_AHEAD, "sub", SOUND, "us-east", 0),
    }
    (ahead,) = [one for one in found if one.reason is Reason.SHADOW_CURSOR_AHEAD]
    assert ahead.ranges == ((end, beyond),)
    (passed,) = [one for one in found if one.reason is Reason.PASSED_UNACKED]
    assert (passed.origin, passed.ranges[0][1]) == (lost.entry.origin, lost.entry.place)
    states = {one.topic: one.state for one in verdict.subjects if not one.subscription}
    assert (states[SOUND], states["v-good"], states["v-short"]) == (State.ALIGNED, State.ALIGNED, State.MISALIGNED)


def test_what_may_lag_longer_is_compared_again_later(
    spark: SparkSession, regions: list[ServedRegion], broken: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At S2 us-west lacks an acknowledgement, at S3 it has it: the permitted lag of the subscription decides."""
    east, west, name = broken.regions["us-east"], broken.regions["us-west"], SUBSCRIPTIONS[0]
    for region in regions:
        first, second = region.records
        third = [dict(one) for one in second]
        if region.region == "us-west":
            acks = dict(west.later[name])
            acks |= {entry: whole(entry) for entry, bits in east.earlier[name].items() if bits == whole(entry)}
            for one in third:
                if one["topic"] == BROKEN:
                    told = [
                        {**sub, "progress": encoded(acks)} if sub["name"] == name else sub
                        for sub in one["subscriptions"]
                    ]
                    one["subscriptions"] = told
        monkeypatch.setattr(region, "records", [first, second, third])
    for lags, expected in (({(BROKEN, name): 300}, State.ALIGNED), ({}, State.MISALIGNED)):
        for region in regions:
            monkeypatch.setattr(region, "_asked", 0)
        said: list[str] = []
        patient = dataclasses.replace(request(regions, topics=BROKEN), max_lags=lags)
        verdict, _ = verify_in(spark, patient, said.append)
        assert verdict.state is expected
        assert any("comparing again 0.3 s after S1" in sentence for sentence in said) == bool(lags)
    for region in regions:
        monkeypatch.setattr(region, "_asked", 0)
    for_ever = dataclasses.replace(request(regions, topics=BROKEN), max_lags={(BROKEN, name): 3_600_000})
    verdict, _ = verify_in(spark, for_ever, lambda _: None)
    assert verdict.state is State.UNKNOWN
    assert Reason.LAGGING in {reason for one in verdict.subjects for reason in one.reasons}


def test_a_region_that_is_down_is_unknown_and_the_others_are_verified(
    spark: SparkSession, regions: list[ServedRegion]
) -> None:
    said: list[str] = []
    verdict, _ = verify_in(spark, request(regions, SILENT), said.append)
    assert verdict.exit_code == 1
    assert "nowhere" in verdict.world.unreachable
    assert any("could not ask: nowhere" in sentence for sentence in said)


def test_a_region_of_apache_pulsar_is_read_by_its_positions(spark: SparkSession, regions: list[ServedRegion]) -> None:
    """It reports that it owes everything, so the others disregard what it acknowledged in the made-up world."""
    east, *others = regions
    place = {"markDeletePosition": "-1:-1", "individuallyDeletedMessages": "[]"}
    inside = {"lastConfirmedEntry": "900000:0", "cursors": dict.fromkeys(SUBSCRIPTIONS, place)}
    stats = {"subscriptions": {name: {"isReplicated": True} for name in SUBSCRIPTIONS}, "replication": {}}
    with answering(lambda path: ok(inside if path.endswith("internalStats") else stats)) as (url, _):
        apache = Region(east.region, url, kind=PULSAR)
        verdict, _ = verify_in(spark, request(others, apache), lambda _: None)
    found = {(one.reason, one.source) for one in verdict.findings if one.topic == SOUND}
    assert found == {(Reason.AHEAD_OF_SOURCE, east.region)}
    assert verdict.exit_code == 1 and not verdict.losses
    between = [pair for pair in verdict.pairs if pair.topic == SOUND and east.region not in (pair.source, pair.target)]
    assert between and {pair.state for pair in between} == {State.ALIGNED}
    assert "Apache Pulsar" in page(verdict)


def test_a_truncated_export_is_unknown_and_nothing_in_it_counts_as_missing(
    spark: SparkSession, regions: list[ServedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = regions[2].records
    lost = {"id": 999_999, "entries": 3, "size": 0, "sealed": True}
    damaged = [{**one, "ledgers": [lost, *one["ledgers"]]} for one in second]
    monkeypatch.setattr(regions[2], "records", [first, damaged])
    said: list[str] = []
    only_sound = request(regions, topics=SOUND)
    verdict, _ = verify_in(spark, only_sound, said.append)
    assert set(verdict.world.unreachable) == {"eu-central"}
    assert any("not read to the end: eu-central: table entries ended early" in sentence for sentence in said)
    assert all("eu-central" not in (one.source, one.target) for one in verdict.findings)
    states = {(pair.source, pair.target): pair.state for pair in verdict.pairs if pair.topic == SOUND}
    assert states["us-east", "us-west"] is State.ALIGNED
    assert states["us-east", "eu-central"] is State.UNKNOWN


def test_the_data_source_prunes_by_region_and_reports_silent_ones(
    spark: SparkSession, regions: list[ServedRegion]
) -> None:
    named = ",".join(f"{one.region}=http://127.0.0.1:{one.port}" for one in regions)
    reader = spark.read.format("meridian").options(regions=f"{named},nowhere={SILENT.admin_url}")
    rows: list[Any] = reader.option("table", "cursors").load().where("region in ('us-east', 'nowhere')").collect()
    good = [row for row in rows if row.problem is None]
    assert {(row.region, row.subscription) for row in good} == {("us-east", name) for name in SUBSCRIPTIONS}
    assert [row.region for row in rows if row.problem is not None] == ["nowhere"]


# -- metadata of live regions


@pytest.fixture
def synced(etcd_server: EtcdServer, tmp_path: Path) -> Iterator[dict[str, BrokerProcess]]:
    """Real regions that keep their metadata equal."""
    url = f"etcd:{etcd_server.url}"
    with contextlib.ExitStack() as stack:
        brokers = started(tmp_path, {"eu": url, "us": url}, {"metadataSyncEventTopic": EVENTS}, stack)
        for one in brokers.values():
            wait_until(
                lambda one=one: one.http("GET", "/meridian/v1/metadata/status").json.get("synced"),
                "the regions to be in step",
            )
        yield brokers


def verified(spark: SparkSession, synced: dict[str, BrokerProcess]) -> Verdict:
    asked = [Region(name, one.admin_url) for name, one in synced.items()]
    return verify_in(spark, Request(asked, max_lag_ms=2000), lambda _: None)[0]


async def write_behind_the_brokers_back(url: str, region: str, path: str) -> Stamp:
    """With a timestamp in the future, so the other region defers it until then."""
    stamp = Stamp(time.time_ns() // 1_000_000 + 3_600_000, 0, region)
    store = await EtcdMetadataStore.connect(url, metadata_of(region))
    await store.put(path, encode({}, stamp))
    await store.close()
    return stamp


def test_a_path_missing_in_a_region_is_found_and_nothing_else_while_they_write(
    spark: SparkSession, synced: dict[str, BrokerProcess], etcd_server: EtcdServer
) -> None:
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            for name, one in synced.items():
                number += 1
                tenant = f"/admin/v2/tenants/t{number % 40}"
                made = {"adminRoles": [], "allowedClusters": [name]}
                one.http("PUT" if number % 3 else "DELETE", tenant, *([made] if number % 3 else []))
                one.http("POST", "/admin/v2/namespaces/public/default/messageTTL", 1000 + number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        verdict = verified(spark, synced)
    finally:
        is_over.set()
        writer.join()
    assert verdict.findings == ()
    subject = next(one for one in verdict.subjects if one.topic == METADATA)
    assert (subject.state, len(subject.pairs)) == (State.ALIGNED, 2)

    path = keys.tenant("planted")
    stamp = asyncio.run(write_behind_the_brokers_back(etcd_server.url, "us", path))
    verdict = verified(spark, synced)
    assert [(one.reason, one.source, one.target, one.path, one.stamps) for one in verdict.findings] == [
        (Reason.METADATA_MISSING, "us", "eu", path, (f"{stamp.time_ms}.0@us", "nothing"))
    ]
    assert (verdict.state, verdict.exit_code) == (State.MISALIGNED, 1)
    assert path in page(verdict)

    assert synced["us"].http("POST", "/meridian/v1/metadata/restamp", {"path": path}).status == 200
    wait_until(lambda: synced["eu"].http("GET", "/admin/v2/tenants/planted").status == 200, "eu to have the tenant")
    assert verified(spark, synced).findings == ()
