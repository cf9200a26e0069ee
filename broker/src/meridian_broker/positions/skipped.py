# SPDX-License-Identifier: Apache-2.0
"""A range of a topic's log that an operator skipped for another region: it is not sent there.

The remote region continues without it, as it does without an entry that ``replicate_to`` withholds: nothing is claimed
as acknowledged, and the chain of own entries (R3) is known to run through it. The range is tied to what the remote had
when it was skipped. A remote that falls back further, restored or rebuilt, is sent everything still stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, Position

KEPT: Final = 64
"""Earlier stretches per region that stay on record."""
Ranges = Sequence[tuple[Position, Position]]
"""Own entries ``(after, upto]``."""


class Skipped(NamedTuple):
    """A skipped stretch."""

    after: Position
    """The last own entry that the remote was known to have; ``EARLIEST``: unknown."""
    upto: Position
    """In the local log: everything stored up to here is skipped."""
    own: Position
    """The last own entry up to ``upto``."""

    def applies_to(self, last: Position) -> bool:
        """Whether a remote whose last entry of ours is ``last`` continues after the range."""
        return self.after <= last < self.own


def extended(earlier: Skipped | None, known: Position | None, upto: Position, own: Position) -> Skipped:
    """The range once everything up to ``upto`` is skipped, too.

    :param earlier: the range skipped before. It becomes part of the new one unless the remote has passed it.
    :param known: the last own entry that the remote is known to have; None: it has not reported yet.
    :param own: the last own entry up to ``upto``.
    """
    if earlier is not None and earlier.upto >= upto:
        return earlier
    if earlier is not None and (known is None or known < earlier.own):
        return Skipped(earlier.after, upto, own)
    return Skipped(EARLIEST if known is None else known, upto, own)


def kept_before(before: Ranges, earlier: Skipped | None, skipped: Skipped) -> Ranges:
    """The earlier ranges to keep on record once ``skipped`` replaces ``earlier``."""
    if earlier is None or skipped.after < earlier.own:
        return before  # part of the new one
    return [*before, (earlier.after, earlier.own)][-KEPT:]


def stretches(skipped: Mapping[str, Skipped], before: Mapping[str, Ranges]) -> list[tuple[str, Position, Position]]:
    """All ranges on record as skipped: region, and own entries ``(after, upto]``."""
    found = [(region, after, upto) for region, some in before.items() for after, upto in some]
    return sorted([*found, *((region, one.after, one.own) for region, one in skipped.items())])
