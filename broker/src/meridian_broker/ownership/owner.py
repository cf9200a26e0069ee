# SPDX-License-Identifier: Apache-2.0
"""The bundles that this broker owns: how it acquires, keeps, hands over and loses them.

All of a broker's terms depend on one lease. While the store cannot be reached, the broker serves what it owns until the
lease ends by its own clock. Then it drops everything, and starts over with a new lease as soon as the store answers.
So a broker that was suspended drops its topics before it serves anything else.

``terms.py`` has the table of what can happen to a bundle, and ``transactions.py`` the transactions. What the table says
is carried out here and in the parts that share ``holding.py``: ``membership.py`` watches the clock, ``following.py``
the store, and ``handing_over.py`` gives bundles up. This file acquires bundles, splits them, and finds their owners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from meridian_broker.ledgers.scheduling import Scheduler, run_all
from meridian_broker.metadata.store import MetadataError, MetadataStore
from meridian_broker.ownership.balancing import Balance
from meridian_broker.ownership.bundles import Bundle, Bundles
from meridian_broker.ownership.following import Following
from meridian_broker.ownership.handing_over import HandingOver
from meridian_broker.ownership.holding import Holding
from meridian_broker.ownership.membership import Membership
from meridian_broker.ownership.ports import BundleTopics
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.ownership.terms import Action, Event, State, Term
from meridian_broker.ownership.transactions import MANY, BundleTransactions, NoSuchBundle, OwnedElsewhere
from meridian_broker.ownership.view import View
from meridian_broker.ownership.waiting import Waiting
from meridian_broker.wire.pulsar.topic_name import TopicName

HAND_OVER_SECONDS: Final = 5.0
"""How long a request waits at a bundle's next owner for the hand-over. It is not refused at once, because refused
clients back off exponentially."""
LOCATE_ATTEMPTS: Final = 4
"""Attempts of a lookup while its bundle keeps being split."""

log = logging.getLogger(__name__)


class NotServing(Exception):
    """No broker can serve the topic right now: retry soon. The message says why."""


class Found(NamedTuple):
    """Where a topic is."""

    broker: BrokerRecord
    owns: bool
    """It owns the topic's bundle; otherwise it is the broker that should."""


class BundleOwner:
    """See the module's text. ``bind`` and ``await start`` once, then ``await close``."""

    def __init__(
        self,
        store: MetadataStore,
        scheduler: Scheduler,
        transactions: BundleTransactions,
        described: Callable[[str, bool], BrokerRecord],
        alone: AbstractAsyncContextManager[Any],
        lease_seconds: float,
    ) -> None:
        """
        :param described: returns this broker's record, given the name of its lease and whether it is about to stop.
        :param alone: a lock; acquisitions and splits run one at a time under it.
        """
        self._scheduler = scheduler
        self._transactions = transactions
        self._alone = alone
        self._balance = Balance()
        self._wanted: dict[Bundle, None] = {}
        """Bundles that requests wait for."""
        self._waiting = Waiting(scheduler, HAND_OVER_SECONDS)
        """Requests that wait for a bundle to be handed to this broker."""
        self._membership = Membership(store, scheduler, described, lease_seconds, self._lease_ended)
        self._holding = Holding(scheduler, transactions, self._membership)
        self._going = HandingOver(scheduler, transactions, self._membership, self._holding, alone)
        self._following = Following(
            store,
            scheduler,
            transactions,
            self._membership,
            self._holding,
            lambda namespaces: self.on_seen(namespaces),
            self._waiting,
            self._going.leaving,
        )
        self.on_seen: Callable[[Collection[str] | None], None] = lambda _: None
        """Called after ``view`` changed, with the namespaces that changed, or None for all; the brokers may have
        changed, too. Also called, with None, when the lease has ended: ``view`` may be stale from then on."""

    def bind(self, topics: BundleTopics) -> None:
        """Set what opens and closes topics. :raises RuntimeError: it was set before."""
        self._holding.bind(topics)

    async def start(self) -> None:
        """Register among the region's brokers, and stay so. :raises MetadataError: the store does not answer."""
        await self._membership.register()
        await self._following.begin()
        self._scheduler.spawn(self._membership.keep(), "keep the lease on this broker's bundles")
        self._scheduler.spawn(self._following.run(), "follow who owns which bundles")

    def _lease_ended(self) -> None:
        terms = self._holding.terms
        log.error(
            "the lease on this broker's bundles ended: closing topics of %d bundles, which other brokers may own now",
            len(terms),
        )
        for bundle in terms:
            self._holding.ended(bundle)
        self.on_seen(None)

    # -- how bundles are given up: see ``HandingOver`` -----------------------------------------------------------------

    async def leave(self) -> None:
        """Prepare to stop: take no more bundles, and announce the brokers that get the present ones."""
        await self._going.leave()

    async def hand_over(self) -> None:
        """Prepare to stop, and hand this broker's bundles to the other brokers, if there are any, a few at a time."""
        await self._going.hand_over()

    async def close(self) -> None:
        """Close topics cleanly, give up the bundles that this broker still has, and end the lease."""
        await self._going.close()

    async def give_up(self, bundle: Bundle, to: str = "") -> None:
        """Close a bundle's topics cleanly and let other brokers own it; does nothing if it is not owned here.

        :param to: the broker that should own it next; empty: any.
        """
        await self._going.give_up(bundle, to)

    # -- what is owned -------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The brokers, bundles and owners, as last seen."""
        return self._holding.view

    @property
    def name(self) -> str:
        """This broker's id; empty while its lease is not valid."""
        return self._membership.name

    @property
    def is_alive(self) -> bool:
        """Whether this broker has a lease, by its own clock."""
        return self._membership.valid() is not None

    def term(self, bundle: Bundle) -> Term | None:
        """The term in which the bundle's topics may be opened now; None: they may not."""
        return self._holding.term(bundle)

    def term_of(self, topic: TopicName) -> Term | None:
        """The term in which a topic may be opened now; None: it may not."""
        bundles = self.view.bundles.get(topic.namespace_name)
        return None if bundles is None else self.term(bundles.of(topic))

    def owned(self) -> list[Bundle]:
        """The bundles whose topics may be open here, sorted."""
        return sorted(bundle for bundle in self._holding.terms if self._holding.terms.held(bundle) is not None)

    async def bundles(self, namespace: str) -> Bundles:
        """The bundles of a namespace. :raises MetadataError: they cannot be read."""
        found = self.view.bundles.get(namespace)
        if found is None:
            found = self.view.bundles.setdefault(namespace, await self._transactions.bundles(namespace))
        return found

    async def acquire(self, bundle: Bundle) -> Term:
        """Own a bundle, unless another broker does.

        :raises OwnedElsewhere: another broker does.
        :raises NoSuchBundle: it was split.
        :raises NotServing: this broker may not own anything now, or is giving the bundle up.
        :raises MetadataError: the store did not answer.
        """
        if (term := self.term(bundle)) is not None:
            return term
        self._wanted[bundle] = None
        try:
            async with self._alone:
                if (term := self.term(bundle)) is not None:
                    return term  # acquired together with the bundle of an earlier request
                return await self._acquire(bundle)
        finally:
            self._wanted.pop(bundle, None)

    async def _acquire(self, bundle: Bundle) -> Term:
        """As ``acquire``; also acquires other bundles that requests wait for."""
        lease, me = self._membership.valid(), self._membership.me
        if lease is None or me is None or self._membership.is_stopping:
            raise NotServing("this broker is stopping or cut off from its metadata store: look the topic up again")
        if bundle in self._holding.changing:
            raise NotServing("this broker is giving the topic up: look it up again")
        others = (one for one in self._wanted if one != bundle and one not in self._holding.changing)
        wanted = islice((bundle, *others), MANY)
        # A part has to wait until the topics of the whole are closed here, if that was split behind this broker's back.
        free = [one for one in wanted if not self._holding.is_open_as_other(one)]
        some = [one for one in free if self._holding.terms.happens(one, Event.WANTED) is Action.ACQUIRE]
        if bundle not in some:
            for one in some:
                self._holding.terms.happens(one, Event.REFUSED)
            raise NotServing(f"{bundle} is being closed here: look the topic up again")
        try:
            found = await self._transactions.acquire(some, me.session, lease.lease_id)
        except BaseException:
            for one in some:
                self._holding.terms.happens(one, Event.REFUSED)
            raise
        for one in some:
            self._acquired(one, found[one], is_valid=self._membership.valid() is lease)
        if isinstance(outcome := found[bundle], Exception):
            raise outcome
        if self._holding.terms.held(bundle) is not outcome:
            raise NotServing("the lease on this broker's bundles ended: look the topic up again")
        return outcome

    def _acquired(self, bundle: Bundle, outcome: Term | Exception, *, is_valid: bool) -> None:
        """The store decided who owns it.

        :param is_valid: the lease that it was acquired under is still valid.
        """
        if isinstance(outcome, Exception):
            self._holding.terms.happens(bundle, Event.REFUSED)
        elif not is_valid:
            self._holding.terms.happens(bundle, Event.ENDED)
        elif self._holding.terms.happens(bundle, Event.GRANTED, outcome) is Action.SERVE:
            self._holding.topics.gained(bundle)
            log.info("owns %s in term %d", bundle, outcome.fence)

    async def split(self, bundle: Bundle, border: int) -> None:
        """Split an owned bundle; its topics stay open.

        :raises NotDivisible: it cannot be split there, or no longer exists.
        :raises NotServing: it is not owned here.
        :raises MetadataError: it is unknown whether it was split.
        """
        async with self._alone:
            term, lease, me = self.term(bundle), self._membership.valid(), self._membership.me
            if term is None or lease is None or me is None or self._membership.is_stopping:
                raise NotServing(f"{bundle} is not owned by this broker: look it up again")
            self._holding.changing.add(bundle)
            try:
                bundles, after = await self._transactions.split(bundle, border, term, me.session, lease.lease_id)
            except MetadataError:
                self._holding.verify(bundle)
                raise
            finally:
                self._holding.changing.discard(bundle)
            self.view.bundles[bundle.namespace] = bundles
            if self._holding.terms.held(bundle) is term:
                self._holding.terms.split(bundle, bundle.parts(border), after.version)

    # -- where topics are ----------------------------------------------------------------------------------------

    async def locate(self, topic: TopicName, *, authoritative: bool = False) -> Found:
        """The broker that serves a topic. Acquires the topic's bundle if it has no owner and this broker should own it.

        :param authoritative: another broker determined that this one should own it.
        :raises NotServing: no broker can serve it right now.
        :raises MetadataError: the store did not answer.
        """
        for _ in range(LOCATE_ATTEMPTS):
            bundle = (await self.bundles(topic.namespace_name)).of(topic)
            try:
                return await self._locate(bundle, authoritative)
            except NoSuchBundle:
                self.view.bundles[bundle.namespace] = await self._transactions.bundles(bundle.namespace)
        raise NotServing(f"the bundle of {topic} keeps being split: look it up later")

    async def _locate(self, bundle: Bundle, authoritative: bool) -> Found:
        if (to := self._holding.next_owner(bundle)) is not None:
            return Found(to, False)
        await self._handed_over(bundle)
        me = self._membership.me
        if me is not None and self.term(bundle) is not None:
            return Found(me, True)
        if (owner := self.view.owner(bundle)) is not None and owner.broker != self.name:
            return Found(owner, True)
        chosen = me if authoritative and not self._membership.is_stopping else self.view.chosen(bundle)
        if me is None or chosen is None:
            raise NotServing("no broker of this region can take the topic now: look it up again")
        if chosen.broker != me.broker:
            return Found(chosen, False)
        try:
            await self.acquire(bundle)
        except OwnedElsewhere as error:
            found = self.view.broker(error.owner.broker, error.owner.session)
            if found is None:
                raise NotServing(f"its last owner, {error.owner.broker}, is not alive: look it up again") from None
            return Found(found, True)
        return Found(me, True)

    def when_moved(self, topic: TopicName, broker: BrokerRecord, moved: Callable[[], None]) -> bool:
        """Call ``moved`` once a broker other than ``broker`` may own the topic, as far as seen, or after a while.

        :returns: False: ``broker`` no longer owns it, so ``moved`` is not called.
        """
        bundles = self.view.bundles.get(topic.namespace_name)
        bundle = None if bundles is None else bundles.of(topic)
        owner = None if bundle is None else self.view.owner(bundle)
        if bundle is None or owner is None or owner.session != broker.session:
            return False
        self._waiting.call(bundle, moved)
        return True

    async def _handed_over(self, bundle: Bundle) -> None:
        """Wait while the bundle is being handed to this broker."""
        owner = self.view.owner(bundle)
        if owner is not None and owner.broker != self.name and self.view.wishes.get(bundle) == self.name:
            await self._waiting.wait(bundle)

    def next_owner(self, topic: TopicName) -> BrokerRecord | None:
        """The broker that a topic is being handed to; None: it stays, or any broker may take it."""
        bundles = self.view.bundles.get(topic.namespace_name)
        return None if bundles is None else self._holding.next_owner(bundles.of(topic))

    async def take_vacant(self) -> None:
        """Acquire the ``vacant`` bundles, many per transaction; those that cannot be had now are left to the next call.

        :raises MetadataError: the store did not answer.
        """

        async def take(bundle: Bundle) -> None:
            try:
                await self.acquire(bundle)
            except (OwnedElsewhere, NoSuchBundle, NotServing) as error:
                log.debug("could not acquire %s: %s", bundle, error)

        jobs = [partial(take, bundle) for bundle in self.vacant()]
        await run_all(self._scheduler, jobs, "take a bundle without an owner", at_once=MANY)

    def vacant(self) -> list[Bundle]:
        """The bundles that this broker should take because they have no known owner."""
        if (me := self._membership.me) is None or self._membership.is_stopping:
            return []
        every = [bundle for bundles in self.view.bundles.values() for bundle in bundles.every()]
        free = [one for one in every if self.view.owner(one) is None and self._holding.terms.held(one) is None]
        return [one for one in free if (chosen := self.view.chosen(one)) is not None and chosen.broker == me.broker]

    async def release_strays(self) -> None:
        """Release bundles recorded as this broker's that it does not own: the store executed an acquisition or a split
        whose answer was lost, or missed a release. Otherwise no broker could take them.

        :raises MetadataError: the store did not answer.
        """
        if not self._strays():
            return
        async with self._alone:  # no acquisition or split is under way: what the store says about free bundles is final
            for bundle, session in self._strays():
                await self._transactions.disown(bundle, session)

    def _strays(self) -> list[tuple[Bundle, str]]:
        me = self._membership.me
        session = "" if me is None else me.session
        mine = [bundle for bundle, owner in self.view.owners.items() if owner.session == session]
        free = [bundle for bundle in mine if self._holding.terms.state(bundle) is State.FREE]
        return [
            (bundle, session)
            for bundle in free
            if bundle not in self._holding.changing and not self._holding.is_open_as_other(bundle)
        ]

    def next_move(self, traffic: Mapping[Bundle, float]) -> tuple[Bundle, str] | None:
        """A bundle to hand to another broker, and that broker; None: none. See ``balancing.py``.

        :param traffic: of those of this broker's bundles that were measured.
        """
        if (me := self._membership.me) is None or self._membership.is_stopping:
            return None
        mine = {bundle: traffic.get(bundle, 0.0) for bundle in self._holding.terms if self.term(bundle) is not None}
        view = self.view
        now = self._scheduler.monotonic_ms() / 1000
        return self._balance.next_move(mine, me.broker, view.candidates(), view.members(), now)

    async def report(self, usage: float) -> None:
        """Tell the other brokers this broker's load, if it has changed noticeably.

        :param usage: fraction of its capacity in use.
        :raises MetadataError: the store did not answer.
        """
        async with self._alone:  # not while this broker announces that it stops
            await self._membership.report(usage)

    @property
    def usage(self) -> float:
        """The load that the other brokers know of."""
        return self._membership.usage
