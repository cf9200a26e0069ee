# SPDX-License-Identifier: Apache-2.0
"""Lines that stand in two places: each such pair has its reason in docs/architecture.md, and each reason a pair."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINES = 8
"""Fewer identical lines in a row are coincidence, or a call that several places make."""
ROOTS = ("broker/src", "operator/src", "verifier/src", "tests", "bench", "demo", "e2e")
LEFT_OUT = re.compile(r'^ *""".*?"""$|^ *(?:from [\w.]+ )?import (?:[^(\n]+$|\([^)]*\))', re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([\w/.]+\.py)`, `([\w/.]+\.py)` \| \S.*\|$", re.MULTILINE)


def code(file: Path) -> list[str]:
    """The lines that say something: no imports, docstrings, comments, nor lone punctuation."""
    text = LEFT_OUT.sub("", file.read_text(encoding="utf-8"))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if re.search(r"\w", line) and not line.startswith("#")]


def files() -> Iterator[Path]:
    for root in ROOTS:
        for file in sorted((ROOT / root).rglob("*.py")):
            if "_pb2" not in file.name and ".venv" not in file.parts:
                yield file


def test_each_repetition_has_a_reason() -> None:
    places: defaultdict[tuple[str, ...], set[Path]] = defaultdict(set)
    for file in files():
        lines = code(file)
        for first in range(len(lines) - LINES + 1):
            places[tuple(lines[first : first + LINES])].add(file)
    pairs = {frozenset(pair) for found in places.values() if len(found) > 1 for pair in combinations(found, 2)}
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    reasons = {frozenset((ROOT / one, ROOT / other)) for one, other in ROW.findall(page)}
    shown = [sorted(str(file.relative_to(ROOT)) for file in pair) for pair in pairs ^ reasons]
    assert not shown, "these are alike without a reason in docs/architecture.md, or no longer alike"
