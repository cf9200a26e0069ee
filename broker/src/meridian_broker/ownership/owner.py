# SPDX-License-Identifier: Apache-2.0
"""The bundles that this broker owns: how it acquires, keeps, hands over and loses them.

All of a broker's terms depend on one lease. While the store cannot be reached, the broker serves what it owns until the
lease ends by its own clock. Then it drops everything, and starts over with a new lease as soon as the store answers.
So a broker that was suspended drops its topics before it serves anything else. ``terms.py`` has the table of what can
happen to a bundle, ``claims.py`` the transactions; this file watches the store and the clock and carries out what the
table says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from meridian_broker.ledgers.scheduling import Scheduler, later, run_all
from meridian_broker.metadata.store import Lease, LeaseExpired, MetadataError, MetadataStore
from meridian_broker.ownership import paths
from meridian_broker.ownership.balancing import Balance
from meridian_broker.ownership.bundles import Bundle, Bundles
from meridian_broker.ownership.claims import MANY, Claims, NoSuchBundle, OwnedElsewhere
from meridian_broker.ownership.placement import divide
from meridian_broker.ownership.ports import NOBODY, BundleTopics, Heir
from meridian_broker.ownership.records import BrokerRecord, OwnerRecord
from meridian_broker.ownership.terms import Action, Event, State, Term, Terms
from meridian_broker.ownership.view import View, namespaces_of
from meridian_broker.ownership.waiting import Waiting
from meridian_broker.wire.pulsar.topic_name import TopicName

RETRY_SECONDS: Final = 1.0
"""Pause before a failed request to the store is repeated."""
LOOKS_PER_LEASE: Final = 20
"""How often the broker checks its lease within one lease time: the store may end it early."""
HAND_OVER_SECONDS: Final = 5.0
"""How long a request waits at a bundle's next owner for the hand-over. It is not refused at once because refused
clients back off exponentially."""
ARRIVAL_SECONDS: Final = 1.0
"""How long a broker that stops waits until the next owner has opened a bundle's topics, before it goes on."""
PACED_SECONDS: Final = 10.0
"""After how long a broker that stops does so no more: whatever the number of bundles, it has to end in time."""
MOVES: Final = 4
"""How many bundles a broker that stops hands over at once, from the moment when clients are sent away until the next
owner has opened the topics. Each move has pauses, in which others make progress; but the more there are, the longer
each takes, and its clients wait."""
NOTICEABLE: Final = 0.05
"""Change of load that the other brokers are told: each report is a write to the store that all of them see."""
LOCATE_ATTEMPTS: Final = 4
"""How often a lookup is attempted while its bundle keeps being split."""

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
        claims: Claims,
        described: Callable[[str, bool], BrokerRecord],
        alone: AbstractAsyncContextManager[Any],
        lease_seconds: float,
    ) -> None:
        """
        :param described: returns this broker's record, given the name of its lease and whether it is about to stop.
        :param alone: a lock; claims and splits run one at a time under it.
        """
        self.view = View()
        self._store = store
        self._scheduler = scheduler
        self._claims = claims
        self._described = described
        self._alone = alone
        self._lease_seconds = lease_seconds
        self._terms = Terms()
        self._balance = Balance()
        self._changing: set[Bundle] = set()
        """Bundles whose owner's record this broker is changing."""
        self._wanted: dict[Bundle, None] = {}
        """Bundles that requests wait for."""
        self._next: dict[Bundle, Heir] = {}
        """The brokers that this broker's bundles are being handed to."""
        self._waiting = Waiting(scheduler, HAND_OVER_SECONDS)
        """Requests that wait for a bundle to be handed to this broker."""
        self._leaving = Waiting(scheduler, ARRIVAL_SECONDS)
        """Moves that wait until a bundle has arrived at the next broker."""
        self._arriving: set[Bundle] = set()
        """Bundles that were handed to this broker, and whose topics it is opening."""
        self._lease: Lease | None = None
        self._me: BrokerRecord | None = None
        self._topics: BundleTopics | None = None
        self._stopping = False
        self.on_seen: Callable[[Collection[str] | None], None] = lambda _: None
        """Called after ``view`` changed, with the namespaces in which it did, or None for all; the brokers may have
        changed, too. Also, with None, when the lease has ended: ``view`` may be old from then on."""

    def bind(self, topics: BundleTopics) -> None:
        """Set what opens and closes topics. :raises RuntimeError: it was set before."""
        if self._topics is not None:
            raise RuntimeError("the topics of this broker were bound before")
        self._topics = topics

    async def start(self) -> None:
        """Register among the region's brokers, and stay so. :raises MetadataError: the store does not answer."""
        await self._register()
        self.view = View.of(await self._store.scan(paths.ROOT))
        self._scheduler.spawn(self._keep(), "keep the lease on this broker's bundles")
        self._scheduler.spawn(self._follow(), "follow who owns which bundles")

    async def leave(self) -> None:
        """Prepare to stop: take no more bundles, and announce the brokers that get the present ones."""
        self._stopping = True
        async with self._alone:  # waits for a claim or split that is under way
            lease = self._lease
        if lease is None:
            return
        with suppress(MetadataError):
            await self._tell(lease)
        others = [one for one in self.view.candidates() if one.broker != self.name]
        going = divide((bundle for bundle in self._terms if bundle not in self._next), others)
        await self._announce(going)

    async def hand_over(self) -> None:
        """Prepare to stop, and hand this broker's bundles to the other brokers, if there are any, ``MOVES`` at a time:
        clients of a bundle whose turn has not come are still served here."""
        await self.leave()
        until = self._now() + PACED_SECONDS
        moves = [partial(self._move, bundle, heir.broker, until) for bundle, heir in self._next.items()]
        await run_all(self._scheduler, moves, "hand a bundle over", at_once=MOVES)

    async def _move(self, bundle: Bundle, to: str, until: float) -> None:
        """Hand a bundle over, and wait until it has arrived, unless that is over."""
        await self.give_up(bundle, to)
        if self._now() < until and self.view.wishes.get(bundle) == to and self.view.alive(to) is not None:
            await self._leaving.wait(bundle)

    async def close(self) -> None:
        """Close topics cleanly, give up the bundles that this broker still has, and end the lease."""
        if not self._stopping:
            await self.leave()
        if (lease := self._lease) is None:
            return
        jobs = [partial(self.give_up, bundle, self._next.get(bundle, NOBODY).broker) for bundle in self._terms]
        await run_all(self._scheduler, jobs, "give up a bundle")
        self._lease = None
        await lease.revoke()

    # -- what is owned -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """This broker's id; empty while its lease is not valid."""
        return "" if self._me is None else self._me.broker

    @property
    def is_alive(self) -> bool:
        """Whether this broker has a lease, by its own clock."""
        return self._valid() is not None

    def term(self, bundle: Bundle) -> Term | None:
        """The term in which the bundle's topics may be opened now; None: they may not."""
        return self._terms.term(bundle) if self._valid() is not None else None

    def term_of(self, topic: TopicName) -> Term | None:
        """The term in which a topic may be opened now; None: it may not."""
        bundles = self.view.bundles.get(topic.namespace_name)
        return None if bundles is None else self.term(bundles.of(topic))

    def owned(self) -> list[Bundle]:
        """The bundles whose topics may be open here, sorted."""
        return sorted(bundle for bundle in self._terms if self._terms.held(bundle) is not None)

    async def bundles(self, namespace: str) -> Bundles:
        """The bundles of a namespace. :raises MetadataError: they cannot be read."""
        found = self.view.bundles.get(namespace)
        if found is None:
            found = self.view.bundles.setdefault(namespace, await self._claims.bundles(namespace))
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
                    return term  # whoever had its turn before claimed it, too
                return await self._claim(bundle)
        finally:
            self._wanted.pop(bundle, None)

    async def _claim(self, bundle: Bundle) -> Term:
        """Claim a bundle, and with it others that requests wait for. As ``acquire``."""
        lease, me = self._valid(), self._me
        if lease is None or me is None or self._stopping:
            raise NotServing("this broker is stopping or cut off from its metadata store: look the topic up again")
        if bundle in self._changing:
            raise NotServing("this broker is giving the topic up: look it up again")
        others = (one for one in self._wanted if one != bundle and one not in self._changing)
        wanted = islice((bundle, *others), MANY)
        some = [one for one in wanted if self._terms.happens(one, Event.WANTED) is Action.CLAIM]
        if bundle not in some:
            for one in some:
                self._terms.happens(one, Event.REFUSED)
            raise NotServing(f"{bundle} is being closed here: look the topic up again")
        try:
            found = await self._claims.claim(some, me.session, lease.lease_id)
        except BaseException:
            for one in some:
                self._terms.happens(one, Event.REFUSED)
            raise
        for one in some:
            self._claimed(one, found[one], is_valid=self._valid() is lease)
        if isinstance(outcome := found[bundle], Exception):
            raise outcome
        if self._terms.held(bundle) is not outcome:
            raise NotServing("the lease on this broker's bundles ended: look the topic up again")
        return outcome

    def _claimed(self, bundle: Bundle, outcome: Term | Exception, *, is_valid: bool) -> None:
        """The store decided on a claim.

        :param is_valid: the lease under which it was claimed still is.
        """
        if isinstance(outcome, Exception):
            self._terms.happens(bundle, Event.REFUSED)
        elif not is_valid:
            self._terms.happens(bundle, Event.ENDED)
        elif self._terms.happens(bundle, Event.GRANTED, outcome) is Action.SERVE:
            self._open_topics.gained(bundle)
            log.info("owns %s in term %d", bundle, outcome.fence)

    async def give_up(self, bundle: Bundle, to: str = "") -> None:
        """Close a bundle's topics cleanly and let other brokers own it; does nothing if it is not owned here.

        :param to: the broker that should own it next; empty: any.
        """
        if bundle in self._changing:
            async with self._alone:  # the split that is under way ends first: then its parts take the bundle's place
                pass
        term = self._terms.held(bundle)
        if term is None or self._terms.happens(bundle, Event.GIVE_UP) is not Action.CLOSE:
            return
        if to and self._next.get(bundle, NOBODY).broker != to:
            await self._announce({bundle: to})
        heir = self._next.get(bundle, NOBODY)
        try:
            await self._open_topics.close(bundle)
        finally:
            self._next.pop(bundle, None)
        if self._terms.held(bundle) is not term:
            return  # the term ended meanwhile: its topics were dropped, and a later one's may be open
        if self._terms.happens(bundle, Event.CLOSED) is not Action.RELEASE:
            return
        self._changing.add(bundle)  # it is not acquired again while its record is being removed
        try:
            await self._pass_on(bundle, term, heir)
            log.info("gave up %s in term %d", bundle, term.fence)
        except MetadataError as error:
            log.warning("gave up %s, but the store may not know it yet: %s", bundle, error)
        finally:
            self._changing.discard(bundle)

    async def _pass_on(self, bundle: Bundle, term: Term, heir: Heir) -> None:
        """Record the next owner, or that it has to claim the bundle, or that any broker may."""
        to = self.view.alive(heir.broker)
        if to is not None and heir.fence:
            with suppress(LeaseExpired):
                await self._claims.transfer(bundle, term, to, heir.fence)
                return
        await self._claims.release(bundle, term, heir.broker)

    async def _announce(self, going: Mapping[Bundle, str]) -> None:
        """Send clients to the next owners from now on: they wait there until these own the bundles."""
        self._next |= {bundle: Heir(to) for bundle, to in going.items()}
        if not going:
            return
        with suppress(MetadataError):
            first = await self._claims.reserve(len(going))
            for fence, (bundle, to) in enumerate(going.items(), first):
                if self._next.get(bundle) == Heir(to):
                    self._next[bundle] = Heir(to, fence)
        announcing = [partial(self._announce_one, bundle, to) for bundle, to in going.items()]
        await run_all(self._scheduler, announcing, "announce the next owner of a bundle")

    async def _announce_one(self, bundle: Bundle, to: str) -> None:
        if (term := self._terms.held(bundle)) is not None:
            with suppress(MetadataError):
                await self._claims.announce(bundle, term, to)

    async def split(self, bundle: Bundle, border: int) -> None:
        """Split an owned bundle; its topics stay open.

        :raises NotDivisible: it cannot be split there, or no longer exists.
        :raises NotServing: it is not owned here.
        :raises MetadataError: it is unknown whether it was split.
        """
        async with self._alone:
            term, lease, me = self.term(bundle), self._valid(), self._me
            if term is None or lease is None or me is None or self._stopping:
                raise NotServing(f"{bundle} is not owned by this broker: look it up again")
            self._changing.add(bundle)
            try:
                bundles, after = await self._claims.split(bundle, border, term, me.session, lease.lease_id)
            except MetadataError:
                self._scheduler.spawn(self._verify(bundle), "verify the owner of a bundle")
                raise
            finally:
                self._changing.discard(bundle)
            self.view.bundles[bundle.namespace] = bundles
            if self._terms.held(bundle) is term:
                self._terms.split(bundle, bundle.parts(border), after.version)

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
                self.view.bundles[bundle.namespace] = await self._claims.bundles(bundle.namespace)
        raise NotServing(f"the bundle of {topic} keeps being split: look it up later")

    async def _locate(self, bundle: Bundle, authoritative: bool) -> Found:
        if (to := self.view.alive(self._next.get(bundle, NOBODY).broker)) is not None:
            return Found(to, False)
        await self._handed_over(bundle)
        me = self._me
        if me is not None and self.term(bundle) is not None:
            return Found(me, True)
        if (owner := self.view.owner(bundle)) is not None and owner.broker != self.name:
            return Found(owner, True)
        chosen = me if authoritative and not self._stopping else self.view.chosen(bundle)
        if me is None or chosen is None:
            raise NotServing("no broker of the region can take the topic now: look it up again")
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

    async def _handed_over(self, bundle: Bundle) -> None:
        """Wait while the bundle is being handed to this broker."""
        owner = self.view.owner(bundle)
        if owner is not None and owner.broker != self.name and self.view.wishes.get(bundle) == self.name:
            await self._waiting.wait(bundle)

    def next_owner(self, topic: TopicName) -> BrokerRecord | None:
        """The broker that a topic is being handed to; None: it stays, or any broker may take it."""
        bundles = self.view.bundles.get(topic.namespace_name)
        heir = NOBODY if bundles is None else self._next.get(bundles.of(topic), NOBODY)
        return self.view.alive(heir.broker)

    def vacant(self) -> list[Bundle]:
        """The bundles that have no owner, as far as known, and that this broker should take."""
        if (me := self._me) is None or self._stopping:
            return []
        every = [bundle for bundles in self.view.bundles.values() for bundle in bundles.every()]
        free = [one for one in every if self.view.owner(one) is None and self._terms.held(one) is None]
        return [one for one in free if (chosen := self.view.chosen(one)) is not None and chosen.broker == me.broker]

    async def release_strays(self) -> None:
        """Release the bundles that are recorded as this broker's although it does not own them: the store executed a
        claim or a split whose answer was lost, or missed a release. No broker can take them otherwise.

        :raises MetadataError: the store did not answer.
        """
        if not self._strays():
            return
        async with self._alone:  # no claim or split is under way: what the store says of free bundles is final
            for bundle, session in self._strays():
                await self._claims.disown(bundle, session)

    def _strays(self) -> list[tuple[Bundle, str]]:
        session = "" if self._me is None else self._me.session
        mine = [bundle for bundle, owner in self.view.owners.items() if owner.session == session]
        free = [bundle for bundle in mine if self._terms.state(bundle) is State.FREE]
        return [(bundle, session) for bundle in free if bundle not in self._changing]

    def next_move(self, traffic: Mapping[Bundle, float]) -> tuple[Bundle, str] | None:
        """A bundle to hand to another broker, and that broker; None: none. See ``balancing.py``.

        :param traffic: of this broker's bundles, as far as it was measured.
        """
        if (me := self._me) is None or self._stopping:
            return None
        mine = {bundle: traffic.get(bundle, 0.0) for bundle in self._terms if self.term(bundle) is not None}
        view = self.view
        return self._balance.next_move(mine, me.broker, view.candidates(), view.members(), self._now())

    async def report(self, usage: float) -> None:
        """Tell the other brokers this broker's load, if it has changed noticeably.

        :param usage: share of its capacity in use.
        :raises MetadataError: the store did not answer.
        """
        async with self._alone:  # not while this broker announces that it stops
            lease, me = self._valid(), self._me
            if lease is None or me is None or self._stopping or abs(usage - me.usage) < NOTICEABLE:
                return
            me = replace(me, usage=round(usage, 2))
            await self._store.put(paths.broker(me.broker), me.encode(), lease=lease.lease_id)
            if self._lease is lease:
                self._me = me

    @property
    def usage(self) -> float:
        """The load that the other brokers know of."""
        return 0.0 if self._me is None else self._me.usage

    # -- the lease -----------------------------------------------------------------------------------------------

    @property
    def _open_topics(self) -> BundleTopics:
        if self._topics is None:
            raise RuntimeError("a bundle is owned before the topics of this broker are bound")
        return self._topics

    def _valid(self) -> Lease | None:
        """The lease, if it is valid by this broker's clock."""
        lease = self._lease
        return lease if lease is not None and self._now() < lease.valid_until() else None

    def _now(self) -> float:
        return self._scheduler.monotonic_ms() / 1000

    async def _register(self) -> None:
        lease = await self._store.lease(self._lease_seconds)
        try:
            await self._tell(lease)
        except BaseException:
            await lease.revoke()
            raise
        self._lease = lease

    async def _tell(self, lease: Lease) -> None:
        """Write this broker's current record."""
        me = replace(self._described(f"{lease.lease_id:x}", self._stopping), usage=self.usage)
        await self._store.put(paths.broker(me.broker), me.encode(), lease=lease.lease_id)
        self._me = me

    async def _keep(self) -> None:
        """Keep a lease: get one when there is none, and end all terms when it ends."""
        while True:
            if (lease := self._lease) is None:
                if self._stopping:
                    return
                try:
                    await self._register()
                except MetadataError as error:
                    log.warning("this broker cannot own topics: %s", error)
                    await self._pause(RETRY_SECONDS)
                continue
            left = lease.valid_until() - self._now()
            if left > 0:
                await self._pause(min(left, self._lease_seconds / LOOKS_PER_LEASE))
            elif self._lease is lease:
                log.error("the lease on this broker's bundles ended: dropping %d bundles", len(self._terms))
                self._lease = self._me = None
                for bundle in self._terms:
                    self._ended(bundle)
                self.on_seen(None)
                await lease.revoke()

    def _ended(self, bundle: Bundle) -> None:
        if self._terms.happens(bundle, Event.ENDED) is Action.DROP:
            self._scheduler.spawn(self._drop(bundle), f"drop {bundle}")

    async def _drop(self, bundle: Bundle) -> None:
        try:
            await self._open_topics.drop(bundle)
        finally:
            self._terms.happens(bundle, Event.CLOSED)

    # -- the store -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._store.watch(paths.ROOT):
                    if changes:
                        touched = self.view.apply(changes)
                        self.on_seen(namespaces_of(changes))
                    else:
                        self.view = View.of(await self._store.scan(paths.ROOT))
                        touched = [*self._terms, *self._waiting.bundles, *self._leaving.bundles, *self.view.wishes]
                        self.on_seen(None)
                    for bundle in touched:
                        self._look(bundle)
            except MetadataError as error:
                log.warning("changes of bundle owners go unnoticed for now: %s", error)
                await self._pause(RETRY_SECONDS)

    def _look(self, bundle: Bundle) -> None:
        """React to a change of an owner's record. The watch may lag behind our own writes, so a record that the view
        lacks is read from the store."""
        owner, me = self.view.owners.get(bundle), self._me
        if owner is not None and me is not None and owner.session == me.session:
            self._look_at_own(bundle, owner)
        if self.view.wishes.get(bundle) is None:
            self._leaving.wake(bundle)
        alive = self.view.owner(bundle)
        if alive is None or alive.broker == self.name:
            self._waiting.wake(bundle)
        if self._terms.held(bundle) is not None and (owner is None or me is None or owner.session != me.session):
            self._scheduler.spawn(self._verify(bundle), "verify the owner of a bundle")

    def _look_at_own(self, bundle: Bundle, owner: OwnerRecord) -> None:
        """This broker is on record as the owner. If another one handed the bundle over, it is served from now on.

        What this broker claims or splits by itself is not announced. The watch may also tell of a term that is over.
        """
        if self.view.wishes.get(bundle) != self.name or self._valid() is None or bundle in self._changing:
            return
        term = Term(owner.fence, self.view.versions[bundle])
        if (
            not self._terms.is_over(bundle, owner.fence)
            and self._terms.happens(bundle, Event.GIVEN, term) is Action.SERVE
        ):
            self._open_topics.gained(bundle)
            log.info("owns %s in term %d, handed over by another broker", bundle, owner.fence)
        held = self._terms.term(bundle)
        if held is not None and held.fence == owner.fence and bundle not in self._arriving:
            self._arriving.add(bundle)
            self._scheduler.spawn(self._take_in(bundle, held), f"open the topics of {bundle}")

    async def _take_in(self, bundle: Bundle, term: Term) -> None:
        try:
            await self._open_topics.open(bundle)
            if self._terms.term(bundle) is term and bundle not in self._next:
                with suppress(MetadataError):  # nothing depends on it: the other broker waits no longer than a while
                    await self._claims.arrived(bundle, term)
        finally:
            self._arriving.discard(bundle)

    async def _verify(self, bundle: Bundle) -> None:
        term = self._terms.held(bundle)
        if term is None or bundle in self._changing:
            return
        try:
            holds = await self._claims.holds(bundle, term)
        except MetadataError:
            return  # the lease decides
        if not holds and self._terms.held(bundle) is term and bundle not in self._changing:
            log.error("lost %s, owned in term %d: its record is gone or names another broker", bundle, term.fence)
            self._ended(bundle)

    async def _pause(self, seconds: float) -> None:
        await later(self._scheduler, seconds)
