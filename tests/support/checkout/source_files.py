# SPDX-License-Identifier: Apache-2.0
"""The files of this checkout, for the house rules' tests."""

from __future__ import annotations

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


@functools.cache
def files() -> list[Path]:
    """Files that are tracked or not ignored, relative to the root of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(Path(name) for name in set(listed.stdout.split("\0")) if name and (ROOT / name).is_file())


def generated(path: Path) -> bool:
    return path.name.endswith(("_pb2.py", "_pb2.pyi"))


def python_files(*prefixes: str) -> list[Path]:
    chosen = [path for path in files() if path.suffix == ".py" and not generated(path)]
    return [path for path in chosen if not prefixes or str(path).startswith(prefixes)]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))
