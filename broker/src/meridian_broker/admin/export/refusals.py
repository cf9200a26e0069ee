# SPDX-License-Identifier: Apache-2.0
"""Why a request of the export is refused."""

from __future__ import annotations

from meridian_broker.admin.http.requests import Refused


class SnapshotGone(Refused):
    """There is no such snapshot, table or partition, or it has expired."""

    def __init__(self, reason: str) -> None:
        super().__init__(404, reason)


class ExportBusy(Refused):
    """Too many streams are open at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, reason)


class NotWhole(Refused):
    """Some of the region's topics cannot be exported now, so none are."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, reason)


class ExportFailed(Refused):
    """The encoder produced nothing. The message is its last error output."""

    def __init__(self, reason: str) -> None:
        super().__init__(500, reason)
