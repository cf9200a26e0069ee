# SPDX-License-Identifier: Apache-2.0
"""The official Java client and its admin client against one broker: what ``java/Interop.java`` says.

It needs a Java of version 17 or newer with its compiler, Maven and, the first time, Maven Central.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from broker_process import BrokerProcess

JAVA_TESTS = Path(__file__).parent / "java"
FETCH_SECONDS = 300
SECONDS = 240


def why_not() -> str:
    """Why it cannot be run; empty when it can."""
    for command in ("java", "javac", "mvn"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', said)
    return "" if found and int(found[1]) >= 17 else f"Java 17 is needed, and this is {said.splitlines()[0]}"


@pytest.mark.timeout(FETCH_SECONDS + SECONDS + 30)
def test_the_official_java_client(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    class_path = tmp_path / "class-path"
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA_TESTS / "pom.xml"), "dependency:build-classpath"]
    fetched = subprocess.run(
        [*fetch, f"-Dmdep.outputFile={class_path}"], capture_output=True, text=True, check=False, timeout=FETCH_SECONDS
    )
    assert fetched.returncode == 0, fetched.stdout[-4000:]
    with BrokerProcess("one", tmp_path / "broker") as broker:
        jars = class_path.read_text(encoding="utf-8").strip()
        program = str(JAVA_TESTS / "Interop.java")
        done = subprocess.run(
            ["java", "-Xmx512m", "-cp", jars, program, broker.service_url, broker.admin_url],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{done.stdout[-8000:]}\n{broker.log_file.read_text()[-4000:]}"
