# SPDX-License-Identifier: Apache-2.0
"""The official Java client and its admin client: ``java/Interop.java`` with one broker, ``java/Regions.java`` with
replicated subscriptions in three regions.

They need Java 17 or newer with its compiler, Maven and, the first time, Maven Central.
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

JAVA_TESTS = Path(__file__).parent / "java"
FETCH_SECONDS = 300
SECONDS = 480


def why_not() -> str:
    """Why they cannot run; empty if they can."""
    for command in ("java", "javac", "mvn"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', said)
    return "" if found and int(found[1]) >= 17 else f"Java 17 is needed, and this is {said.splitlines()[0]}"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The client, and the compiled tests."""
    if reason := why_not():
        pytest.skip(reason)
    built = tmp_path_factory.mktemp("java")
    jars = built / "jars"
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA_TESTS / "pom.xml"), "dependency:build-classpath"]
    _run([*fetch, f"-Dmdep.outputFile={jars}"], FETCH_SECONDS)
    path = jars.read_text(encoding="utf-8").strip()
    sources = sorted(str(source) for source in JAVA_TESTS.glob("*.java"))
    _run(["javac", "-d", str(built), "-cp", path, *sources], SECONDS)
    return f"{built}{os.pathsep}{path}"


def _run(command: list[str], seconds: float) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-8000:]
    print(done.stdout)


@pytest.mark.timeout(FETCH_SECONDS + 2 * SECONDS + 30)
def test_the_official_java_client(class_path: str, tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path / "broker") as broker:
        try:
            _run(["java", "-Xmx512m", "-cp", class_path, "Interop", broker.service_url, broker.admin_url], SECONDS)
        finally:
            print(broker.log()[-4000:])


@pytest.mark.timeout(FETCH_SECONDS + 2 * SECONDS + 30)
def test_replicated_subscriptions_with_the_official_java_client(
    class_path: str, regions: RegionsProcess, control: RegionControl
) -> None:
    where = [part for name in regions.regions for part in (name, regions.service_url(name), regions.admin_url(name))]
    _run(["java", "-Xmx512m", "-cp", class_path, "Regions", control.url, *where], SECONDS)
