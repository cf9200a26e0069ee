# SPDX-License-Identifier: Apache-2.0
"""Lines repeated in two places, in two files or in one: each such pair has its reason in docs/architecture.md, and
each reason a pair."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOTS = {"broker/src": 6, "operator/src": 6, "verifier/src": 6, "tests": 6, "bench": 8, "demo": 8, "e2e": 8}
"""How many identical lines in a row count. Fewer are coincidence, or a call made in several places. Each measurement
and each cluster walk-through is a separate script, and these have similar argument parsing and endings."""
LEFT_OUT = re.compile(
    r'''
    ^[ ]*""".*?"""$                                                               # a docstring
    | ^[ ]*(?:from[ ][\w.]+[ ])?import[ ](?:[^(\n]+$|\([^)]*\))                   # an import
    | ^[ ]*(?:async[ ])?def[ ]\w+\(\n(?:[^()]|\([^()]*\))*\)(?:[ ]->[ ][^\n]*)?:$  # a signature of several lines
    ''',
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
"""A signature is repeated in the port and in each implementation: mypy compares them."""
ROW = re.compile(r"^\| `([\w/.]+\.py)`(?:, `([\w/.]+\.py)`| twice) \| \S.*\|$", re.MULTILINE)


def code(file: Path) -> list[str]:
    """The significant lines: no imports, docstrings, comments, signatures or lone punctuation."""
    text = LEFT_OUT.sub("", file.read_text(encoding="utf-8"))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if re.search(r"\w", line) and not line.startswith("#")]


def files(root: str) -> Iterator[Path]:
    for file in sorted((ROOT / root).rglob("*.py")):
        if "_pb2" not in file.name and ".venv" not in file.parts:
            yield file


def repeated(files: Iterable[Path], count: int) -> set[frozenset[Path]]:
    """The pairs of files that share that many lines in a row; a single file: it has them twice."""
    places: defaultdict[tuple[str, ...], dict[Path, int]] = defaultdict(dict)
    found = set()
    for file in files:
        lines = code(file)
        for first in range(len(lines) - count + 1):
            before = places[tuple(lines[first : first + count])]
            if first - before.setdefault(file, first) >= count:
                found.add(frozenset([file]))
    return found | {frozenset(pair) for some in places.values() for pair in combinations(some, 2)}


def test_finds_repetition(tmp_path: Path) -> None:
    six = [f"call({number})" for number in range(6)]
    texts = {"a": [*six, "x = 1"], "b": ["y = 2", *six], "c": [*six[:5], "z = 3", *six[1:]]}
    texts["d"] = ["first()", *texts["c"], *six]
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines))
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert repeated([a, b, c], 6) == {frozenset([a, b])}
    assert repeated([d], 5) == {frozenset([d])}
    assert repeated([c], 6) == set()


def test_each_repetition_has_a_reason() -> None:
    few = [root for root, count in ROOTS.items() if count == min(ROOTS.values())]
    pairs = repeated([file for root in few for file in files(root)], min(ROOTS.values()))
    pairs |= repeated([file for root in ROOTS for file in files(root)], max(ROOTS.values()))
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    reasons = {frozenset(ROOT / file for file in row if file) for row in ROW.findall(page)}
    shown = [sorted(str(file.relative_to(ROOT)) for file in pair) for pair in pairs ^ reasons]
    assert not shown, "these repeat lines without a reason in docs/architecture.md, or no longer repeat any"
