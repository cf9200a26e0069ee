# SPDX-License-Identifier: Apache-2.0
"""What an object's status records of earlier looks, so that a plan can tell a loss from a first creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class History:
    """State recorded at the last look at the object."""

    established: frozenset[str] = frozenset()
    """Regions that held the topic or subscription."""
    left: tuple[str, ...] = ()
    """Regions that were removed from the topic and keep their copy."""
    managed: tuple[str, ...] = ()
    """Policies that this object has set."""
    as_specified: bool = False
    """Every region matched the spec of this generation."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Regions that did not answer, and since when: a time as in conditions."""
    recreate: bool = False
    """A user has asked to recreate what vanished, and that has not happened yet."""


NOTHING = History()
"""History of an object that was never looked at."""
