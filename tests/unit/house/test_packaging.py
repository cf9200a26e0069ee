# SPDX-License-Identifier: Apache-2.0
"""Each distribution can be built without a network, and includes licence, notice and description."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DISTRIBUTIONS = ("broker", "operator", "verifier")


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and an sdist."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT / request.param, check=True, capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_and_sdist_hold_licence_and_notice(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    wanted = {name: (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}
    with zipfile.ZipFile(wheel) as archive:
        files = {Path(name).name: archive.read(name) for name in archive.namelist() if "/licenses/" in name}
    assert files == wanted
    with tarfile.open(sdist) as archive:
        for name, content in wanted.items():
            member = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
            assert member is not None
            assert member.read() == content
    assert metadata(wheel).get_all("License-File") == sorted(wanted)


def test_the_index_page_has_a_description(built: tuple[Path, Path]) -> None:
    said = metadata(built[0])
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Keywords"]
    assert any(one.startswith("Development Status") for one in said.get_all("Classifier", []))
    assert said.get_payload(), "its README"
