# SPDX-License-Identifier: Apache-2.0
"""When other regions fell behind with this region's acknowledgements: written when one does, and when it catches up."""

from __future__ import annotations

from collections.abc import Mapping

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import VersionConflict


class BehindRecord:
    """One small value per broker of this region. It is only shown to people, so the last writer wins."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def read(self, broker_id: str) -> dict[str, int]:
        """Region -> milliseconds since 1970. :raises MetadataError: it cannot be read."""
        value, _, _ = await self._access.value(keys.behind(broker_id))
        found = value if isinstance(value, Mapping) else {}
        return {str(region): since for region, since in found.items() if isinstance(since, int)}

    async def write(self, broker_id: str, since_ms: Mapping[str, int]) -> None:
        """:raises MetadataError: it cannot be written."""
        path = keys.behind(broker_id)

        async def attempt() -> bool | None:
            _, _, version = await self._access.value(path)
            try:
                await self._access.store.put(path, encode(dict(since_ms)), expected=version)
            except VersionConflict:
                return None
            return True

        await self._access.retry("recording which regions are behind", attempt)
