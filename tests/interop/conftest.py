# SPDX-License-Identifier: Apache-2.0
"""Three regions that the programs of all languages use, one after the other; each leaves all regions running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from region_control import RegionControl
from support.brokers.broker_process import RegionsProcess

REGIONS = ("us-east", "us-west", "eu-central")


@pytest.fixture(scope="session")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("interop") / "data") as up:
        yield up


@pytest.fixture(scope="session")
def control(regions: RegionsProcess) -> Iterator[RegionControl]:
    with RegionControl(regions) as answering:
        yield answering
