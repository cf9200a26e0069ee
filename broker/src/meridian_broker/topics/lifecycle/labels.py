# SPDX-License-Identifier: Apache-2.0
"""The ledgers on the volume, by the topic that their labels name (``ledgers/labels.py``)."""

from __future__ import annotations

import logging
from typing import NamedTuple

from meridian_broker.ledgers.labels import Label
from meridian_broker.ledgers.store import LedgerStore

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

    def __init__(self, store: LedgerStore | None) -> None:
        """:param store: None: the metadata store itself lists the ledgers, so there are none that it does not know."""
        self._store = store
        self._by_topic: dict[str, list[Labelled]] | None = None

    @property
    def are_on_record(self) -> bool:
        """The metadata store lists all ledgers: both are restored together, and it bounds how many there can be."""
        return self._store is None

    async def of(self, topic: str) -> list[Labelled]:
        """In order of creation."""
        return (await self._all()).get(topic, [])

    async def topics(self) -> list[str]:
        """The topics that have ledgers."""
        return list(await self._all())

    def forget(self, topic: str) -> None:
        """The topic is open: its ledgers are recorded."""
        if self._by_topic is not None:
            self._by_topic.pop(topic, None)

    async def _all(self) -> dict[str, list[Labelled]]:
        if self._by_topic is None:
            found: dict[str, list[Labelled]] = {}
            ledgers = [] if self._store is None else await self._store.list()
            for info in sorted(ledgers, key=lambda info: info.ledger_id):
                if info.label:
                    try:
                        label = Label.decode(info.label)
                    except ValueError as error:
                        log.warning("cannot tell which topic ledger %d belongs to: %s", info.ledger_id, error)
                        continue
                    found.setdefault(label.belonging.topic, []).append(Labelled(info.ledger_id, label, info.entries))
            self._by_topic = found
        return self._by_topic
