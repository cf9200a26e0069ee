# SPDX-License-Identifier: Apache-2.0
"""Who may do what, as a table."""

from __future__ import annotations

import pytest
from meridian_broker.metadata.actions import ACTIONS, check_actions, check_role
from meridian_broker.metadata.authorizing import RoleFacts, Wish, decide, needed
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.permissions import Held

PRODUCE, CONSUME = frozenset({"produce"}), frozenset({"consume"})
OTHERS = frozenset(ACTIONS) - PRODUCE - CONSUME
TABLE = {
    RoleFacts(): set[Wish](),
    RoleFacts(is_super_user=True): set(Wish),
    RoleFacts(is_tenant_admin=True): set(Wish),
    RoleFacts(replicates=True): {Wish.FIND, Wish.REGISTER},
    RoleFacts(held=Held(in_namespace=PRODUCE)): {Wish.PRODUCE, Wish.REGISTER, Wish.FIND, Wish.LIST},
    RoleFacts(held=Held(in_namespace=CONSUME)): {Wish.CONSUME, Wish.FIND, Wish.LIST},
    RoleFacts(held=Held(on_topic=PRODUCE)): {Wish.PRODUCE, Wish.REGISTER, Wish.FIND},
    RoleFacts(held=Held(on_topic=CONSUME)): {Wish.CONSUME, Wish.FIND},
    RoleFacts(held=Held(CONSUME, PRODUCE)): set(Wish) - {Wish.ADMINISTER},
    RoleFacts(held=Held(OTHERS, OTHERS)): set(),
}
KINDS = (
    "any",
    "super user",
    "tenant admin",
    "replicator",
    "produces",
    "consumes",
    "topic's producer",
    "topic's consumer",
)
NAMES = [*KINDS, "consumes, and topic's producer", "others"]


@pytest.mark.parametrize("role", TABLE, ids=NAMES)
def test_what_a_role_may_do(role: RoleFacts) -> None:
    assert {wish for wish in Wish if decide(wish, role)} == TABLE[role]


def test_a_refusal_names_the_missing_permission() -> None:
    assert needed(Wish.FIND) == "it needs permission to consume or produce on the topic or its namespace"
    assert needed(Wish.LIST) == "it needs permission to consume or produce on the namespace"
    assert "admin role" in needed(Wish.ADMINISTER)


@pytest.mark.parametrize("role", ["app", "Büro", "a/b", "100%", "%2F", "system:serviceaccount:ns:x", "x" * 1024])
def test_roles_are_named_as_tokens_name_them(role: str) -> None:
    assert check_role(role) == role


@pytest.mark.parametrize("role", ["", ".", "..", "a\nb", "\x1b[2J", "x" * 1025, "é" * 513, "a\u202eb", "\ud800"])
def test_names_that_are_no_roles(role: str) -> None:
    with pytest.raises(Invalid):
        check_role(role)


@pytest.mark.parametrize("value", [None, "produce", {"produce": True}, ["PRODUCE"], ["write"], [1], [["produce"]]])
def test_invalid_lists_of_actions(value: object) -> None:
    with pytest.raises(Invalid):
        check_actions(value)


def test_an_empty_list_permits_nothing() -> None:
    assert check_actions([]) == frozenset()
    assert check_actions([*ACTIONS, "produce"]) == frozenset(ACTIONS)
