# SPDX-License-Identifier: Apache-2.0
"""The verifier's Spark job on live regions that keep their metadata equal: it finds nothing while they write, and
names a path that one of them lacks, with both stamps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.positions.clock import Stamp
from meridian_verifier.align.findings import METADATA, Reason
from meridian_verifier.align.verdicts import State, Verdict
from meridian_verifier.job import Request, verify_in
from meridian_verifier.report.page import page
from meridian_verifier.session import start_session, stop_session
from meridian_verifier.source.regions import Region
from pyspark.sql import SparkSession
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.etcd_server import EtcdServer
from support.brokers.regions_with_stores import started

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/metadata-events"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    stop_session(session)


@pytest.fixture
def regions(etcd_server: EtcdServer, tmp_path: Path) -> Iterator[dict[str, BrokerProcess]]:
    url = f"etcd:{etcd_server.url}"
    with contextlib.ExitStack() as stack:
        brokers = started(tmp_path, {"eu": url, "us": url}, {"metadataSyncEventTopic": TOPIC}, stack)
        for one in brokers.values():
            wait_until(lambda one=one: one.http("GET", "/meridian/v1/metadata/status").json.get("synced"), "step")
        yield brokers


def verified(spark: SparkSession, regions: dict[str, BrokerProcess]) -> Verdict:
    asked = [Region(name, one.admin_url) for name, one in regions.items()]
    return verify_in(spark, Request(asked, max_lag_ms=2000), lambda _: None)[0]


async def write_behind_the_brokers_back(url: str, region: str, path: str) -> Stamp:
    """With a timestamp in the future, so the other region defers it until then."""
    stamp = Stamp(time.time_ns() // 1_000_000 + 3_600_000, 0, region)
    store = await EtcdMetadataStore.connect(url, metadata_of(region))
    await store.put(path, encode({}, stamp))
    await store.close()
    return stamp


def test_a_path_missing_in_a_region_is_found_and_nothing_else_while_they_write(
    spark: SparkSession, regions: dict[str, BrokerProcess], etcd_server: EtcdServer
) -> None:
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            for name, one in regions.items():
                number += 1
                tenant = f"/admin/v2/tenants/t{number % 40}"
                made = {"adminRoles": [], "allowedClusters": [name]}
                one.http("PUT" if number % 3 else "DELETE", tenant, *([made] if number % 3 else []))
                one.http("POST", "/admin/v2/namespaces/public/default/messageTTL", 1000 + number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        verdict = verified(spark, regions)
    finally:
        is_over.set()
        writer.join()
    assert verdict.findings == ()
    subject = next(one for one in verdict.subjects if one.topic == METADATA)
    assert (subject.state, len(subject.pairs)) == (State.ALIGNED, 2)

    path = keys.tenant("planted")
    stamp = asyncio.run(write_behind_the_brokers_back(etcd_server.url, "us", path))
    verdict = verified(spark, regions)
    assert [(one.reason, one.source, one.target, one.path, one.stamps) for one in verdict.findings] == [
        (Reason.METADATA_MISSING, "us", "eu", path, (f"{stamp.time_ms}.0@us", "nothing"))
    ]
    assert (verdict.state, verdict.exit_code) == (State.MISALIGNED, 1)
    assert path in page(verdict)

    assert regions["us"].http("POST", "/meridian/v1/metadata/restamp", {"path": path}).status == 200
    wait_until(lambda: regions["eu"].http("GET", "/admin/v2/tenants/planted").status == 200, "the tenant in eu")
    assert verified(spark, regions).findings == ()
