# SPDX-License-Identifier: Apache-2.0
"""Runs stories, and shortens failing ones."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from simulation.facts import Violation
from simulation.story import Story


@dataclass(frozen=True)
class Outcome:
    """The result of a story."""

    violation: Violation | None
    seconds: float
    """Simulated time."""
    regions: int
    messages: int
    """Delivered messages."""


@contextmanager
def quiet_brokers() -> Iterator[None]:
    """In a world of faults brokers log little else: do not format or write it here."""
    brokers = logging.getLogger("meridian_broker")
    level = brokers.level
    brokers.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        brokers.setLevel(level)


def run_story(lines: list[str]) -> Outcome:
    """Run it until its end or the first broken promise.

    Garbage is collected between stories: within one, Python would end abandoned coroutines at a time that depends on
    earlier stories.
    """
    story = Story()
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with quiet_brokers():
            for line in lines:
                story.run(line)
                if story.is_begun and story.world.model.violations:
                    break
    finally:
        if is_collecting:
            gc.enable()
    world = story.world
    violation = world.model.violations[0] if world.model.violations else None
    return Outcome(violation, world.loop.now_us / 1e6, len(world.names), world.model.delivered)


def shorten(lines: list[str], kind: str, tries: int = 600) -> list[str]:
    """The shortest story found that fails in the same way: fewer lines, then smaller ones."""
    left = tries

    def fails(candidate: list[str]) -> bool:
        nonlocal left
        left -= 1
        try:
            violation = run_story(candidate).violation
        except Exception:
            return False
        return violation is not None and violation.kind == kind

    lines = _fewer(lines, fails, lambda: left > 0)
    lines = _smaller(lines, fails, lambda: left > 0)
    return _fewer(lines, fails, lambda: left > -tries // 2)


def _fewer(lines: list[str], fails: Callable[[list[str]], bool], may: Callable[[], bool]) -> list[str]:
    size = max(1, len(lines) // 2)
    while may():
        at, shorter = 0, False
        while at < len(lines) and may():
            rest = lines[:at] + lines[at + size :]
            if any(line.startswith("regions") for line in rest) and fails(rest):
                lines, shorter = rest, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return lines


def _smaller(lines: list[str], fails: Callable[[list[str]], bool], may: Callable[[], bool]) -> list[str]:
    """Line by line: fewer messages, shorter waits, fewer regions."""
    for at in range(len(lines)):
        for other in _simpler(lines[at]):
            if not may():
                return lines
            candidate = [*lines[:at], other, *lines[at + 1 :]]
            if fails(candidate):
                lines = candidate
                break
    return lines


def _simpler(line: str) -> list[str]:
    words = line.split()
    if words[0] == "regions" and len(words) > 3:
        return [" ".join(words[:-1])]
    if words[0] == "tick":
        ms = int(words[1])
        return [f"tick {other}" for other in (1, 10, 100, 1000) if other < ms]
    found = []
    for number, word in enumerate(words):
        if word[0] == "x" and word[1:].isdigit() and int(word[1:]) > 1:
            found += [" ".join([*words[:number], f"x{n}", *words[number + 1 :]]) for n in (1, 2) if n < int(word[1:])]
    if "batch" in words:
        found.insert(0, " ".join(words[: words.index("batch")]))
    return found
