# SPDX-License-Identifier: Apache-2.0
"""Bookies that cannot be started say why; a directory keeps its kinds of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from meridian_broker.server.bookie_process import BookieProcesses, BookiesFailed, missing
from meridian_broker.server.layout import Directory, UpFailed


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    made = tmp_path / "jars"
    made.mkdir()
    (made / "bookkeeper-server-4.17.3.jar").touch()
    return made


def install_java(monkeypatch: pytest.MonkeyPatch, directory: Path, version: str | None) -> None:
    """Only a Java of this version is on the PATH."""
    directory.mkdir(exist_ok=True)
    if version is not None:
        (directory / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (directory / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


async def test_bookies_that_cannot_be_started_say_what_to_do(
    tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BookiesFailed, match="scripts/bookkeeper"):
        await BookieProcesses.start(tmp_path, "http://127.0.0.1:1", 3, tmp_path)
    bin_directory = tmp_path / "bin"
    install_java(monkeypatch, bin_directory, None)
    assert "no Java" in str(missing(jars))
    for version in ("11.0.2", "1.8.0_392", "unknown"):
        install_java(monkeypatch, bin_directory, version)
        assert "too old" in str(missing(jars)) and version in str(missing(jars))
    for version in ("17", "17.0.15", "21-ea"):
        install_java(monkeypatch, bin_directory, version)
        assert missing(jars) is None


def test_a_directory_is_not_started_with_another_kind_of_store(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.require_same_stores("etcd", "bookkeeper")  # a new directory
    directory.write_regions([], {"metadata": "etcd", "storage": "bookkeeper"}, {})
    directory.require_same_stores("etcd", "bookkeeper")
    with pytest.raises(UpFailed, match="--storage bookkeeper"):
        directory.require_same_stores("etcd", "local")
    directory.write_regions([], {"metadata": "etcd"}, {})  # of a version that had no choice
    directory.require_same_stores("etcd", "local")
    with pytest.raises(UpFailed, match="--metadata etcd"):
        directory.require_same_stores("embedded", "local")
    directory.close()
