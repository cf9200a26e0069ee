# SPDX-License-Identifier: Apache-2.0
"""The table of situations of regions names stories and tests that exist, and has no empty cell."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ALONE = "the story alone"


def rows() -> list[list[str]]:
    page = (ROOT / "docs/replicated-subscriptions.md").read_text(encoding="utf-8")
    table = page[page.index("| situation | rules | story | real brokers |") :]
    lines = [line for line in table.splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_situation_has_its_rule_its_story_and_its_test() -> None:
    found = rows()
    assert len(found) >= 15
    for situation, rules, stories, tests in found:
        assert re.fullmatch(r"R\d+(, R\d+)*", rules), situation
        for story in re.findall(r"`([^`]+)`", stories):
            assert (ROOT / f"tests/unit/scripts/{story}.txt").exists(), f"{situation}: no story {story}"
        assert "`" in stories or stories == "the three above", situation
        assert "::" in tests or tests == ALONE, situation
        for module, name in re.findall(r"`([^`]+\.py)::([^`]+)`", tests):
            places = [ROOT / "tests" / room / module for room in ("scenarios", "integration")]
            sources = [place.read_text(encoding="utf-8") for place in places if place.exists()]
            assert any(f"def {name}(" in source for source in sources), f"{situation}: {module} has no {name}"
