# SPDX-License-Identifier: Apache-2.0
"""The ledgers on the volume, by the topic that their labels name (``ledgers/labels.py``)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from meridian_broker.ledgers.labels import Label
from meridian_broker.ledgers.store import LedgerInfo, LedgerStore

log = logging.getLogger(__name__)


class Labelled(NamedTuple):
    """A ledger with a label."""

    ledger_id: int
    label: Label
    entries: int


class Labels:
    """The labelled ledgers of the volume by topic, as of the time when the first topic is opened.

    Ledgers created later are recorded by this broker. A topic's ledgers are forgotten when it is opened.
    """

    def __init__(
        self, store: LedgerStore | None, copied: Callable[[int], Awaitable[list[LedgerInfo]]] | None = None
    ) -> None:
        """
        :param store: None: the metadata store itself lists the ledgers, so there are none that it does not know.
        :param copied: returns the ledgers with greater ids that have a copy in an object store; None: there is none.
        """
        self._store = store
        self._copied = copied
        self._on_volume: frozenset[int] = frozenset()
        self._by_topic: dict[str, list[Labelled]] | None = None
        self._copies: dict[str, list[Labelled]] = {}
        self._copies_after: int | None = None
        """``_copies`` has those with greater ids; None: nobody asked yet."""

    @property
    def are_on_record(self) -> bool:
        """The metadata store lists all ledgers: both are restored together, and it bounds how many there can be."""
        return self._store is None

    async def of(self, topic: str) -> list[Labelled]:
        """In order of creation."""
        return (await self._all()).get(topic, [])

    async def left(self, topic: str, after: int) -> list[Labelled]:
        """Ledgers of the topic with greater ids of which only copies in the object store are left.

        :raises LedgerUnreadable: the object store does not answer.
        """
        if self._copied is None:
            return []
        if self._copies_after is None or after < self._copies_after:
            self._copies = _by_topic(await self._copied(after))
            self._copies_after = after
        found = self._copies.get(topic, [])
        return [one for one in found if one.ledger_id > after and one.ledger_id not in self._on_volume]

    async def topics(self) -> list[str]:
        """The topics that have ledgers."""
        return list(await self._all())

    def forget(self, topic: str) -> None:
        """The topic is open: its ledgers are recorded."""
        if self._by_topic is not None:
            self._by_topic.pop(topic, None)
        self._copies.pop(topic, None)

    async def _all(self) -> dict[str, list[Labelled]]:
        if self._by_topic is None:
            ledgers = [] if self._store is None else await self._store.list()
            self._on_volume = frozenset(info.ledger_id for info in ledgers)
            self._by_topic = _by_topic(ledgers)
        return self._by_topic


def _by_topic(ledgers: Iterable[LedgerInfo]) -> dict[str, list[Labelled]]:
    found: dict[str, list[Labelled]] = {}
    for info in sorted(ledgers, key=lambda info: info.ledger_id):
        if info.label:
            try:
                label = Label.decode(info.label)
            except ValueError as error:
                log.warning(
                    "cannot tell which topic ledger %d belongs to, so it is left alone: %s", info.ledger_id, error
                )
                continue
            found.setdefault(label.belonging.topic, []).append(Labelled(info.ledger_id, label, info.entries))
    return found
