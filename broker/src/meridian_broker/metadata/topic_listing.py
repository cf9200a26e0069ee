# SPDX-License-Identifier: Apache-2.0
"""The names of a namespace's topics, as the store lists them."""

from __future__ import annotations

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_namespace
from meridian_broker.wire.pulsar.topic_name import TopicName


class Listing:
    """The names of a namespace's topics, built on demand, because building a hundred thousand takes a while."""

    def __init__(self, domain: str, namespace: str, segments: list[str]) -> None:
        """:param segments: local names as escaped path segments, sorted."""
        self._prefix = f"{domain}://{check_namespace(namespace)}/"
        self._domain = domain
        self._tenant, _, self._namespace = namespace.partition("/")
        self._segments = segments

    def __len__(self) -> int:
        return len(self._segments)

    def names(self, first: int, last: int) -> list[str]:
        """The full names from ``first`` to before ``last``."""
        return [self._prefix + keys.unescape(one) for one in self._segments[first:last]]

    def topic_names(self, first: int, last: int) -> list[TopicName]:
        """The same names, as values."""
        return [
            TopicName(self._domain, self._tenant, self._namespace, keys.unescape(one))
            for one in self._segments[first:last]
        ]


async def list_topics(access: Access, namespace: str, domain: str, folder: str) -> list[TopicName]:
    check_namespace(namespace)
    found = Listing(domain, namespace, await access.store.children(folder))
    return found.topic_names(0, len(found))


async def inhabited(access: Access, folder: str) -> frozenset[str]:
    """Namespaces that have anything in a folder, as ``tenant/namespace``. A store is asked once for each of their
    tenants, however many others there are."""
    found: set[str] = set()
    for tenant in await access.store.children(folder):
        for short in await access.store.children(f"{folder}/{tenant}"):
            found.add(f"{keys.unescape(tenant)}/{keys.unescape(short)}")
    return frozenset(found)
