# SPDX-License-Identifier: Apache-2.0
"""Limits how many new schemas a client may add per minute: each is a permanent record in the metadata store."""

from __future__ import annotations

from typing import Final

from meridian_broker.topics.errors import LimitReached

MINUTE_MS: Final = 60_000
AUTHORS_MAX: Final = 10_000
"""Remembered at a time; of more, those are forgotten whose minute began first."""


class SchemaRates:
    """Counts per author: a role, or where a nameless client is."""

    def __init__(self, per_minute: int) -> None:
        """:param per_minute: 0: no limit."""
        self._per_minute = per_minute
        self._counts: dict[str, tuple[int, int]] = {}
        """When the minute began, and how many there were in it."""

    def count(self, author: str, now_ms: int) -> None:
        """One more. :raises LimitReached: there were as many in this minute."""
        if not self._per_minute:
            return
        began, made = self._counts.pop(author, (now_ms, 0))
        if now_ms - began >= MINUTE_MS:
            began, made = now_ms, 0
        if len(self._counts) >= AUTHORS_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[author] = began, min(made + 1, self._per_minute)
        if made >= self._per_minute:
            raise LimitReached(
                f"{author} added {made} new schemas in this minute, the limit (maxNewSchemasPerMinute): try again later"
            )
