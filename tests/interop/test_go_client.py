# SPDX-License-Identifier: Apache-2.0
"""The official Go client: the tests in ``go/``, with one broker and with replicated subscriptions in three regions.

They need Go and, the first time, the module proxy. ``go/go.sum`` pins what they are built from by checksum.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from region_control import RegionControl
from support.brokers.broker_process import BrokerProcess, RegionsProcess

GO_TESTS = Path(__file__).parent / "go"
SECONDS = 540


def go_or_why_not() -> tuple[str | None, str]:
    """The ``go`` command, or why it cannot be used."""
    command = shutil.which("go")
    if command is None:
        return None, "Go is not installed"
    wanted = re.search(r"^go (\d+)\.(\d+)", (GO_TESTS / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    said = subprocess.run([command, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"go(\d+)\.(\d+)", said)
    assert wanted is not None
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, wanted.groups())):
        return None, f"the client needs Go {wanted[1]}.{wanted[2]}, and this is {said.strip()}"
    return command, ""


def go_test(environment: dict[str, str], *options: str) -> None:
    """Runs some of the tests."""
    go, why_not = go_or_why_not()
    if go is None:
        pytest.skip(why_not)
    done = subprocess.run(
        [go, "test", "-mod=readonly", "-count=1", "-parallel=8", f"-timeout={SECONDS - 60}s", *options, "."],
        cwd=GO_TESTS,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"


@pytest.mark.timeout(SECONDS + 30)
def test_the_official_go_client(tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path / "broker") as broker:
        where = {"INTEROP_SERVICE_URL": broker.service_url, "INTEROP_ADMIN_URL": broker.admin_url}
        try:
            go_test(where, "-skip=^TestRegions")
        finally:
            print(broker.log()[-4000:])


@pytest.mark.timeout(SECONDS + 30)
def test_replicated_subscriptions_with_the_official_go_client(regions: RegionsProcess, control: RegionControl) -> None:
    where = (f"{name} {regions.service_url(name)} {regions.admin_url(name)}" for name in regions.regions)
    go_test({"INTEROP_REGIONS": " ".join(where), "INTEROP_CONTROL_URL": control.url}, "-run=^TestRegions")
