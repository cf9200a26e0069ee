# SPDX-License-Identifier: Apache-2.0
"""The names of a namespace's topics, as the store lists them."""

from __future__ import annotations

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_namespace
from meridian_broker.wire.pulsar.topic_name import TopicName


class Listing:
    """Names of a namespace's topics that are made when they are needed: a hundred thousand take a moment."""

    def __init__(self, domain: str, namespace: str, segments: list[str]) -> None:
        """:param segments: local names as segments of a path, sorted."""
        self._prefix = f"{domain}://{check_namespace(namespace)}/"
        self._segments = segments

    def __len__(self) -> int:
        return len(self._segments)

    def names(self, first: int, last: int) -> list[str]:
        """The full names of some of them."""
        return [self._prefix + keys.unescape(one) for one in self._segments[first:last]]


async def list_topics(access: Access, namespace: str, domain: str, folder: str) -> list[TopicName]:
    tenant, _, short = check_namespace(namespace).partition("/")
    return [TopicName(domain, tenant, short, keys.unescape(name)) for name in await access.store.children(folder)]
