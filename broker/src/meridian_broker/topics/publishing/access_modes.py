# SPDX-License-Identifier: Apache-2.0
"""Who may publish together: the access modes of producers, as a pure decision (PIP-68).

A topic counts *epochs*: each producer that gets exclusive access begins one. A client that reconnects reports the
epoch in which it was admitted. If the topic's epoch is later, another producer had exclusive access in between, and
the client must not continue as if nothing had happened.

Replicators of other regions are not counted: exclusive means exclusive among the clients of this region.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

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


class Decision(NamedTuple):
    """The decision, and the topic's epoch after it."""

    verdict: Verdict
    epoch: int | None


def decide(asked: Asked, present: Present) -> Decision:
    """Decide on a producer that asks for ``asked`` while ``present`` applies."""
    if asked.mode is AccessMode.SHARED:
        # Waiting producers were here first: a stream of shared producers must not keep them waiting forever.
        taken = present.exclusive or present.waiting
        return Decision(Verdict.REFUSE_SHARED if taken else Verdict.SHARE, present.epoch)
    if asked.topic_epoch is not None and present.epoch is not None and asked.topic_epoch < present.epoch:
        return Decision(Verdict.REFUSE_OLD, present.epoch)
    is_free = not present.exclusive and not present.producers
    if asked.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        if not is_free or present.waiting:
            return Decision(Verdict.WAIT, present.epoch)
    elif asked.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
        if not is_free or present.waiting:
            return Decision(Verdict.FENCE_OTHERS, next_epoch(asked, present.epoch))
    elif not is_free or present.waiting:
        return Decision(Verdict.REFUSE_TAKEN, present.epoch)
    return Decision(Verdict.SEIZE, next_epoch(asked, present.epoch))


def next_epoch(asked: Asked, epoch: int | None) -> int:
    """The epoch of a producer that gets exclusive access now: its own from before, or a new one.

    Its own may be ahead of the topic's, whose record may be an older copy. An epoch that no topic can have reached is
    not accepted, because it would leave none for later producers.
    """
    last = -1 if epoch is None else epoch
    if asked.topic_epoch is not None and last <= asked.topic_epoch <= last + EPOCH_LEAP:
        return asked.topic_epoch
    return last + 1
