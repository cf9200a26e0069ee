# SPDX-License-Identifier: Apache-2.0
"""How this broker gives bundles up: a single one to another broker, and all of them before it stops."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final

from meridian_broker.ledgers.scheduling import Scheduler, run_all
from meridian_broker.metadata.store import LeaseExpired, MetadataError
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.holding import Holding
from meridian_broker.ownership.membership import Membership
from meridian_broker.ownership.placement import divide
from meridian_broker.ownership.ports import NOBODY, Heir
from meridian_broker.ownership.terms import Action, Event, Term
from meridian_broker.ownership.transactions import BundleTransactions
from meridian_broker.ownership.waiting import Waiting

ARRIVAL_SECONDS: Final = 1.0
"""How long a stopping broker waits for the next owner to open a bundle's topics before it goes on."""
PACED_SECONDS: Final = 10.0
"""After this time a stopping broker no longer waits for next owners: it must end in time, however many bundles it
has."""
MOVES: Final = 4
"""Bundles that a stopping broker hands over at once: from sending clients away until the next owner has opened the
topics. Moves pause, and others use the pauses; but the more run at once, the longer each takes while its clients
wait."""

log = logging.getLogger(__name__)


class HandingOver:
    """See the module's text."""

    def __init__(
        self,
        scheduler: Scheduler,
        transactions: BundleTransactions,
        membership: Membership,
        holding: Holding,
        alone: AbstractAsyncContextManager[Any],
    ) -> None:
        """:param alone: a lock; acquisitions and splits run one at a time under it."""
        self.leaving = Waiting(scheduler, ARRIVAL_SECONDS)
        """Moves that wait until a bundle has arrived at the next broker."""
        self._scheduler = scheduler
        self._transactions = transactions
        self._membership = membership
        self._holding = holding
        self._alone = alone

    async def leave(self) -> None:
        """Prepare to stop: take no more bundles, and announce the brokers that get the present ones."""
        member, holding = self._membership, self._holding
        member.is_stopping = True
        async with self._alone:  # wait for an acquisition or split under way
            lease = member.lease
        if lease is None:
            return
        with suppress(MetadataError):
            await member.tell(lease)
        others = [one for one in holding.view.candidates() if one.broker != member.name]
        going = divide((bundle for bundle in holding.terms if bundle not in holding.heirs), others)
        await self._announce(going)

    async def hand_over(self) -> None:
        """Prepare to stop, and hand this broker's bundles to the other brokers, if there are any, ``MOVES`` at a time:
        clients of a bundle whose turn has not come are still served here."""
        await self.leave()
        until = self._now() + PACED_SECONDS
        moves = [partial(self._move, bundle, heir.broker, until) for bundle, heir in self._holding.heirs.items()]
        await run_all(self._scheduler, moves, "hand a bundle over", at_once=MOVES)

    async def _move(self, bundle: Bundle, to: str, until: float) -> None:
        """Hand a bundle over, and wait until it has arrived unless ``until`` has passed."""
        await self.give_up(bundle, to)
        view = self._holding.view
        if self._now() < until and view.wishes.get(bundle) == to and view.alive(to) is not None:
            await self.leaving.wait(bundle)

    async def close(self) -> None:
        """Close topics cleanly, give up the bundles that this broker still has, and end the lease."""
        if not self._membership.is_stopping:
            await self.leave()
        if self._membership.lease is None:
            return
        holding = self._holding
        jobs = [partial(self.give_up, bundle, holding.heirs.get(bundle, NOBODY).broker) for bundle in holding.terms]
        await run_all(self._scheduler, jobs, "give up a bundle")
        await self._membership.end()

    async def give_up(self, bundle: Bundle, to: str = "") -> None:
        """Close a bundle's topics cleanly and let other brokers own it; does nothing if it is not owned here.

        :param to: the broker that should own it next; empty: any.
        """
        holding = self._holding
        if bundle in holding.changing:
            async with self._alone:  # a split under way ends first: then its parts replace the bundle
                pass
        term = holding.terms.held(bundle)
        if term is None or holding.terms.happens(bundle, Event.GIVE_UP) is not Action.CLOSE:
            return
        holding.begin_closing(bundle)
        try:
            if to and holding.heirs.get(bundle, NOBODY).broker != to:
                await self._announce({bundle: to})
            heir = holding.heirs.get(bundle, NOBODY)
            await holding.topics.close(bundle)
        finally:
            holding.heirs.pop(bundle, None)
            holding.end_closing(bundle)
        if holding.terms.held(bundle) is not term:
            return  # the term ended meanwhile: its topics are dropped
        if holding.terms.happens(bundle, Event.CLOSED) is not Action.RELEASE:
            return
        holding.changing.add(bundle)  # not acquired again while its record is being removed
        try:
            await self._pass_on(bundle, term, heir)
            log.info("gave up %s in term %d", bundle, term.fence)
        except MetadataError as error:
            log.warning("gave up %s, but may not have recorded it in the metadata store: %s", bundle, error)
        finally:
            holding.changing.discard(bundle)

    async def _pass_on(self, bundle: Bundle, term: Term, heir: Heir) -> None:
        """Record the next owner, or which broker, if not any, should acquire the bundle."""
        to = self._holding.view.alive(heir.broker)
        if to is not None and heir.fence:
            with suppress(LeaseExpired):
                await self._transactions.transfer(bundle, term, to, heir.fence)
                return
        await self._transactions.release(bundle, term, heir.broker)

    async def _announce(self, going: Mapping[Bundle, str]) -> None:
        """From now on, send clients to the next owners, where they wait until these own the bundles."""
        heirs = self._holding.heirs
        heirs |= {bundle: Heir(to) for bundle, to in going.items()}
        if not going:
            return
        with suppress(MetadataError):
            first = await self._transactions.reserve(len(going))
            for fence, (bundle, to) in enumerate(going.items(), first):
                if heirs.get(bundle) == Heir(to):
                    heirs[bundle] = Heir(to, fence)
        announcing = [partial(self._announce_one, bundle, to) for bundle, to in going.items()]
        await run_all(self._scheduler, announcing, "announce the next owner of a bundle")

    async def _announce_one(self, bundle: Bundle, to: str) -> None:
        if (term := self._holding.terms.held(bundle)) is not None:
            with suppress(MetadataError):
                await self._transactions.announce(bundle, term, to)

    def _now(self) -> float:
        return self._scheduler.monotonic_ms() / 1000
