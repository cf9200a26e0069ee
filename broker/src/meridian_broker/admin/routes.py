# SPDX-License-Identifier: Apache-2.0
"""Every path that is answered, in one table: what the server serves and what the OpenAPI document says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meridian_broker.admin import exporting, health
from meridian_broker.admin.errors import Handler


@dataclass(frozen=True, slots=True)
class Route:
    """One verb on one path."""

    method: str
    path: str
    handler: Handler
    status: int = 200
    """Of a good answer."""


EXPORT: Final = (
    Route("POST", "/meridian/v1/export", exporting.take),
    Route("GET", "/meridian/v1/export/{snapshot}/{table}", exporting.table),
)
HEALTH: Final = (
    Route("GET", "/admin/v2/brokers/health", health.health),
    Route("GET", "/admin/v2/brokers/ready", health.ready),
)
ROUTES: Final = (*EXPORT, *HEALTH)
