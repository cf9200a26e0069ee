# SPDX-License-Identifier: Apache-2.0
"""Places in the log as values: positions, origins, stamps, and the algebra of acked and dropped entries. Pure.

Other rooms import only these modules of it::

    ackset  bitruns  claims  clock  dropped  encoded  formats  layers  position  progress  reports  skipped  varints
"""

from __future__ import annotations

from meridian_broker.positions.ackset import FLOOR, AckSet
from meridian_broker.positions.beginning import NOWHERE, Beginning
from meridian_broker.positions.claims import Partial
from meridian_broker.positions.clock import ZERO, HybridClock, Stamp
from meridian_broker.positions.dropped import Cause, Dropped
from meridian_broker.positions.encoded import DigestKey
from meridian_broker.positions.position import EARLIEST, LATEST, Origin, Position, parse_position
from meridian_broker.positions.progress import Progress

__all__ = [
    "EARLIEST",
    "FLOOR",
    "LATEST",
    "NOWHERE",
    "ZERO",
    "AckSet",
    "Beginning",
    "Cause",
    "DigestKey",
    "Dropped",
    "HybridClock",
    "Origin",
    "Partial",
    "Position",
    "Progress",
    "Stamp",
    "parse_position",
]
