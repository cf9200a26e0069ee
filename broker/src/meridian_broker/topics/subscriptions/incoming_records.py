# SPDX-License-Identifier: Apache-2.0
"""Decides what follows when a subscription's record arrives, from another region or from the progress log. Pure.

A record says that an incarnation of a subscription exists, or has ended. The later one wins (R16). The two sources
differ in what their records are compared with. Another region may know less than this one, so its record is joined
with ours, and a subscription that was always this region's own is left alone (R15). Records in the progress log were
joined before they were written, so the last one counts.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from meridian_broker.topics.journal.subscription_record import SubscriptionRecord, join_records

TOMBSTONE_MS: Final = 30 * 86_400_000
"""How long a tombstone is kept. A region that was away for longer may bring the subscription back."""


class Verdict(Enum):
    """What a record leads to."""

    NOTHING = "everything it says is known"
    REFUSE = "refused: a subscription of this region's own has the name"
    BESIDE = "its tombstone is kept beside a subscription that it does not end"
    BURY = "its tombstone is kept; there is no subscription"
    REMOVE = "the subscription goes, and its tombstone is kept"
    REPLACE = "the subscription goes, and one of a later incarnation takes its place"
    MAKE = "a subscription is made"
    TURN_ON = "the subscription is replicated from now on"
    UPDATE = "the subscription gets another record"


class Here(NamedTuple):
    """What is known under the name."""

    held: SubscriptionRecord | None = None
    """Record of the subscription; None: there is none."""
    is_known_elsewhere: bool = False
    """Other regions know of the subscription."""
    stands_in: bool = False
    """It was created again in place of one whose record is damaged (``damaged_records.py``)."""
    has_consumers: bool = False
    grave: SubscriptionRecord | None = None
    """The tombstone; None: there is none."""


class Decision(NamedTuple):
    """The verdict and its result."""

    verdict: Verdict
    record: SubscriptionRecord
    """The record of the subscription, or its tombstone, afterwards."""
    closes: bool = False
    """Clients cannot create a subscription of the name by themselves for a while."""


def told(came: SubscriptionRecord, here: Here, now_ms: int) -> Decision:
    """Decide on a record of another region.

    ==============  ========  ===========  =======  ==========
    it says         nothing   a tombstone  our own  replicated
    ==============  ========  ===========  =======  ==========
    earlier, ended  bury      nothing      nothing  nothing
    same, ended     bury      nothing      nothing  nothing
    later, ended    bury      bury         beside   remove
    earlier, lives  make      nothing      nothing  nothing
    same, lives     make      make         update   update
    later, lives    make      make         refuse   replace
    ==============  ========  ===========  =======  ==========

    The columns are what is here: a subscription is replicated once other regions know it. Earlier, same, later: its
    incarnation, compared with that of what is here. An update is ``TURN_ON`` if replication begins by it, and
    ``NOTHING`` if all of it is known. One that stands in for a damaged one is treated as replicated. Where nothing is
    here, an expired tombstone is ignored.
    """
    held = here.held
    known = here.grave if held is None else held
    joined = came if known is None else join_records(known, came)
    if held is not None and here.stands_in and held.deleted == came.deleted and not came.is_gone:
        joined = replace(joined, created=came.created, properties=came.properties)  # whatever the clock here says
    if joined == known or (known is None and is_too_old(came, now_ms)):
        return Decision(Verdict.NOTHING, joined)
    if held is None:
        return Decision(_outcome(joined, None), joined, closes=joined.is_gone and joined.forced)
    if joined.deleted != held.deleted:
        if not here.is_known_elsewhere and not here.stands_in:
            return _beside_own(came, here.grave)
        return Decision(_outcome(joined, held), joined, closes=joined.forced or here.has_consumers)
    return Decision(_outcome(joined, held), joined)


def logged(came: SubscriptionRecord, here: Here) -> Decision:
    """Decide on a record of the progress log; ``here`` results from the records before it.

    ==============  ========  ===========  =======  ==========
    it says         nothing   a tombstone  our own  replicated
    ==============  ========  ===========  =======  ==========
    earlier, ended  bury      bury         beside   beside
    same, ended     bury      bury         beside   beside
    later, ended    bury      bury         beside   remove
    earlier, lives  make      make         replace  replace
    same, lives     make      make         update   update
    later, lives    make      make         replace  replace
    ==============  ========  ===========  =======  ==========

    Columns as in ``told``. An update is ``TURN_ON`` if replication begins by it.

    A tombstone after a subscription of a later incarnation, or of one that other regions never knew, does not apply to
    it: a new ledger begins with the subscriptions, and the tombstones follow.
    """
    held = here.held
    if came.is_gone:
        if held is not None and (not here.is_known_elsewhere or held.deleted >= came.deleted):
            return Decision(Verdict.BESIDE, came)
        return Decision(_outcome(came, held), came, closes=came.forced)
    verdict = _outcome(came, held)
    if held is not None and verdict is not Verdict.REPLACE:
        came = replace(came, voter_sets=held.voter_sets.joined(came.voter_sets))
    return Decision(verdict, came)


def is_too_old(record: SubscriptionRecord, now_ms: int) -> bool:
    """Whether it is a tombstone that has expired."""
    return record.is_gone and record.deleted.time_ms < now_ms - TOMBSTONE_MS


def _outcome(after: SubscriptionRecord, held: SubscriptionRecord | None) -> Verdict:
    """The verdict that leads from ``held`` to ``after``."""
    if held is None:
        return Verdict.BURY if after.is_gone else Verdict.MAKE
    if after.is_gone:
        return Verdict.REMOVE
    if after.deleted != held.deleted:
        return Verdict.REPLACE
    return Verdict.TURN_ON if after.replicated and not held.replicated else Verdict.UPDATE


def _beside_own(came: SubscriptionRecord, grave: SubscriptionRecord | None) -> Decision:
    """Other regions deleted a subscription with the name of one that was always this region's own."""
    if not came.is_gone:
        return Decision(Verdict.REFUSE, came)
    joined = came if grave is None else join_records(grave, came)
    return Decision(Verdict.NOTHING if joined == grave else Verdict.BESIDE, joined)
