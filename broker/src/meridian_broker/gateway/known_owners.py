# SPDX-License-Identifier: Apache-2.0
"""Who owns what in a region of several brokers, as this one knows it, in the form sent to other regions."""

from __future__ import annotations

from meridian_broker.ownership.owner import BundleOwner
from meridian_broker.replication.progress.messages import NamespaceOwners, RemoteBroker


class KnownOwners:
    """``OwnersSource`` (``gateway/owners_feed.py``)."""

    def __init__(self, owner: BundleOwner) -> None:
        self._owner = owner

    @property
    def is_current(self) -> bool:
        return self._owner.is_alive

    def brokers(self, listener: str) -> tuple[RemoteBroker, ...]:
        return tuple(
            RemoteBroker(one.broker, found.get("service_url", ""), found.get("service_url_tls", ""))
            for one in self._owner.view.brokers.values()
            for found in (one.addresses.get(listener, {}),)
        )

    def namespaces(self) -> list[str]:
        return list(self._owner.view.bundles)

    def owners(self, namespace: str) -> NamespaceOwners:
        bundles = self._owner.view.bundles.get(namespace)
        if bundles is None:
            return NamespaceOwners(namespace, (), ())
        found = [self._owner.view.owner(bundle) for bundle in bundles.every()]
        return NamespaceOwners(namespace, bundles.borders, tuple("" if one is None else one.broker for one in found))
