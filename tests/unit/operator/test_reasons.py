# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md explains every reason that the operator gives, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from meridian_operator.plan import outcome

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "operator/src/meridian_operator"
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
OTHER_WORDS = {"True", "False", "Unknown", "Spec", "Authorization", "Location"}
"""Words that look like a reason and are not: truth values, the name of a type variable, HTTP headers."""
CONDITIONS = {value for name, value in vars(outcome).items() if name.isupper() and isinstance(value, str)}


def words(folder: str) -> set[str]:
    """Everything in the sources that is spelt like a reason."""
    return {one for file in sorted((SOURCE / folder).glob("*.py")) for one in _words_of(ast.parse(file.read_text()))}


def _words_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WORD.fullmatch(node.value):
            yield node.value


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table after these words."""
    lines = PAGE.partition(heading)[2].splitlines()
    begun = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[begun + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


def test_every_reason_is_explained() -> None:
    of_conditions = [reason for reason, *_ in rows("## Conditions of objects")]
    of_events = [reason for reason, _ in rows("Events have these additional reasons")]
    explained = [*of_conditions, *of_events]
    assert len(set(explained)) == len(explained), "a reason has one row"
    given = words("plan") | words("handlers") | words("regions")
    in_objects = words("api")  # kinds, columns and values of fields
    assert given - in_objects - CONDITIONS - OTHER_WORDS <= set(explained), "a reason is not explained"
    assert set(explained) <= given, "no code gives this reason"


def test_rows_name_existing_conditions_and_say_what_to_do() -> None:
    named = set()
    for reason, conditions, meaning in rows("## Conditions of objects"):
        assert set(conditions.split(", ")) <= CONDITIONS, reason
        assert meaning.endswith("."), reason
        named |= set(conditions.split(", "))
    assert named == CONDITIONS
