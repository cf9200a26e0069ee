# SPDX-License-Identifier: Apache-2.0
"""Preserves across restarts how far other regions are behind: operators watch that figure while a region is away.

What a region lacks is counted in memory (``replication/progress/lag.py``). One number per region is on record: since
when it may lack something. It is written when the region's link breaks and when the region has caught up, so twice per
outage, however much is acknowledged meanwhile. After a restart, the broker counts what the progress logs hold since
then (``topics/lifecycle/unconfirmed.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from meridian_broker.gateway.exchange import ExchangeShell
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.store import MetadataError

SAME_MS: Final = 1000
"""Clocks may differ by so much about one moment. A region whose absence began later than recorded had caught up."""

log = logging.getLogger(__name__)


class BehindRecord:
    """Implements ``topics.unconfirmed.Before`` for a broker and keeps it on record."""

    def __init__(self, catalog: Catalog, broker_id: str, exchange: ExchangeShell, wall_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._broker_id = broker_id
        self._exchange = exchange
        self._wall_ms = wall_ms
        self._before: dict[str, int] = {}
        self._on_record: dict[str, int] = {}

    async def open(self) -> None:
        """Call it before topics are opened and regions are connected to."""
        try:
            self._on_record = await self._catalog.behind.read(self._broker_id)
        except MetadataError as error:
            log.warning("cannot read which regions were behind before this start; counting from now on: %s", error)
        known = self._catalog.known_clusters()
        self._before = {region: since for region, since in self._on_record.items() if region in known}
        for region, since_ms in self._before.items():
            self._exchange.was_away(region, self._ago(since_ms))

    @property
    def since_ms(self) -> Mapping[str, int]:
        return self._before

    def found(self, topic: str, subscription: str, region: str, entries: int, since_ms: int) -> None:
        self._exchange.was_behind(region, topic, subscription, entries, self._ago(since_ms))

    def _ago(self, since_ms: int) -> int:
        return max(0, self._wall_ms() - since_ms)

    async def follow(self) -> None:
        """Called every second: record which regions fell behind, and which have caught up."""
        now_ms, behind = self._wall_ms(), self._exchange.behind_for()
        self._before = {region: since for region, since in self._before.items() if region in behind}
        since = {region: now_ms - ago_ms for region, ago_ms in behind.items()}
        caught_up = self._on_record.keys() - since.keys()
        later = {region for region, at in since.items() if at > self._on_record.get(region, 0) + SAME_MS}
        if not caught_up and not later:
            return
        wanted = {region: at if region in later else self._on_record[region] for region, at in since.items()}
        try:
            await self._catalog.behind.write(self._broker_id, wanted)
        except MetadataError as error:
            log.warning("cannot record which regions are behind; trying again shortly: %s", error)
            return
        self._on_record = wanted
