# SPDX-License-Identifier: Apache-2.0
"""Limits on the markers of replicated subscriptions (PIP-33) that other regions write.

`wire/pulsar/markers.py` checks against these. A marker that exceeds one of them has no effect.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes, Names, Requests

MARKER_BYTES: Final[Bytes] = 64 << 10
"""Content of one marker: some hundred bytes for each of a few regions. It is parsed on the event loop."""

MARKER_BODY_BYTES: Final[Bytes] = 128 << 10
"""A marker with its metadata: it is copied, and held until everything before it is durable."""

MARKER_REGIONS: Final[Names] = 256
"""Regions with a position in one snapshot or update. A topic has a handful."""

REQUESTS_PER_SECOND: Final[Requests] = 100
"""Requests of one region for snapshots of one topic that are answered. Each answer is an entry. By default a region
asks once or twice a second; the most frequent setting needs forty."""

SNAPSHOT_ID_BYTES: Final[Bytes] = 256
"""Name of a snapshot, which answers repeat. Pulsar's have 36."""
