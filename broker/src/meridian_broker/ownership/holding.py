# SPDX-License-Identifier: Apache-2.0
"""What this broker owns, and what it has seen of the others. The parts of ``BundleOwner`` share it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from meridian_broker.ledgers.scheduling import Scheduler, later
from meridian_broker.metadata.store import MetadataError
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.membership import Membership
from meridian_broker.ownership.ports import NOBODY, BundleTopics, Heir
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.ownership.terms import Action, Event, State, Term, Terms
from meridian_broker.ownership.transactions import BundleTransactions
from meridian_broker.ownership.view import View

RETRY_SECONDS: Final = 1.0
"""Pause before the store is asked again whether a bundle is still owned."""

log = logging.getLogger(__name__)


class Holding:
    """See the module's text."""

    def __init__(self, scheduler: Scheduler, transactions: BundleTransactions, membership: Membership) -> None:
        self.view = View()
        self.terms = Terms()
        self.changing: set[Bundle] = set()
        """Bundles whose owner's record this broker is changing."""
        self.heirs: dict[Bundle, Heir] = {}
        """The brokers that this broker's bundles are being handed to."""
        self._closings: Counter[Bundle] = Counter()
        """How often the topics of a bundle are being closed or dropped. Both happen at once when a term ends before its
        topics are closed."""
        self._unverified: dict[Bundle, bool] = {}
        """Bundles about which the store is being asked, and whether it has to be asked again."""
        self._scheduler = scheduler
        self._transactions = transactions
        self._membership = membership
        self._topics: BundleTopics | None = None

    def bind(self, topics: BundleTopics) -> None:
        """Set what opens and closes topics. :raises RuntimeError: it was set before."""
        if self._topics is not None:
            raise RuntimeError("the topics of this broker are already bound")
        self._topics = topics

    @property
    def topics(self) -> BundleTopics:
        """What opens and closes topics. :raises RuntimeError: it is not set yet."""
        if self._topics is None:
            raise RuntimeError("a bundle is owned before the topics of this broker are bound")
        return self._topics

    def term(self, bundle: Bundle) -> Term | None:
        """The term in which the bundle's topics may be opened now; None: they may not."""
        return self.terms.term(bundle) if self._membership.valid() is not None else None

    def next_owner(self, bundle: Bundle) -> BrokerRecord | None:
        """The broker that a bundle is being handed to; None: it stays, or any broker may take it."""
        return self.view.alive(self.heirs.get(bundle, NOBODY).broker)

    def is_open_as_other(self, bundle: Bundle) -> bool:
        """Whether topics of it may still be open here as those of another bundle, which it is a part of."""
        return any(one != bundle and one.overlaps(bundle) for one in self.terms)

    def ended(self, bundle: Bundle) -> None:
        """The term of a bundle has ended, if there was one: its topics are dropped."""
        if self.terms.happens(bundle, Event.ENDED) is Action.DROP:
            self.begin_closing(bundle)
            self._scheduler.spawn(self._drop(bundle), f"drop {bundle}")

    async def _drop(self, bundle: Bundle) -> None:
        try:
            await self.topics.drop(bundle)
        finally:
            self.end_closing(bundle)

    def begin_closing(self, bundle: Bundle) -> None:
        """The bundle's topics are being closed or dropped, until ``end_closing``: no later term begins meanwhile."""
        self._closings[bundle] += 1

    def end_closing(self, bundle: Bundle) -> None:
        """One of those that ``begin_closing`` reported is done. A lost bundle is free after the last one: what is still
        being closed would close the topics of a later term as well, and forget the votes on their streams."""
        self._closings[bundle] -= 1
        if not self._closings[bundle]:
            del self._closings[bundle]
            if self.terms.state(bundle) is State.LOST:
                self.terms.happens(bundle, Event.CLOSED)

    def verify(self, bundle: Bundle) -> None:
        """Ask the store whether a bundle is still owned, until it answers or the term is over. The term ends if it is
        not."""
        is_asking, self._unverified[bundle] = bundle in self._unverified, True
        if not is_asking:
            self._scheduler.spawn(self._verify(bundle), "verify the owner of a bundle")

    async def _verify(self, bundle: Bundle) -> None:
        try:
            while self._unverified[bundle]:
                self._unverified[bundle] = False
                if not await self._is_answered(bundle):
                    self._unverified[bundle] = True  # whatever made it doubtful is not reported again
                    await later(self._scheduler, RETRY_SECONDS)
        finally:
            del self._unverified[bundle]

    async def _is_answered(self, bundle: Bundle) -> bool:
        """False: the store does not answer, or this broker is changing the record."""
        term = self.terms.held(bundle)
        if term is None or bundle in self.changing:
            return term is None
        try:
            holds = await self._transactions.holds(bundle, term)
        except MetadataError:
            return False
        if holds or self.terms.held(bundle) is not term:
            return True
        if bundle in self.changing:
            return False
        log.error("lost %s, owned in term %d: its record is gone or names another broker", bundle, term.fence)
        self.ended(bundle)
        return True
