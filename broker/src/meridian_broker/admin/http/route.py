# SPDX-License-Identifier: Apache-2.0
"""One row of the table of what the admin server answers."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.admin.http.errors import Handler


@dataclass(frozen=True, slots=True)
class Route:
    """One verb on one path."""

    method: str
    path: str
    handler: Handler
    status: int = 200
    """Status code of a successful answer."""
    content: str = "application/json"
    peers: str | None = None
    """Brokers of other regions call it, with this query parameter if one is named. None: they do not."""
    exports: bool = False
    """Whether a token for the export alone may call it."""
