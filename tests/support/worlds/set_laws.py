# SPDX-License-Identifier: Apache-2.0
"""Laws of types that merge like sets: acknowledged entries and whole progress."""

from __future__ import annotations

from typing import TypeVar

from meridian_broker.positions import AckSet, Progress

Set = TypeVar("Set", AckSet, Progress)


def check_within_and_minus(a: Set, b: Set) -> None:
    """``within`` says whether joining changes nothing, and ``minus`` is the part that must be joined."""
    union = b.copy()
    changed = union.join(a)
    assert a.within(b) == (not changed)
    assert a.within(union)
    assert b.within(union)
    rest = a.minus(b)
    assert rest.within(a)
    assert rest.is_empty == a.within(b)
    again = b.copy()
    again.join(rest)
    assert again == union
