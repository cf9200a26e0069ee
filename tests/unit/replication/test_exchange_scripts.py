# SPDX-License-Identifier: Apache-2.0
"""The stories in ``scripts/`` run as written."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation.story import StoryError
from support.worlds.script_runner import SCRIPTS, replay

pytestmark = pytest.mark.slow
REWRITE = "PYTHONPATH=tests python tests/support/worlds/script_runner.py --rewrite-scripts"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert replay(text) == text, f"changed on purpose? {REWRITE}"


def test_stories_exist() -> None:
    assert len(list(SCRIPTS.glob("R*.txt"))) >= 5


def test_a_wrong_expectation_is_detected_and_rewritten() -> None:
    right = replay("exchange us eu\nproduce us t x1\nexpect messages\n")
    assert "> us/1:0\n" in right
    wrong = right.replace("> us/1:0\n", "> us/1:7\n")
    assert replay(wrong) == right != wrong


@pytest.mark.parametrize(
    "text",
    ["produce us t x1", "exchange us eu\nfrobnicate", "exchange us eu\nack us t sub us/1:0", "regions us\nfrobnicate"],
)
def test_a_wrong_command_is_named(text: str) -> None:
    with pytest.raises(StoryError, match=text.splitlines()[-1] if "\n" in text else "begin with"):
        replay(text)
