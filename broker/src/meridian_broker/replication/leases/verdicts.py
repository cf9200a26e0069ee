# SPDX-License-Identifier: Apache-2.0
"""What a voter answers a candidate for a stream, decided without side effects (R26).

=========================================  ============================  ==================  =============
the voter knows                            it promised the stream        the asker's term    verdict
=========================================  ============================  ==================  =============
not yet what it promised                                                                     not served
other voters, or another preferred holder                                                    other voters
the same as the asker                      never                         any                 granted
the same as the asker                      to another, who has it        any                 held
the same as the asker                      to another, until now         greater             granted
the same as the asker                      to another, until now         the same, or less   past
the same as the asker                      to anybody, who gave it back  greater             granted
the same as the asker                      to anybody, who gave it back  the same, or less   past
the same as the asker                      to the asker                  the same, greater   granted
the same as the asker                      to the asker                  less                past
=========================================  ============================  ==================  =============

The asker's term is compared with that of the promise, so what was said in an earlier attempt, and arrives late, is
refused. A promise to the asker may be renewed in its own term even if its time has passed: as long as it is the last
one, no other region was promised the stream.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from meridian_broker.replication.leases.messages import HELD, NOT_SERVED, OTHER_VOTERS, PAST


class Verdict(Enum):
    """The value is what ``AnswerItem.reason`` contains."""

    GRANTED = ""
    NOT_SERVED = NOT_SERVED
    OTHER_VOTERS = OTHER_VOTERS
    HELD = HELD
    PAST = PAST


class Asked(NamedTuple):
    """The request."""

    holder: str
    term: int
    mark: int
    """Mark of the voters that the asker knows of."""
    preferred: str


class VoterView(NamedTuple):
    """What the voter knows of the voters."""

    mark: int
    preferred: str
    """Empty if it does not matter to this voter."""


class Promise(NamedTuple):
    """The voter's last promise of the stream."""

    holder: str
    term: int
    is_released: bool
    is_over: bool
    """It has expired."""


def decide(asked: Asked, known: VoterView | None, promise: Promise | None) -> Verdict:
    """The answer; see the table above.

    :param known: None: the voter has not read its promises yet.
    :param promise: None: it never promised the stream.
    """
    if known is None:
        return Verdict.NOT_SERVED
    if known.mark != asked.mark or known.preferred not in ("", asked.preferred):
        return Verdict.OTHER_VOTERS
    if promise is None:
        return Verdict.GRANTED
    is_askers = promise.holder == asked.holder
    if not (is_askers or promise.is_released or promise.is_over):
        return Verdict.HELD
    is_renewal = is_askers and promise.term == asked.term and not promise.is_released
    return Verdict.GRANTED if asked.term > promise.term or is_renewal else Verdict.PAST
