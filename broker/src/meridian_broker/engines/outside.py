# SPDX-License-Identifier: Apache-2.0
"""Opens ledgers that another process writes: the export's child reads what its broker stored.

The broker describes its storage in one argument of the child, which is no secret: it names files with credentials
instead of repeating them.
"""

from __future__ import annotations

import json
from pathlib import Path

from meridian_broker.ledgers.storage import OutsideLedgers


async def open_outside(described: str) -> OutsideLedgers:
    """
    :param described: ``LedgerStorage.outside``.
    :raises LedgerError: the storage is away.
    """
    storage = json.loads(described)
    if "directory" in storage:
        from meridian_broker.engines.local.readonly import LocalLedgerReader

        return await LocalLedgerReader.open_readonly(Path(storage["directory"]))
    from meridian_broker.engines.bookkeeper.outside import OutsideBookKeeper  # gRPC: only where it is used

    return await OutsideBookKeeper.connect(storage)
