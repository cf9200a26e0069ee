# SPDX-License-Identifier: Apache-2.0
"""What an object's status remembers of earlier looks: a plan needs it to tell a loss from a beginning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """What was true when the object was last looked at."""

    established: frozenset[str] = frozenset()
    """Regions that held the topic or subscription."""
    left: tuple[str, ...] = ()
    """Regions that the topic has left, with their copy of it."""
    managed: tuple[str, ...] = ()
    """Policies that this object has set."""
    settled: bool = False
    """Every region was as the specification of this generation says."""
    recreate: bool = False
    """A user has asked for what vanished to be made again, and it has not been made yet."""


NOTHING = History()
"""Of an object that was never looked at."""
