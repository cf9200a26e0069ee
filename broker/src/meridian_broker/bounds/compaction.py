# SPDX-License-Identifier: Apache-2.0
"""What compaction opens. A batch beyond one of these stays whole: none of its messages is compacted away.

`wire/pulsar/batches.py` and `topics/compaction/compactor.py` compare with these.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes

COMPACTED_BATCH_BYTES: Final[Bytes] = 8 << 20
"""A compressed batch, decompressed: some 30 ms of the event loop. Clients fill a batch up to 128 KiB by default."""

COMPACTED_METADATA_BYTES: Final[Bytes] = 1 << 20
"""Metadata of a message, or of one message in a batch: parsing it takes some 30 ms at worst."""
