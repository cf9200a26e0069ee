# SPDX-License-Identifier: Apache-2.0
"""Limits how many new schemas a client may add per minute: each is a permanent record in the metadata store."""

from __future__ import annotations

from typing import Final

from meridian_broker.topics.errors import LimitReached

MINUTE_MS: Final = 60_000
AUTHORS_MAX: Final = 10_000
"""Authors remembered at a time; beyond that, those whose minute began first are forgotten."""


class SchemaRates:
    """Counts per author: a role, or the address of a client without one."""

    def __init__(self, per_minute: int) -> None:
        """:param per_minute: 0: no limit."""
        self._per_minute = per_minute
        self._counts: dict[str, tuple[int, int]] = {}
        """Per author, when the minute began and the number of schemas in it."""

    def count(self, author: str, now_ms: int) -> None:
        """Count one more. :raises LimitReached: the author reached the limit of this minute."""
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
