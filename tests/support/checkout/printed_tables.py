# SPDX-License-Identifier: Apache-2.0
"""Reads the tables that docstrings print, so that tests can compare them with what the code does."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Action = TypeVar("Action", bound=Enum)


def rows(text: str | None) -> list[list[str]]:
    """The cells of the table in a docstring; its lines of ``=`` mark where columns begin."""
    lines = (text or "").splitlines()
    rulers = [at for at, line in enumerate(lines) if line.startswith("===")]
    begins = [at for at, sign in enumerate(lines[rulers[0]]) if sign == "=" and lines[rulers[0]][at - 1 : at] != "="]
    ends = [*begins[1:], None]
    return [
        [line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
        for line in lines[rulers[0] + 1 : rulers[2]]
        if not line.startswith("===")
    ]


def transitions(
    text: str | None, state: type[State], event: type[Event], action: type[Action]
) -> dict[tuple[State, Event], tuple[State, Action]]:
    """The transitions in a docstring's table: a column per state, a row per event, cells ``state: action``.

    :raises AssertionError: an event has no row.
    """
    (_, *states), *events = rows(text)
    assert {what for what, *_ in events} == {one.value for one in event}
    return {
        (state(before), event(what)): (state(cell.partition(": ")[0]), action(cell.partition(": ")[2]))
        for what, *cells in events
        for before, cell in zip(states, cells, strict=True)
        if cell
    }
