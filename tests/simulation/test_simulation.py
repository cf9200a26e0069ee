# SPDX-License-Identifier: Apache-2.0
"""Seeds of simulated regions keep every promise; a failing one replays and can be shortened."""

from __future__ import annotations

from pathlib import Path

import meridian_broker
import pytest
from meridian_broker.positions.position import Position
from simulation import brokers_stories, divided_stories
from simulation.facts import Violation
from simulation.generate import story_of
from simulation.planted import BUGS, hunt, plant, read
from simulation.running import run_story, shorten
from simulation.story import Story

SEEDS = 30
BROKERS_SEEDS = 20
DIVIDED_SEEDS = 12
"""CI runs these again with hundreds more (`make simulate`)."""
PACKAGE = Path(meridian_broker.__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_seeds_keep_every_promise() -> None:
    found = hunt(PACKAGE, SEEDS)
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_brokers_that_share_a_region_keep_every_promise() -> None:
    found = hunt(PACKAGE, BROKERS_SEEDS, "--world", "brokers")
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_regions_of_several_brokers_keep_every_promise() -> None:
    found = hunt(PACKAGE, DIVIDED_SEEDS, "--world", "divided")
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_seed_is_always_the_same_story_and_goes_the_same_way() -> None:
    assert story_of(7) == story_of(7) != story_of(8)
    assert run_story(story_of(7)) == run_story(story_of(7))
    assert run_story(brokers_stories.story_of(7)) == run_story(brokers_stories.story_of(7))
    assert run_story(divided_stories.story_of(7)) == run_story(divided_stories.story_of(7))


def test_a_receipt_is_true_only_for_what_its_ledger_held_when_it_was_deleted() -> None:
    story = Story()
    for line in ("ledgers of 2", "regions us", "produce us t x3", "tick 1000", "trim us", "tick 1000"):
        story.run(line)
    home, model = story.world.regions["us"], story.world.model
    stored = set(home.volume.disk.ledgers)
    (deleted,) = {one.ledger for one in model.receipts["us", "t"]} - stored
    for entry in (0, 1):
        model.stored(home, Position(deleted, entry))
    assert not model.violations
    for never in (Position(deleted, 2), Position(deleted + 1_000_000, 0)):
        model.stored(home, never)
        assert model.violations.pop().kind == "a receipt before it was durable", never


def test_a_failing_seed_is_made_short(tmp_path: Path) -> None:
    plant(read(BUGS / "claim-without-chain.txt"), tmp_path)
    found = hunt(tmp_path, 200)
    assert found.returncode == 1, found.stdout + found.stderr
    story = [line.strip() for line in found.stdout.splitlines() if line.startswith("    ")]
    assert any(line.startswith("regions") for line in story) and len(story) < 20, found.stdout
    assert run_story(story).violation is None, "the same story goes well without the bug"


def test_shortening_keeps_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_story(["regions us eu", "quiet"])

    def pretend(lines: list[str]) -> object:
        failed = "crash us" in lines and any(line.startswith("produce eu") for line in lines)
        violation = Violation("lost", "") if failed else None
        return type(outcome)(violation, 0.0, 2, 0)

    monkeypatch.setattr("simulation.running.run_story", pretend)
    lines = ["regions us eu", "tick 5", "produce eu t x9", "produce us t x2", "tick 700", "crash us", "quiet"]
    assert shorten(lines, "lost") == ["regions us eu", "produce eu t x1", "crash us"]
