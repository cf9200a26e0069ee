# SPDX-License-Identifier: Apache-2.0
"""Limits on messages of the progress exchange between regions, and on what is kept of a region's directory.

A message that exceeds one is dropped unread: `replication/progress/counts.py` checks against these. A frame has room
for a thousand times as much, and each part of a message takes some microseconds of the event loop.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Characters, Items, Keys, Names, Subscriptions

MESSAGE_ITEMS: Final[Items] = 1024
"""Topics, states, questions, votes or numbers of buckets in one list. Brokers send 256, or the ends of 1000 topics."""

LISTED_SUBSCRIPTIONS: Final[Subscriptions] = 8192
"""Subscriptions in one digest. Brokers list 4096."""

PROGRESS_KEYS: Final[Keys] = 1 << 16
"""Ledgers whose numbers are compared, in total. Brokers send 1024 for each of 64 questions at most."""

REGION_NAMES: Final[Names] = 1 << 16
"""Names of regions, all together: those that a delta did not reach, or those that vote."""

BUNDLES: Final[Items] = 1 << 15
"""Borders and owners of bundles, in total. A namespace has 1024 bundles at most; brokers send 8192, or one
namespace."""

REGION_BROKERS: Final[Items] = 1024
"""Brokers of one region: each may be a peer, with a link."""

DIRECTORY_NAMESPACES: Final[Names] = 1 << 17
"""Namespaces in the directory of one region, which stays in memory. Topics of others count as owned by nobody there."""

DIRECTORY_BUNDLES: Final[Items] = 1 << 20
"""Bundles in the directory of one region: some tens of megabytes."""

OWNERS_TEXT: Final[Characters] = 1024
"""Longest name or address in a directory."""
