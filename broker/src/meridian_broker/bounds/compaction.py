# SPDX-License-Identifier: Apache-2.0
"""Limits on the batches that compaction opens. A batch beyond one of them stays whole: none of its messages is removed.

`wire/pulsar/batches.py` and `topics/compaction/compactor.py` check against these.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes

COMPACTED_BATCH_BYTES: Final[Bytes] = 8 << 20
"""A compressed batch, decompressed: some 30 ms of the event loop. Clients fill a batch up to 128 KiB by default."""

COMPACTED_METADATA_BYTES: Final[Bytes] = 1 << 20
"""Metadata of a message, or of one message in a batch: parsing it takes some 30 ms at worst."""
