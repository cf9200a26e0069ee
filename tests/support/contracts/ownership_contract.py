# SPDX-License-Identifier: Apache-2.0
"""What holds for brokers of a region on every metadata store that they can share.

A test module derives a class and provides the fixture ``connect``, which connects a broker to the shared metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from meridian_broker.metadata.store import Check, Committed, Delete, MetadataStore, MetadataUnavailable, Put, Record
from meridian_broker.ownership import handing_over, paths
from meridian_broker.ownership.bundles import Bundle, Bundles, NotDivisible, place_of
from meridian_broker.ownership.handing_over import MOVES
from meridian_broker.ownership.owner import NotServing
from meridian_broker.ownership.records import BrokerRecord, OwnerRecord
from meridian_broker.ownership.transactions import MANY, NoSuchBundle, OwnedElsewhere
from support.contracts.metadata_contract import wait_until
from support.contracts.ownership_brokers import BUNDLES, FLOOR, OwningBroker, owning, topics

Connect = Callable[[], Awaitable[MetadataStore]]
NAMESPACE = "public/default"
FIRST = Bundles.equal(NAMESPACE, BUNDLES).every()[0]


async def three(stack: AsyncExitStack, connect: Connect) -> list[OwningBroker]:
    brokers = [await stack.enter_async_context(owning(name, await connect())) for name in ("a", "b", "c")]
    for broker in brokers:
        await wait_until(lambda broker=broker: len(broker.owner.view.brokers) == 3)  # type: ignore[misc]
    return brokers


def _name(broker: BrokerRecord | None) -> str:
    return "" if broker is None else broker.broker


def _owner(broker: OwningBroker, bundle: Bundle) -> str:
    """The owner on record, as far as the broker has seen."""
    record = broker.owner.view.owners.get(bundle)
    return "" if record is None else record.broker


class LosesAnswers:
    """A store that commits the next transaction, but loses its answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.is_losing = False
        self.falls_silent = False
        """Whether it answers no question about a record after that, while this is set."""
        self._has_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        done = await self._store.transact(checks, operations)
        if self.is_losing:
            self.is_losing, self._has_lost = False, True
            raise MetadataUnavailable("the answer was lost")
        return done

    async def get(self, path: str) -> Record | None:
        if self._has_lost and self.falls_silent:
            raise MetadataUnavailable("no answer")
        return await self._store.get(path)


class AnswersLate:
    """A store whose transactions wait while ``may_go_on`` is not set."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        self.asked += 1
        await self.may_go_on.wait()
        return await self._store.transact(checks, operations)


class OwningContract:
    async def test_each_topic_has_one_owner_whoever_is_asked(self, connect: Connect) -> None:
        async with AsyncExitStack() as stack:
            brokers = await three(stack, connect)
            names = [name for number in range(5) for name in topics(12, f"public/space-{number}")]

            async def looked_up(name: Any) -> str:
                """Look up like a client: ask any broker, and follow redirects."""
                asked, authoritative = brokers[hash(name) % 3], False
                while True:
                    found = await asked.owner.locate(name, authoritative=authoritative)
                    if found.owns:
                        return found.broker.broker
                    asked, authoritative = next(one for one in brokers if one.name == found.broker.broker), True

            owners = dict(zip(names, await asyncio.gather(*map(looked_up, names)), strict=True))
            for name, owner in owners.items():
                assert [broker.name for broker in brokers if await broker.owns(name)] == [owner]
            assert set(owners.values()) == {"a", "b", "c"}
            terms = [broker.owner.term(bundle) for broker in brokers for bundle in broker.owner.owned()]
            fences = sorted(term.fence for term in terms if term is not None)
            assert fences == list(range(FLOOR + 1, FLOOR + 1 + len(fences)))

    async def test_bundles_without_an_owner_are_taken_many_at_a_time(self, connect: Connect) -> None:
        store = AnswersLate(await connect())
        async with owning("a", store) as a:
            for number in range(MANY // BUNDLES):
                await a.owner.bundles(f"public/space-{number}")
            before = store.asked
            await a.owner.take_vacant()
            assert len(a.owner.owned()) == MANY
            assert store.asked - before == 2, "two transactions: the first bundle, then all that waited meanwhile"

    async def test_each_term_has_a_greater_fence(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            fences = []
            for _ in range(2):
                for one, other in ((a, b), (b, a)):
                    fences.append((await one.owner.acquire(FIRST)).fence)
                    with pytest.raises(OwnedElsewhere) as refused:
                        await other.owner.acquire(FIRST)
                    assert refused.value.owner.broker == one.name
                    await one.owner.give_up(FIRST)
                    assert one.owner.term(FIRST) is None
            assert fences == sorted(set(fences))
            assert a.topics.closed == b.topics.closed == [FIRST, FIRST]
            assert a.topics.dropped == []

    async def test_a_bundle_is_not_free_before_its_topics_are_closed(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            await a.owner.acquire(FIRST)
            inside = next(name for name in topics(40) if place_of(name) in FIRST)
            a.topics.may_close.clear()
            giving = asyncio.create_task(a.owner.give_up(FIRST, "b"))
            await wait_until(lambda: bool(a.topics.closed))
            assert _name(a.owner.next_owner(inside)) == "b"
            await wait_until(lambda: b.owner.view.wishes.get(FIRST) == "b" and FIRST in b.owner.view.owners)
            to = await a.owner.locate(inside)
            assert (to.broker.broker, to.owns) == ("b", False)
            waiting = asyncio.create_task(b.owner.locate(inside))
            assert a.owner.term(FIRST) is None
            with pytest.raises(NotServing):
                await a.owner.acquire(FIRST)
            with pytest.raises(OwnedElsewhere):
                await b.owner.acquire(FIRST)
            a.topics.may_close.set()
            await giving
            assert a.owner.next_owner(inside) is None
            assert (await waiting).owns
            assert b.owner.owned() == [FIRST]

    async def test_a_bundle_is_not_acquired_while_it_is_being_released(self, connect: Connect) -> None:
        """The store names this broker, but only until the release ends."""
        store = AnswersLate(await connect())
        async with owning("a", store) as a:
            await a.owner.acquire(FIRST)
            store.may_go_on.clear()
            before = store.asked
            giving = asyncio.create_task(a.owner.give_up(FIRST))
            await wait_until(lambda: store.asked > before)
            with pytest.raises(NotServing):
                await a.owner.acquire(FIRST)
            store.may_go_on.set()
            await giving
            assert a.owner.owned() == []

    async def test_a_bundle_goes_to_the_broker_that_it_is_handed_to(self, connect: Connect) -> None:
        async with AsyncExitStack() as stack:
            brokers = await three(stack, connect)
            last = brokers[0]
            await last.owner.acquire(FIRST)
            for to in (*brokers[1:], *brokers):
                await last.owner.give_up(FIRST, to.name)
                await wait_until(lambda to=to: FIRST in to.owner.owned())  # type: ignore[misc]
                await wait_until(lambda to=to: FIRST not in to.owner.view.wishes)  # type: ignore[misc]
                assert to.topics.opened[-1] == to.topics.gains[-1] == FIRST
                last = to
            fences = [term.fence for one in brokers if (term := one.owner.term(FIRST)) is not None]
            assert fences == [FLOOR + 6]

    async def test_a_bundle_that_is_handed_over_is_never_free(self, connect: Connect) -> None:
        """No other broker can take it in between, and the next owner need not acquire it."""
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            before = await a.owner.acquire(FIRST)
            owners = list[str]()
            watching = asyncio.create_task(self._watch_owners(await connect(), owners))
            await wait_until(lambda: owners == ["watching"])
            await a.owner.give_up(FIRST, "b")
            await wait_until(lambda: b.owner.owned() == [FIRST] and len(owners) > 1)
            watching.cancel()
            assert owners == ["watching", "b"]
            after = b.owner.term(FIRST)
            assert after is not None
            assert after.fence > before.fence
            assert a.owner.owned() == a.topics.dropped == []

    async def _watch_owners(self, store: MetadataStore, owners: list[str]) -> None:
        async for changes in store.watch(paths.owner(FIRST)):
            for path, record in ((one.path, one.record) for one in changes):
                owners.append("nobody" if record is None else OwnerRecord.decode(path, record.value).broker)
            if not changes:
                owners.append("watching")

    async def test_a_bundle_whose_next_owner_has_lost_its_lease_is_free(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            before = await a.owner.acquire(FIRST)
            a.topics.may_close.clear()
            giving = asyncio.create_task(a.owner.give_up(FIRST, "b"))
            await wait_until(lambda: bool(a.topics.closed))
            lease, alive = b.owner._membership.lease, a.owner.view.brokers[paths.broker("b")]
            assert lease is not None
            await lease.revoke()
            await wait_until(lambda: a.owner.view.brokers.get(paths.broker("b")) != alive)
            a.owner.view.brokers[paths.broker("b")] = alive  # a has not heard of the lost lease yet
            a.topics.may_close.set()
            await giving
            async with owning("c", await connect()) as c:
                await wait_until(lambda: FIRST not in c.owner.view.owners)
                assert (await c.owner.acquire(FIRST)).fence > before.fence

    async def test_a_broker_that_lost_a_bundle_does_not_hand_it_over(self, connect: Connect) -> None:
        async with AsyncExitStack() as stack:
            a, b, c = await three(stack, connect)
            await a.owner.acquire(FIRST)
            a.topics.may_close.clear()
            giving = asyncio.create_task(a.owner.give_up(FIRST, "b"))
            await wait_until(lambda: bool(a.topics.closed))
            term = a.owner._holding.terms.held(FIRST)
            assert term is not None
            await (await connect()).delete(paths.owner(FIRST))
            later = await c.owner.acquire(FIRST)
            to = a.owner.view.alive("b")
            assert to is not None
            await a.owner._transactions.transfer(FIRST, term, to, later.fence - 1)
            a.topics.may_close.set()
            await giving
            assert c.owner.term(FIRST) == later
            assert b.owner.owned() == []

    async def test_a_broker_that_stops_hands_over_a_few_bundles_at_a_time(self, connect: Connect) -> None:
        """The other bundles are served until the next owner has opened the topics of these."""
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            namespaces = ("public/default", "public/more", "public/most")
            every = [bundle for one in namespaces for bundle in (await a.owner.bundles(one)).every()]
            for bundle in every:
                await a.owner.acquire(bundle)
            b.topics.may_open.clear()
            moving = asyncio.create_task(a.owner.hand_over())
            await wait_until(lambda: len(b.topics.opened) == MOVES)
            assert len(a.topics.closed) == MOVES
            b.topics.may_open.set()
            await moving
            assert b.owner.owned() == sorted(every)
            assert sorted(b.topics.opened) == sorted(a.topics.closed) == sorted(every)

    async def test_a_broker_that_stops_hands_everything_over(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            every = (await a.owner.bundles(NAMESPACE)).every()
            for bundle in every:
                await a.owner.acquire(bundle)
            await a.owner.leave()
            assert a.topics.closed == []
            assert {_name(a.owner.next_owner(name)) for name in topics(40)} == {"b"}
            await a.owner.close()
            assert set(a.topics.closed) == set(every)
            assert a.topics.dropped == a.owner.owned() == []
            await wait_until(lambda: b.owner.owned() == every)
            found = await a.owner.locate(topics(1)[0], authoritative=True)
            assert found.broker.broker == "b"
            await wait_until(lambda: paths.broker("a") not in b.owner.view.brokers)
            assert b.owner.owned() == every

    async def test_a_broker_that_stops_does_not_wait_for_long(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handing_over, "ARRIVAL_SECONDS", 3600.0)
        monkeypatch.setattr(handing_over, "PACED_SECONDS", 0.0)
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            every = (await a.owner.bundles(NAMESPACE)).every()
            for bundle in every:
                await a.owner.acquire(bundle)
            b.topics.may_open.clear()
            async with asyncio.timeout(20):
                await a.owner.hand_over()
            await wait_until(lambda: b.owner.owned() == every)

    async def test_the_parts_of_a_split_bundle_keep_their_owner_and_others_see_them(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            term = await a.owner.acquire(FIRST)
            await a.owner.split(FIRST, FIRST.middle)
            parts = list(FIRST.parts(FIRST.middle))
            assert a.owner.owned() == parts
            assert [one.fence for part in parts if (one := a.owner.term(part)) is not None] == [term.fence] * 2
            with pytest.raises(NoSuchBundle):
                await b.owner.acquire(FIRST)
            for name in topics(40):
                if b.owner.view.bundles[NAMESPACE].of(name) in (FIRST, *parts):
                    assert (await b.owner.locate(name)).broker.broker == "a"
            with pytest.raises(NotServing):
                await b.owner.split(parts[0], parts[0].middle)
            with pytest.raises(NotDivisible):
                await a.owner.split(parts[0], FIRST.middle)
            await a.owner.give_up(parts[0])
            assert (await b.owner.acquire(parts[0])).fence > term.fence
            assert a.owner.owned() == parts[1:]
            assert a.topics.dropped == []

    async def test_what_another_broker_took_away_is_dropped(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a:
            await a.owner.acquire(FIRST)
            await (await connect()).delete(paths.owner(FIRST))
            await wait_until(lambda: a.topics.dropped == [FIRST] and not a.owner.owned())
            assert a.topics.closed == []

    async def test_a_later_term_waits_until_an_earlier_one_has_closed_its_topics(self, connect: Connect) -> None:
        """What is still being closed when the lease ends would close the later term's topics, and forget its votes."""
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(b.owner.view.brokers) == 2)
            before = await a.owner.acquire(FIRST)
            a.topics.may_close.clear()
            first = asyncio.create_task(a.owner.give_up(FIRST))
            await wait_until(lambda: len(a.topics.closed) == 1)
            await a.store.delete(paths.owner(FIRST))
            await wait_until(lambda: a.topics.dropped == [FIRST] and not a.owner.owned())
            await asyncio.gather(*(task for task in a.scheduler._tasks if task.get_name() == f"drop {FIRST}"))
            with pytest.raises(NotServing):
                await a.owner.acquire(FIRST)
            await b.owner.acquire(FIRST)
            await b.owner.give_up(FIRST, "a")
            await wait_until(lambda: _owner(a, FIRST) == "a")
            assert a.owner.term(FIRST) is None
            a.topics.may_close.set()
            await first
            await a.owner.release_strays()
            again = await a.owner.acquire(FIRST)
            assert again.fence > before.fence
            assert a.topics.gains == [FIRST, FIRST]
            await a.owner.give_up(FIRST)
            assert a.topics.closed == [FIRST, FIRST]
            assert a.owner.owned() == []

    async def test_a_later_term_waits_until_an_earlier_one_has_announced_its_next_owner(self, connect: Connect) -> None:
        """It closes the topics afterwards."""
        store = AnswersLate(await connect())
        async with owning("a", store) as a, owning("b", await connect()):
            await wait_until(lambda: len(a.owner.view.brokers) == 2)
            await a.owner.acquire(FIRST)
            store.may_go_on.clear()
            before = store.asked
            first = asyncio.create_task(a.owner.give_up(FIRST, "b"))
            await wait_until(lambda: store.asked > before)
            await store.delete(paths.owner(FIRST))
            await wait_until(lambda: a.topics.dropped == [FIRST] and not a.owner.owned())
            await asyncio.gather(*(task for task in a.scheduler._tasks if task.get_name() == f"drop {FIRST}"))
            with pytest.raises(NotServing):
                async with asyncio.timeout(5):
                    await a.owner.acquire(FIRST)
            store.may_go_on.set()
            await first
            await a.owner.acquire(FIRST)
            assert a.topics.closed == [FIRST]

    async def test_a_part_is_not_taken_over_while_topics_of_the_whole_are_dropped(self, connect: Connect) -> None:
        """The bundle was split while its earlier owner was suspended; dropping its topics would drop the part's."""
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            await wait_until(lambda: len(b.owner.view.brokers) == 2)
            await a.owner.acquire(FIRST)
            a.topics.may_drop.clear()
            await a.store.delete(paths.owner(FIRST))
            await wait_until(lambda: a.topics.dropped == [FIRST])
            await b.owner.acquire(FIRST)
            await b.owner.split(FIRST, FIRST.middle)
            part = FIRST.parts(FIRST.middle)[0]
            await b.owner.give_up(part, "a")
            await wait_until(lambda: _owner(a, part) == "a")
            assert a.owner.term(part) is None
            assert a.topics.gains == [FIRST]
            a.topics.may_drop.set()
            await wait_until(lambda: not list(a.owner._holding.terms))
            await a.owner.release_strays()
            await wait_until(lambda: part in a.owner.vacant())
            await a.owner.take_vacant()
            assert part in a.owner.owned()

    async def test_a_lease_that_is_gone_ends_every_term(self, connect: Connect) -> None:
        async with owning("a", await connect(), lease_seconds=4.0) as a:
            before = await a.owner.acquire(FIRST)
            lease, told = a.owner._membership.lease, list[bool]()
            a.owner.on_seen = lambda namespaces: told.append(a.owner.is_alive) if namespaces is None else None
            assert lease is not None
            await lease.revoke()
            assert a.owner.term(FIRST) is None  # at once, even before the loss is noticed
            await wait_until(lambda: a.topics.dropped == [FIRST] and not a.owner.owned())
            await wait_until(lambda: a.owner._membership.lease not in (None, lease))
            assert False in told and a.owner.is_alive
            assert (await a.owner.acquire(FIRST)).fence > before.fence

    async def test_an_acquisition_whose_answer_was_lost_is_found_again(self, connect: Connect) -> None:
        store = LosesAnswers(await connect())
        async with owning("a", store) as a, owning("b", await connect()) as b:
            store.is_losing = True
            with pytest.raises(MetadataUnavailable):
                await a.owner.acquire(FIRST)
            assert a.owner.term(FIRST) is None
            with pytest.raises(OwnedElsewhere):
                await b.owner.acquire(FIRST)
            assert (await a.owner.acquire(FIRST)).fence == FLOOR + 1

    async def test_a_split_whose_answer_was_lost_drops_the_bundle_and_finds_its_parts_again(
        self, connect: Connect
    ) -> None:
        store = LosesAnswers(await connect())
        async with owning("a", store) as a:
            term = await a.owner.acquire(FIRST)
            store.is_losing = True
            with pytest.raises(MetadataUnavailable):
                await a.owner.split(FIRST, FIRST.middle)
            await wait_until(lambda: a.topics.dropped == [FIRST])
            for part in FIRST.parts(FIRST.middle):
                assert (await a.owner.acquire(part)).fence == term.fence

    async def test_parts_of_a_split_bundle_wait_until_it_is_known_that_it_was_split_and_its_topics_are_closed(
        self, connect: Connect
    ) -> None:
        store = LosesAnswers(await connect())
        async with owning("a", store) as a:
            term = await a.owner.acquire(FIRST)
            store.is_losing = store.falls_silent = True
            with pytest.raises(MetadataUnavailable):
                await a.owner.split(FIRST, FIRST.middle)
            parts = FIRST.parts(FIRST.middle)
            await wait_until(lambda: all(part in a.owner.view.owners for part in parts))
            assert a.owner.term(FIRST) == term
            with pytest.raises(NotServing):
                await a.owner.acquire(parts[0])
            await a.owner.release_strays()
            store.falls_silent = False
            await wait_until(lambda: a.topics.dropped == [FIRST])
            for part in parts:
                assert (await a.owner.acquire(part)).fence == term.fence, "it was not given away meanwhile"

    async def test_two_brokers_decide_on_the_same_bundles(self, connect: Connect) -> None:
        async with owning("a", await connect()) as a, owning("b", await connect()) as b:
            found = await asyncio.gather(*(one.owner.bundles(NAMESPACE) for one in (a, b) for _ in range(5)))
            assert set(found) == {Bundles.equal(NAMESPACE, BUNDLES)}
