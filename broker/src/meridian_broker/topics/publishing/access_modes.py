# SPDX-License-Identifier: Apache-2.0
"""Who may publish together: the access modes of producers, as a pure decision (PIP-68).

A topic counts *epochs*: each producer that gets exclusive access begins one. A client that reconnects reports the
epoch in which it was admitted. If the topic's epoch is later, another producer had exclusive access in between, and
the client must not continue as if nothing had happened.

======================  ================  ================  ==================
it asks for             nobody is there   shared producers  exclusive, waiting
======================  ================  ================  ==================
shared                  share             share             refuse shared
exclusive               seize             refuse taken      refuse taken
wait for exclusive      seize             wait              wait
exclusive with fencing  seize             fence others      fence others
======================  ================  ================  ==================

A producer that asks for any but shared access, and reports an earlier epoch than the topic's, is refused whoever is
there (``REFUSE_OLD``). ``SEIZE`` and ``FENCE_OTHERS`` begin an epoch.

Replicators of other regions are not counted: exclusive means exclusive among the clients of this region.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from meridian_broker.bounds.clients import EPOCH_LEAP


class AccessMode(IntEnum):
    """The access mode that a producer asks for; numbers as on the wire."""

    SHARED = 0
    """Others may publish, too."""
    EXCLUSIVE = 1
    """Exclusive access, or an error."""
    WAIT_FOR_EXCLUSIVE = 2
    """Exclusive access once the others have left."""
    EXCLUSIVE_WITH_FENCING = 3
    """Exclusive access at once; the others are disconnected."""


class Verdict(Enum):
    """The decision."""

    SHARE = "admitted alongside others"
    SEIZE = "admitted exclusively"
    WAIT = "admitted exclusively once the others are gone"
    FENCE_OTHERS = "admitted exclusively, the others are disconnected"
    REFUSE_SHARED = "refused: another producer has exclusive access or is waiting for it"
    REFUSE_TAKEN = "refused: other producers are connected"
    REFUSE_OLD = "refused: another producer has had exclusive access in the meantime"


class Company(Enum):
    """Who is connected already."""

    NOBODY = "nobody is there"
    SHARED = "shared producers"
    """Producers, none of them exclusive, and none waits to be."""
    EXCLUSIVE = "exclusive, waiting"
    """A producer has exclusive access, is about to get it, or waits for it."""


VERDICTS: Final[dict[tuple[AccessMode, Company], Verdict]] = {
    (AccessMode.SHARED, Company.NOBODY): Verdict.SHARE,
    (AccessMode.SHARED, Company.SHARED): Verdict.SHARE,
    # Waiting producers were here first: a stream of shared producers must not keep them waiting forever.
    (AccessMode.SHARED, Company.EXCLUSIVE): Verdict.REFUSE_SHARED,
    (AccessMode.EXCLUSIVE, Company.NOBODY): Verdict.SEIZE,
    (AccessMode.EXCLUSIVE, Company.SHARED): Verdict.REFUSE_TAKEN,
    (AccessMode.EXCLUSIVE, Company.EXCLUSIVE): Verdict.REFUSE_TAKEN,
    (AccessMode.WAIT_FOR_EXCLUSIVE, Company.NOBODY): Verdict.SEIZE,
    (AccessMode.WAIT_FOR_EXCLUSIVE, Company.SHARED): Verdict.WAIT,
    (AccessMode.WAIT_FOR_EXCLUSIVE, Company.EXCLUSIVE): Verdict.WAIT,
    (AccessMode.EXCLUSIVE_WITH_FENCING, Company.NOBODY): Verdict.SEIZE,
    (AccessMode.EXCLUSIVE_WITH_FENCING, Company.SHARED): Verdict.FENCE_OTHERS,
    (AccessMode.EXCLUSIVE_WITH_FENCING, Company.EXCLUSIVE): Verdict.FENCE_OTHERS,
}


class Asked(NamedTuple):
    """What a producer asks for."""

    mode: AccessMode
    topic_epoch: int | None = None
    """The epoch in which it was admitted before; None: it connects for the first time."""


class Present(NamedTuple):
    """The connected producers, without the asking producer's own earlier connection."""

    epoch: int | None
    """The topic's epoch; None: no producer ever had exclusive access here."""
    producers: int = 0
    """Connected producers, including an exclusive one."""
    exclusive: bool = False
    """One of them has exclusive access, or is about to get it."""
    waiting: int = 0

    @property
    def company(self) -> Company:
        if self.exclusive or self.waiting:
            return Company.EXCLUSIVE
        return Company.SHARED if self.producers else Company.NOBODY


class Decision(NamedTuple):
    """The decision, and the topic's epoch after it."""

    verdict: Verdict
    epoch: int | None


def decide(asked: Asked, present: Present) -> Decision:
    """Decide on a producer that asks for ``asked`` while ``present`` applies; see the table above."""
    mode, before, epoch = asked.mode, asked.topic_epoch, present.epoch
    if mode is not AccessMode.SHARED and before is not None and epoch is not None and before < epoch:
        return Decision(Verdict.REFUSE_OLD, epoch)
    verdict = VERDICTS[mode, present.company]
    begins = verdict in (Verdict.SEIZE, Verdict.FENCE_OTHERS)
    return Decision(verdict, next_epoch(asked, epoch) if begins else epoch)


def next_epoch(asked: Asked, epoch: int | None) -> int:
    """The epoch of a producer that gets exclusive access now: its own from before, or a new one.

    Its own may be ahead of the topic's, whose record may be an older copy. An epoch that no topic can have reached is
    not accepted, because it would leave none for later producers.
    """
    last = -1 if epoch is None else epoch
    if asked.topic_epoch is not None and last <= asked.topic_epoch <= last + EPOCH_LEAP:
        return asked.topic_epoch
    return last + 1
