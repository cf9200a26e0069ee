# SPDX-License-Identifier: Apache-2.0
"""Entries that no region has any more: which regions continued after them, or may (R4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Origin
from meridian_broker.topics.backfill.gaps import Accepted
from meridian_broker.topics.topic import Topic

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext


def goes_on(target: Topic | None, source: str) -> bool:
    """Whether no subscription in the target is owed what it lacks of the source: it is passed over without a person."""
    gaps = () if target is None else target.gaps.open()
    return any(target.gaps.concerns_nobody(source) for one in gaps if target is not None and one.origin == source)


def is_nowhere(target: Topic | None, source: str) -> bool:
    """Whether every region was asked for what the target lacks of the source, and none has it."""
    gaps = () if target is None else target.gaps.open()
    return any(one.is_judged and not one.away for one in gaps if one.origin == source)


def accepted(target: TopicContext | None) -> list[Accepted]:
    """The gaps behind which the target, a whole topic, continued."""
    if target is None:
        return []
    assert isinstance(target, Topic)
    return target.gaps.accepted


def lies_in(passed: Collection[Accepted], origin: Origin) -> bool:
    return any(one.origin == origin.region and one.after < origin.position <= one.upto for one in passed)
