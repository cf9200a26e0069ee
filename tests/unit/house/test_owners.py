# SPDX-License-Identifier: Apache-2.0
"""Objects that many modules hold are changed only through their own methods, whose names say what happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCES: Final = Path(__file__).parents[3] / "broker" / "src" / "meridian_broker"
HELD: Final = {"admission", "topic", "context", "log", "progress_log", "lost_records", "registry", "gateway"}
"""Names under which the broker's modules hold a topic, a topic's parts and the process's parts."""
BOUND: Final = {"on_damage", "on_failure", "on_closed", "wake", "look_for_room"}
"""Callbacks, set by whoever is to be called."""
THEIRS: Final = {"engines", "gateway", "replication"}
"""Rooms that use one of these names for something else: an engine's log, the contexts of TLS and of the exchange."""


def _assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for one in ast.walk(target):
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                    yield one


def foreign(source: str) -> list[str]:
    """Assignments from outside to an attribute of such an object."""
    found = []
    for target in _assigned(ast.parse(source)):
        owner = target.value
        name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if name.lstrip("_") in HELD and target.attr not in BOUND:
            found.append(f"line {target.lineno}: {ast.unparse(target)}")
    return found


@pytest.mark.parametrize(
    "line", ["topic.a = 1", "self._topic.a = 1", "one.topic.log.a += 1", "x, topic.a = 1, 2", "self.gateway.a: int = 1"]
)
def test_detects_foreign_assignments(line: str) -> None:
    assert len(foreign(line)) == 1


@pytest.mark.parametrize("line", ["self.a = 1", "topic = 1", "topic.a()", "topic.log.on_damage = f", "a = topic.a"])
def test_allows_other_assignments(line: str) -> None:
    assert foreign(line) == []


def test_attributes_are_assigned_by_their_owner() -> None:
    found = {
        str(path.relative_to(SOURCES)): lines
        for path in sorted(SOURCES.rglob("*.py"))
        if path.relative_to(SOURCES).parts[0] not in THEIRS and (lines := foreign(path.read_text()))
    }
    assert found == {}
