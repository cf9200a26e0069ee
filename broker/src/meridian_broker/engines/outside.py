# SPDX-License-Identifier: Apache-2.0
"""Opens ledgers that another process writes: the export's child reads what its broker stored.

The broker describes its storage in one argument of the child. The argument is not secret: it names the files with
credentials and never contains them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meridian_broker.engines.s3.place import S3Place
from meridian_broker.ledgers.objects import ObjectStoreError
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.outside import OutsideOffloaded
from meridian_broker.ledgers.storage import OutsideLedgers
from meridian_broker.ledgers.store import LedgerError


async def open_outside(described: str) -> OutsideLedgers:
    """
    :param described: ``LedgerStorage.outside``.
    :raises LedgerError: the storage cannot be reached.
    """
    storage = json.loads(described)
    if "near" in storage:
        return OutsideOffloaded(await open_outside(storage["near"]), _copies(json.loads(storage["offloaded"])))
    if "directory" in storage:
        from meridian_broker.engines.local.readonly import LocalLedgerReader

        return await LocalLedgerReader.open_readonly(Path(storage["directory"]))
    from meridian_broker.engines.bookkeeper.outside import OutsideBookKeeper  # gRPC: only where it is used

    return await OutsideBookKeeper.connect(storage)


def _copies(offloaded: Mapping[str, Any]) -> Copies:
    """:raises LedgerError: the object store cannot be used."""
    try:
        from meridian_broker.engines.s3.objects import S3Objects  # only where it is used

        objects = S3Objects(S3Place.described(offloaded["place"]))
    except ObjectStoreError as error:
        raise LedgerError(str(error)) from error
    return Copies(objects, offloaded["region"], 0, 0)
