# SPDX-License-Identifier: Apache-2.0
"""What a role may be permitted to do, and how permissions are stored: one path for each role (R41).

Two regions that permit something to two roles at once both keep it. Of two changes for one role on one object the later
counts, as for every other path; it sets all of the role's actions there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meridian_broker.bounds.permissions import ROLE_BYTES
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.keys import escape, unescape
from meridian_broker.metadata.trees import Tree
from meridian_broker.wire.shown import is_name

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ACTIONS: Final = (PRODUCE, CONSUME, "functions", "sources", "sinks", "packages")
"""Pulsar's actions. This broker has no functions, connectors or packages; it keeps permissions for them for tools."""

Permissions = Mapping[str, frozenset[str]]
"""By role, its permitted actions."""


def check_role(role: str) -> str:
    """The role, checked: it may be given permissions.

    :raises Invalid: it is empty, too long, or would be shown as another one.
    """
    if not role or not is_name(role) or len(role.encode()) > ROLE_BYTES:
        raise Invalid(
            f"{role[:80]!r} is not the name of a role: expected 1 to {ROLE_BYTES} bytes, without control characters, "
            "line separators or bidirectional controls, and not . or .."
        )
    return role


def check_actions(value: Any) -> frozenset[str]:
    """A JSON list of actions, in Pulsar's spelling. :raises Invalid: it is something else."""
    if not isinstance(value, list) or not all(isinstance(one, str) and one in ACTIONS for one in value):
        raise Invalid(f"the actions are {str(value)[:200]}: expected a list with some of {', '.join(ACTIONS)}")
    return frozenset(value)


def leaf_of(role: str) -> str:
    """Where a role's permissions are, below their object's path."""
    return f"/{escape(role)}"


def fold_permissions(tree: Tree) -> Permissions:
    """:raises Invalid: a stored value is not a list of actions."""
    return {unescape(leaf.removeprefix("/")): check_actions(value) for leaf, value in tree.leaves().items() if leaf}
