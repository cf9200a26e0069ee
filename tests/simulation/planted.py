# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: tests that the simulator finds bugs.

A bug is a file in ``bugs/``: a description in comments, and text replacements. They are applied to a temporary copy of
the package, never to the package itself. If a text is not found exactly once, the code has changed, and the bug must be
rewritten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import meridian_broker

PACKAGE: Final = Path(meridian_broker.__file__).parent
BUGS: Final = Path(__file__).parent / "bugs"
_TESTS: Final = Path(__file__).resolve().parent.parent
SEEDS: Final = 1000
_REPLACEMENT: Final = re.compile(r"^file: (\S+)\n<<<<<<<\n(.*?)\n=======\n(.*?)\n>>>>>>>$", re.DOTALL | re.MULTILINE)


class BugDoesNotApply(Exception):
    """The code it was written for has changed."""


@dataclass(frozen=True)
class Replacement:
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    name: str
    about: str
    replacements: tuple[Replacement, ...]


def read(path: Path) -> Bug:
    text = path.read_text(encoding="utf-8")
    about = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    return Bug(path.stem, about, tuple(Replacement(*found) for found in _REPLACEMENT.findall(text)))


def all_bugs() -> list[Bug]:
    return [read(path) for path in sorted(BUGS.glob("*.txt"))]


def with_bug(bug: Bug) -> dict[str, str]:
    """The modules that the bug changes, by their path in the package, with the bug.

    :raises BugDoesNotApply: a text is not found exactly once.
    """
    if not bug.replacements:
        raise BugDoesNotApply(f"{bug.name} replaces nothing: is its file written as the others are?")
    changed: dict[str, str] = {}
    for one in bug.replacements:
        text = changed.get(one.path) or (PACKAGE / one.path).read_text(encoding="utf-8")
        if text.count(one.old) != 1:
            raise BugDoesNotApply(f"{bug.name}: {one.path} has {text.count(one.old)} times:\n{one.old}")
        changed[one.path] = text.replace(one.old, one.new)
    return changed


def plant(bug: Bug, folder: Path) -> None:
    """Copy the package into ``folder``, with the bug. What is compiled comes along, but not of the modules that change.

    :raises BugDoesNotApply: see ``with_bug``.
    """
    changed = with_bug(bug)
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*"))  # which others are about to rename
    for path, text in changed.items():
        module = copy / path
        module.write_text(text, encoding="utf-8")
        for compiled in module.parent.glob(f"__pycache__/{module.stem}.*"):
            compiled.unlink()


def hunt(folder: Path, seeds: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run seeds against the copy in ``folder``; exit code 1: a broken promise was found."""
    return _against(folder, "-m", "simulation", "--seeds", str(seeds), *options)


def tell_stories(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run every story against the copy in ``folder``; exit code 1: one of them has a different outcome."""
    return _against(folder, str(_TESTS / "support/worlds/script_runner.py"))


def run_tests(folder: Path, file: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests against the copy in ``folder``; exit code 1: one of them failed."""
    return _against(folder, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(_TESTS / file))


def _against(folder: Path, *program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(folder), str(_TESTS))),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EXAMPLES": "500",
    }
    return subprocess.run([sys.executable, *program], env=environment, capture_output=True, text=True, check=False)
