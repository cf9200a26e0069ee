# SPDX-License-Identifier: Apache-2.0
"""Who owns what in the region, as last seen in the metadata store, and so perhaps out of date.

Lookups and placement can live with that. A decision that must be right is a transaction (``transactions.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from meridian_broker.metadata.records import decode
from meridian_broker.metadata.store import Change, MetadataError, Record
from meridian_broker.ownership import paths
from meridian_broker.ownership.bundles import Bundle, Bundles
from meridian_broker.ownership.placement import Candidate, choose
from meridian_broker.ownership.records import BrokerRecord, OwnerRecord

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


class View:
    """See the module's text. ``of`` builds it from a scan; ``apply`` keeps it up to date."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerRecord] = {}
        self.owners: dict[Bundle, OwnerRecord] = {}
        self.versions: dict[Bundle, int] = {}
        """Of the owners' records."""
        self.bundles: dict[str, Bundles] = {}
        """By namespace; a namespace that was never looked up has none yet."""
        self.wishes: dict[Bundle, str] = {}
        """The brokers that bundles are being handed to."""

    @classmethod
    def of(cls, found: Iterable[tuple[str, Record]]) -> View:
        view = cls()
        view.apply([Change(path, record) for path, record in found])
        return view

    def apply(self, changes: Iterable[Change]) -> list[Bundle]:
        """Apply changes. Returns the bundles whose owner, or whose announced next owner, changed."""
        touched: list[Bundle] = []
        for change in changes:
            try:
                if (bundle := self._apply(change.path, change.record)) is not None:
                    touched.append(bundle)
            except (MetadataError, ValueError) as error:
                log.error("ignoring an invalid ownership record: %s", error)
        return touched

    def _apply(self, path: str, record: Record | None) -> Bundle | None:
        if path.startswith(paths.BROKERS):
            _set(self.brokers, path, None if record is None else BrokerRecord.decode(path, record.value))
        elif path.startswith(paths.BUNDLES):
            namespace = paths.namespace_of(path)
            borders = None if record is None else Bundles.parse(namespace, decode(path, record.value)[0])
            _set(self.bundles, namespace, borders)
        elif (bundle := paths.bundle_of(path)) is not None:
            if path.startswith(paths.OWNERS):
                _set(self.owners, bundle, None if record is None else OwnerRecord.decode(path, record.value))
                _set(self.versions, bundle, None if record is None else record.version)
            else:
                _set(self.wishes, bundle, None if record is None else str(decode(path, record.value)[0]))
            return bundle
        return None

    def owner(self, bundle: Bundle) -> BrokerRecord | None:
        """The owner, if it is alive; None: no live owner is known."""
        record = self.owners.get(bundle)
        return None if record is None else self.broker(record.broker, record.session)

    def broker(self, name: str, session: str) -> BrokerRecord | None:
        """A broker, if it is alive in this session; None: it is not known to be."""
        found = self.brokers.get(paths.broker(name))
        return found if found is not None and found.session == session else None

    def chosen(self, bundle: Bundle) -> BrokerRecord | None:
        """The broker that should take a bundle that has no owner; None: all brokers are stopping, or none is alive."""
        alive = self._alive()
        if (wished := self.wishes.get(bundle)) in alive:
            return alive[wished]
        chosen = choose(bundle, self.candidates())
        return None if chosen is None else alive[chosen]

    def alive(self, broker: str) -> BrokerRecord | None:
        """A broker that is alive and not stopping; None: it is stopping, or not known to be alive."""
        return self._alive().get(broker)

    def candidates(self) -> list[Candidate]:
        """The brokers that may get bundles. Bundles on their way to a broker count as its own."""
        counts = Counter(record.broker for record in self.owners.values())
        counts.update(broker for bundle, broker in self.wishes.items() if bundle not in self.owners)
        return [Candidate(one.broker, counts[one.broker], one.usage) for one in self._alive().values()]

    def members(self) -> tuple[frozenset[tuple[str, str]], int]:
        """The brokers that may get bundles, with their sessions, and the number of bundles."""
        brokers = frozenset((one.broker, one.session) for one in self._alive().values())
        return brokers, sum(len(bundles.borders) - 1 for bundles in self.bundles.values())

    def _alive(self) -> dict[str, BrokerRecord]:
        return {one.broker: one for one in self.brokers.values() if not one.draining}


def namespaces_of(changes: Iterable[Change]) -> set[str]:
    """The namespaces whose bundles or owners are in these changes."""
    found = set()
    for change in changes:
        if change.path.startswith(paths.BUNDLES):
            found.add(paths.namespace_of(change.path))
        elif (bundle := paths.bundle_of(change.path)) is not None:
            found.add(bundle.namespace)
    return found


def _set(at: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        at.pop(key, None)
    else:
        at[key] = value
