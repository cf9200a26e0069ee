# SPDX-License-Identifier: Apache-2.0
"""Who may do what. Decisions only: the caller supplies what is known of the role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from meridian_broker.metadata.actions import CONSUME, PRODUCE
from meridian_broker.metadata.permissions import NOTHING, Held


class Wish(Enum):
    """What a role wants to do with a topic or namespace; the value goes into sentences."""

    PRODUCE = "produce to"
    CONSUME = "consume from"
    FIND = "look up"
    """Where a topic is, how many partitions it has, its schemas."""
    REGISTER = "add a schema to"
    LIST = "list the topics of"
    """A namespace's."""
    ADMINISTER = "administer"


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What is known of a role that wants something."""

    is_super_user: bool = False
    is_tenant_admin: bool = False
    """It is among the admin roles of the tenant in question."""
    replicates: bool = False
    """It is the role by which a region of Apache Pulsar replicates to the topic in question."""
    held: Held = NOTHING


_ENOUGH: Final[Mapping[Wish, frozenset[str]]] = {
    Wish.PRODUCE: frozenset({PRODUCE}),
    Wish.CONSUME: frozenset({CONSUME}),
    Wish.FIND: frozenset({PRODUCE, CONSUME}),
    Wish.REGISTER: frozenset({PRODUCE}),
    Wish.LIST: frozenset({PRODUCE, CONSUME}),
    Wish.ADMINISTER: frozenset(),
}
"""Any one of these permissions suffices."""

_OF_NAMESPACES: Final = frozenset({Wish.LIST})
"""A permission on one topic says nothing about the others."""


_OF_REPLICATORS: Final = frozenset({Wish.FIND, Wish.REGISTER})
"""What replicators may do besides producing, which another rule admits (R7)."""


def decide(wish: Wish, role: RoleFacts) -> bool:
    """Whether it is allowed."""
    if role.is_super_user or role.is_tenant_admin:
        return True
    if role.replicates and wish in _OF_REPLICATORS:
        return True
    held = role.held
    actions = held.in_namespace if wish in _OF_NAMESPACES else held.in_namespace | held.on_topic
    return not actions.isdisjoint(_ENOUGH[wish])


def needed(wish: Wish) -> str:
    """What a refused role lacks, as part of a sentence."""
    actions = " or ".join(sorted(_ENOUGH[wish]))
    where = "on the namespace" if wish in _OF_NAMESPACES else "on the topic or its namespace"
    return f"it needs permission to {actions} {where}" if actions else "that takes an admin role of the tenant"
