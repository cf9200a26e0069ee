# SPDX-License-Identifier: Apache-2.0
"""Limits on the markers of replicated subscriptions (PIP-33) that other regions write.

`wire/pulsar/markers.py` checks against these. A marker that exceeds one of them has no effect.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes, Names

MARKER_BYTES: Final[Bytes] = 64 << 10
"""Content of one marker: some hundred bytes for each of a few regions. It is parsed on the event loop."""

MARKER_REGIONS: Final[Names] = 256
"""Regions with a position in one snapshot or update. A topic has a handful."""

SNAPSHOT_ID_BYTES: Final[Bytes] = 256
"""Name of a snapshot, which answers repeat. Pulsar's have 36."""
