# SPDX-License-Identifier: Apache-2.0
"""The transactions that acquire, release and split bundles.

Each one checks that the bundle still exists: the borders of a namespace are a separate record, created by the first
broker that looks up one of its topics. So two brokers never own overlapping ranges. An acquisition also advances the
region's term counter, so its fence is greater than that of every earlier term.

A write whose outcome is unknown can safely be repeated: an owner's record names the *session* of a broker, which is
one lease of one process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from meridian_broker.metadata.errors import Contended
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import (
    ABSENT,
    Check,
    Delete,
    LeaseExpired,
    MetadataStore,
    Put,
    Record,
    VersionConflict,
)
from meridian_broker.ownership import paths
from meridian_broker.ownership.bundles import Bundle, Bundles, NotDivisible
from meridian_broker.ownership.records import BrokerRecord, OwnerRecord
from meridian_broker.ownership.terms import Term

ATTEMPTS: Final = 64
"""How often a transaction is attempted while other brokers keep getting in first."""
MANY: Final = 60
"""Bundles acquired in one transaction. Each takes two operations, and two checks if it is the only one of its
namespace; etcd allows 128 of either. A broker that dies leaves many to acquire, and a later transaction waits while
etcd serves the topics opened by the earlier ones."""


class OwnedElsewhere(Exception):
    """Another broker owns the bundle, or an earlier session of this one does."""

    def __init__(self, owner: OwnerRecord) -> None:
        super().__init__(f"{owner.broker} owns it")
        self.owner = owner


class NoSuchBundle(Exception):
    """The bundle was split."""


async def newest_fence(store: MetadataStore) -> int:
    """The fence of the region's newest term; 0 if there was none yet. :raises MetadataError: it cannot be read."""
    counter = await store.get(paths.FENCE)
    return 0 if counter is None else int(decode(paths.FENCE, counter.value)[0])


async def brokers_alive(store: MetadataStore) -> list[str]:
    """The brokers that share the region and that the store believes alive, sorted.

    :raises MetadataError: they cannot be read.
    """
    return sorted(BrokerRecord.decode(path, found.value).broker for path, found in await store.scan(paths.BROKERS))


class BundleTransactions:
    """The transactions of one broker."""

    def __init__(
        self, store: MetadataStore, broker: str, count: Callable[[str], int], floor: Callable[[], Awaitable[int]]
    ) -> None:
        """
        :param count: returns the number of bundles of a new namespace.
        :param floor: reads the greatest fence used before there were terms, when the region had a single broker.
        """
        self._store = store
        self._broker = broker
        self._count = count
        self._floor = floor

    async def bundles(self, namespace: str) -> Bundles:
        """The bundles of a namespace, created if there are none yet. :raises MetadataError: they cannot be read."""
        path = paths.bundles(namespace)
        found = await self._store.get(path)
        if found is None:
            texts = Bundles.equal(namespace, self._count(namespace)).texts()
            try:
                await self._store.put(path, encode(texts), expected=ABSENT)
            except VersionConflict:
                return await self.bundles(namespace)
            return Bundles.parse(namespace, texts)
        return _parsed(namespace, found)

    async def acquire(
        self, bundles: Sequence[Bundle], session: str, lease: int
    ) -> dict[Bundle, Term | OwnedElsewhere | NoSuchBundle]:
        """Acquire bundles, ``MANY`` at most, for as long as the lease is valid. Idempotent: a bundle acquired before is
        returned with its term. Those that this session cannot own are returned with the reason.

        :raises MetadataError: it is unknown which were acquired.
        """
        for _ in range(ATTEMPTS):
            found, free, checks = await self._standing(bundles, session)
            if not free:
                return found
            first, unchanged = await self._next_fence()
            await self._store.transact(
                [*checks, unchanged],
                [
                    *(
                        Put(paths.owner(bundle), OwnerRecord(self._broker, session, fence).encode(), lease)
                        for fence, bundle in enumerate(free, first)
                    ),
                    *(Delete(paths.wish(bundle)) for bundle in free),
                    Put(paths.FENCE, encode(first + len(free) - 1)),
                ],
            )
        raise Contended(f"acquiring {bundles[0]}: other brokers got in first {ATTEMPTS} times: try again later")

    async def _next_fence(self) -> tuple[int, Check]:
        """A fence greater than that of every term so far, and the check that it still is."""
        counter = await self._store.get(paths.FENCE)
        newest = 0 if counter is None else int(decode(paths.FENCE, counter.value)[0])
        first = max(newest, await self._floor()) + 1
        return first, Check(paths.FENCE, ABSENT if counter is None else counter.version)

    async def _standing(
        self, bundles: Sequence[Bundle], session: str
    ) -> tuple[dict[Bundle, Term | OwnedElsewhere | NoSuchBundle], list[Bundle], list[Check]]:
        """The outcome for those that are owned or gone, the free ones, and the checks that these are still free."""
        namespaces = sorted({bundle.namespace for bundle in bundles})
        records = await self._store.get_many(
            [*map(paths.owner, bundles), *(paths.bundles(namespace) for namespace in namespaces)]
        )
        borders = dict(zip(namespaces, records[len(bundles) :], strict=True))
        found: dict[Bundle, Term | OwnedElsewhere | NoSuchBundle] = {}
        free: list[Bundle] = []
        for bundle, record in zip(bundles, records, strict=False):
            if record is None:
                if await self._exists(bundle, borders):
                    free.append(bundle)
                else:
                    found[bundle] = NoSuchBundle(f"{bundle} no longer exists: it was split")
                continue
            owner = OwnerRecord.decode(paths.owner(bundle), record.value)
            is_ours = owner.session == session
            found[bundle] = Term(owner.fence, record.version) if is_ours else OwnedElsewhere(owner)
        present = {namespace: record for namespace, record in borders.items() if record is not None}
        checks = [Check(paths.owner(bundle), ABSENT) for bundle in free]
        checks += [Check(paths.bundles(namespace), record.version) for namespace, record in present.items()]
        return found, free, checks

    async def _exists(self, bundle: Bundle, borders: dict[str, Record | None]) -> bool:
        """Whether it is a bundle of its namespace.

        :param borders: the records of namespaces as read; a missing one is created, and added.
        """
        record = borders[bundle.namespace]
        if record is None:
            await self.bundles(bundle.namespace)
            record = borders[bundle.namespace] = await self._store.get(paths.bundles(bundle.namespace))
        return record is not None and _parsed(bundle.namespace, record).at(bundle.lower) == bundle

    async def reserve(self, count: int) -> int:
        """Take ``count`` fences for the next owners of bundles that this broker hands over; returns the first one.

        This is safe because any later owner of these bundles takes a greater fence.

        :raises MetadataError: the store did not answer.
        """
        for _ in range(ATTEMPTS):
            first, unchanged = await self._next_fence()
            if await self._store.transact([unchanged], [Put(paths.FENCE, encode(first + count - 1))]):
                return first
        raise Contended(f"handing over {count} bundles: other brokers got in first {ATTEMPTS} times: try again later")

    async def announce(self, bundle: Bundle, term: Term, to: str) -> None:
        """Announce the broker that is about to take over a bundle; does nothing if the term is over.

        :raises MetadataError: the store did not answer.
        """
        await self._store.transact([Check(paths.owner(bundle), term.version)], [Put(paths.wish(bundle), encode(to))])

    async def transfer(self, bundle: Bundle, term: Term, to: BrokerRecord, fence: int) -> None:
        """End a term and begin the next owner's in one write. The announcement stays until that broker removes it
        (``arrived``).

        :param fence: was reserved during the term that ends.
        :raises LeaseExpired: that broker is not alive. The term continues.
        :raises MetadataError: it is unknown whether the term ended; it ends with the lease at the latest.
        """
        if to.lease is None:
            raise LeaseExpired(f"{to.broker} does not name its lease")
        path, owner = paths.owner(bundle), OwnerRecord(to.broker, to.session, fence)
        announced = Put(paths.wish(bundle), encode(to.broker))  # again: the next owner serves only what is announced
        await self._store.transact([Check(path, term.version)], [Put(path, owner.encode(), to.lease), announced])

    async def arrived(self, bundle: Bundle, term: Term) -> None:
        """Note that a bundle handed to this broker has arrived; does nothing if its term is over.

        :raises MetadataError: the store did not answer.
        """
        await self._store.transact([Check(paths.owner(bundle), term.version)], [Delete(paths.wish(bundle))])

    async def release(self, bundle: Bundle, term: Term, to: str = "") -> None:
        """End a term, so that other brokers may acquire the bundle.

        :param to: the broker that should be the next owner; empty: any.
        :raises MetadataError: it is unknown whether the term ended; it ends with the lease at the latest.
        """
        path = paths.owner(bundle)
        wish = [Put(paths.wish(bundle), encode(to))] if to else []
        await self._store.transact([Check(path, term.version)], [Delete(path), *wish])

    async def disown(self, bundle: Bundle, session: str) -> None:
        """Remove the owner's record of a bundle if it names this session.

        :raises MetadataError: it is unknown whether it was removed.
        """
        path = paths.owner(bundle)
        found = await self._store.get(path)
        if found is not None and OwnerRecord.decode(path, found.value).session == session:
            await self._store.transact([Check(path, found.version)], [Delete(path)])

    async def holds(self, bundle: Bundle, term: Term) -> bool:
        """Whether a term's record still exists. :raises MetadataError: it cannot be read."""
        found = await self._store.get(paths.owner(bundle))
        return found is not None and found.version == term.version

    async def split(self, bundle: Bundle, border: int, term: Term, session: str, lease: int) -> tuple[Bundles, Term]:
        """Split an owned bundle; its parts are owned in the same term, returned with the version of their records.

        :raises NotDivisible: it no longer exists, is no longer owned, or cannot be split there.
        :raises MetadataError: it is unknown whether it was split.
        """
        value = OwnerRecord(self._broker, session, term.fence).encode()
        for _ in range(ATTEMPTS):
            try:
                bundles, check = await self._current(bundle)
            except NoSuchBundle as error:
                raise NotDivisible(str(error)) from None
            after = bundles.split(bundle, border)
            parts = bundle.parts(border)
            if await self._store.transact(
                [check, Check(paths.owner(bundle), term.version)],
                [
                    Put(paths.bundles(bundle.namespace), encode(after.texts())),
                    Delete(paths.owner(bundle)),
                    *(Put(paths.owner(part), value, lease) for part in parts),
                ],
            ):
                found = await self._store.get(paths.owner(parts[0]))
                return after, Term(term.fence, term.version if found is None else found.version)
            if not await self.holds(bundle, term):
                raise NotDivisible(f"{bundle} is no longer owned by this broker")
        raise Contended(f"splitting {bundle}: other brokers got in first {ATTEMPTS} times: try again later")

    async def _current(self, bundle: Bundle) -> tuple[Bundles, Check]:
        """The namespace's bundles, and the check that they have not changed. :raises NoSuchBundle: it was split."""
        await self.bundles(bundle.namespace)
        path = paths.bundles(bundle.namespace)
        found = await self._store.get(path)
        bundles = None if found is None else _parsed(bundle.namespace, found)
        if found is None or bundles is None or bundles.at(bundle.lower) != bundle:
            raise NoSuchBundle(f"{bundle} no longer exists: it was split")
        return bundles, Check(path, found.version)


def _parsed(namespace: str, found: Record) -> Bundles:
    texts: Sequence[str] = decode(paths.bundles(namespace), found.value)[0]
    return Bundles.parse(namespace, texts)
