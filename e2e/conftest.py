# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster, with nothing of ours in it when the tests begin.

Which cluster: see ``e2e/cluster``. Set ``E2E_KEEP=1`` to look around after a failure. A run ended by a time limit
(SIGTERM) reports what it did until then, as after Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from clusters import ROOT, TOOK, Cluster, empty
from earlier import Earlier, checked_out
from imaging import Images

signal.signal(signal.SIGTERM, signal.default_int_handler)
NO_CLUSTER = 2
MEASURED = pytest.StashKey[list[str]]()
PATIENT = "broker: {config: {barrierTimeoutMillis: 20000}}\n"
"""At a switch, regions wait for each other however slow the cluster is: by default they go on alone after a quarter of
a second, and messages are redelivered."""
SLOWEST = 40
"""How many commands and waits a run shows at its end."""


def pytest_sessionstart() -> None:
    """Without a cluster there is nothing to test, which is not success."""
    told = subprocess.run([ROOT / "e2e/cluster", "provider"], capture_output=True, text=True)
    if told.returncode:
        print(told.stderr, file=sys.stderr, end="")
        pytest.exit(told.stderr.strip(), returncode=NO_CLUSTER)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    was_up = subprocess.run([ROOT / "e2e/cluster", "running"]).returncode == 0
    subprocess.run([ROOT / "e2e/cluster", "up"], check=True, stdout=subprocess.DEVNULL, timeout=900)
    exported = subprocess.run(
        ["bash", "-c", f'eval "$({ROOT}/e2e/cluster env)"; env -0'], check=True, capture_output=True, text=True
    )
    environment = dict(pair.split("=", 1) for pair in exported.stdout.split("\0") if "=" in pair)
    directory = tmp_path_factory.mktemp("checkout")
    for name in (".venv", "e2e", "helm", "images", "crds", "broker", "operator", "verifier", "scripts"):
        (directory / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "examples", directory / "examples")
    with (directory / "examples/kubernetes/without-registry.yaml").open("a", encoding="utf-8") as values:
        values.write(PATIENT)
    for name in ("Makefile", "requirements.lock", ".dockerignore", "LICENSE", "NOTICE"):
        (directory / name).symlink_to(ROOT / name)
    found = Cluster(environment, directory)
    empty(found)
    yield found
    if os.environ.get("E2E_KEEP"):
        return
    if was_up:
        empty(found)
    else:
        subprocess.run([ROOT / "e2e/cluster", "down"], check=True, timeout=300)


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> Iterator[Images]:
    """The images built and loaded so far."""
    with Images() as made:
        yield made


@pytest.fixture(scope="session")
def earlier(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Earlier | None:
    """An earlier version's checkout; None: this clone has no earlier version."""
    return checked_out(cluster, tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a sentence with a figure, which the run shows at its end."""
    return pytestconfig.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What took longest and what was measured, one sentence per line."""
    for seconds, what in sorted(TOOK, reverse=True)[:SLOWEST]:
        terminalreporter.write_line(f"{seconds:6.1f} s  {' '.join(what.split())[:100]}")
    for line in config.stash.get(MEASURED, []):
        terminalreporter.write_line(f"measured: {line}")
