# SPDX-License-Identifier: Apache-2.0
"""Which of several Pythons `scripts/setup` chooses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout.source_files import ROOT


def chosen(pythons: dict[str, str], directory: Path) -> str:
    """The name of the one chosen from these; each is described by Python options."""
    for name, options in pythons.items():
        wrapper = directory / name
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
    readlink = shutil.which("readlink")
    assert readlink is not None
    (directory / "readlink").symlink_to(readlink)
    script = (ROOT / "scripts/setup").read_text(encoding="utf-8")
    functions = script[script.index("python_is_new_enough()") : script.index("# Java's major version")]
    told = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", f"{functions}\nfind_python"],
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return Path(told.stdout.strip()).name


SLOW = "-X tracemalloc"


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3.12": SLOW, "python3.11": ""}, "python3.11"),
        ({"python3.12": "", "python3.11": SLOW}, "python3.12"),
        ({"python3": SLOW}, "python3"),
    ],
    ids=["a quicker one behind", "a quicker one in front", "the only one"],
)
def test_the_fastest_python_is_chosen(pythons: dict[str, str], taken: str, tmp_path: Path) -> None:
    assert chosen(pythons, tmp_path) == taken
