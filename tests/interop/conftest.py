# SPDX-License-Identifier: Apache-2.0
"""Three regions that the programs of all languages use in turn; each leaves all of them running. And an Apache Pulsar
to which a Meridian broker was added as docs/with-pulsar.md says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from region_control import RegionControl
from support.brokers.broker_process import BrokerProcess, RegionsProcess
from support.brokers.pulsar_process import PulsarProcess, pulsar_missing
from support.brokers.two_kinds import NAMESPACE

PAGE = Path(__file__).parents[2] / "docs" / "with-pulsar.md"
REGIONS = ("us-east", "us-west", "eu-central")


@pytest.fixture(scope="session")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("interop") / "data") as up:
        yield up


@pytest.fixture(scope="session")
def control(regions: RegionsProcess) -> Iterator[RegionControl]:
    with RegionControl(regions) as answering:
        yield answering


@pytest.fixture(scope="package")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarProcess]:
    if reason := pulsar_missing():
        pytest.skip(reason)
    with PulsarProcess("apache", tmp_path_factory.mktemp("apache") / "data") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def meridian(apache: PulsarProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker added to the Pulsar as that page says."""
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in commands.splitlines() if line]) <= 10
    with BrokerProcess("meridian", tmp_path_factory.mktemp("meridian") / "data") as broker:
        assert apache.http("PUT", "/admin/v2/tenants/shop", {"allowedClusters": ["apache"]}).status == 204
        assert apache.http("PUT", f"/admin/v2/namespaces/{NAMESPACE}", {}).status == 204
        places = {
            "PULSAR": apache.admin_url,
            "PULSAR_BROKERS": apache.service_url,
            "MERIDIAN": broker.admin_url,
            "MERIDIAN_BROKERS": broker.service_url,
        }
        done = subprocess.run(
            ["bash", "-euc", commands],
            env=os.environ | places,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        try:
            yield broker
        finally:
            print(broker.log()[-6000:])
