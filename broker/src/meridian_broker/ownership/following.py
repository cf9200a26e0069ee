# SPDX-License-Identifier: Apache-2.0
"""Watches who owns what in the region, and updates this broker's own bundles accordingly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from meridian_broker.ledgers.scheduling import Scheduler, later
from meridian_broker.metadata.store import MetadataError, MetadataStore
from meridian_broker.ownership import paths
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.holding import Holding
from meridian_broker.ownership.membership import Membership
from meridian_broker.ownership.records import OwnerRecord
from meridian_broker.ownership.terms import Action, Event, Term
from meridian_broker.ownership.transactions import BundleTransactions
from meridian_broker.ownership.view import View, namespaces_of
from meridian_broker.ownership.waiting import Waiting

RETRY_SECONDS: Final = 1.0
"""Pause before the store is watched again."""

log = logging.getLogger(__name__)


class Following:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        scheduler: Scheduler,
        transactions: BundleTransactions,
        membership: Membership,
        holding: Holding,
        seen: Callable[[Collection[str] | None], None],
        waiting: Waiting,
        leaving: Waiting,
    ) -> None:
        """
        :param seen: called after the view changed, with the namespaces in which it did, or None for all.
        :param waiting: requests that wait for a bundle to be handed to this broker.
        :param leaving: moves that wait until a bundle has arrived at the next broker.
        """
        self._store = store
        self._scheduler = scheduler
        self._transactions = transactions
        self._membership = membership
        self._holding = holding
        self._seen = seen
        self._waiting = waiting
        self._leaving = leaving
        self._arriving: set[Bundle] = set()
        """Bundles handed to this broker whose topics it is opening."""

    async def begin(self) -> None:
        """Read who owns what. :raises MetadataError: the store does not answer."""
        self._holding.view = View.of(await self._store.scan(paths.ROOT))

    async def run(self) -> None:
        """Follow it, until cancelled."""
        holding = self._holding
        while True:
            try:
                async for changes in self._store.watch(paths.ROOT):
                    if changes:
                        touched = holding.view.apply(changes)
                        self._seen(namespaces_of(changes))
                    else:
                        await self.begin()
                        waited_for = [*self._waiting.bundles, *self._leaving.bundles]
                        touched = [*holding.terms, *waited_for, *holding.view.wishes]
                        self._seen(None)
                    for bundle in touched:
                        self._look(bundle)
            except MetadataError as error:
                log.warning("watching bundle owners failed, so changes go unnoticed; retrying: %s", error)
                await later(self._scheduler, RETRY_SECONDS)

    def _look(self, bundle: Bundle) -> None:
        """React to a change of an owner's record. The watch may lag behind our own writes, so a record that the view
        lacks is read from the store."""
        view, me = self._holding.view, self._membership.me
        owner = view.owners.get(bundle)
        if owner is not None and me is not None and owner.session == me.session:
            self._look_at_own(bundle, owner)
        if view.wishes.get(bundle) is None:
            self._leaving.wake(bundle)
        alive = view.owner(bundle)
        if alive is None or alive.broker == self._membership.name:
            self._waiting.wake(bundle)
        is_ours = owner is not None and me is not None and owner.session == me.session
        if self._holding.terms.held(bundle) is not None and not is_ours:
            self._holding.verify(bundle)

    def _look_at_own(self, bundle: Bundle, owner: OwnerRecord) -> None:
        """This broker is on record as the owner. If another one handed the bundle over, serve it from now on.

        Bundles that this broker acquires or splits itself are not announced. The watch may report a term that is over.
        While topics of the bundle, or of one that it was a part of, are still being closed here, it does not become
        this broker's: its record is released as a stray.
        """
        holding, member = self._holding, self._membership
        view, terms = holding.view, holding.terms
        if view.wishes.get(bundle) != member.name or member.valid() is None or bundle in holding.changing:
            return
        if holding.is_open_as_other(bundle):
            return
        term = Term(owner.fence, view.versions[bundle])
        if not terms.is_over(bundle, owner.fence) and terms.happens(bundle, Event.GIVEN, term) is Action.SERVE:
            holding.topics.gained(bundle)
            log.info("owns %s in term %d, handed over by another broker", bundle, owner.fence)
        held = terms.term(bundle)
        if held is not None and held.fence == owner.fence and bundle not in self._arriving:
            self._arriving.add(bundle)
            self._scheduler.spawn(self._take_in(bundle, held), f"open the topics of {bundle}")

    async def _take_in(self, bundle: Bundle, term: Term) -> None:
        try:
            await self._holding.topics.open(bundle)
            if self._holding.terms.term(bundle) is term and bundle not in self._holding.heirs:
                with suppress(MetadataError):  # best effort: the other broker's wait is bounded
                    await self._transactions.arrived(bundle, term)
        finally:
            self._arriving.discard(bundle)
