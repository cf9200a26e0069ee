# SPDX-License-Identifier: Apache-2.0
"""Who may publish beside whom: the access modes of producers, decided without doing anything (PIP-68).

A topic counts *epochs*: each producer that gets it for itself alone begins one. A client tells, when it comes again
after a broken connection, in which epoch it was let in. If the topic has gone on since, somebody else was alone here
meanwhile, and the client must not go on as if nothing had been.

Replicators of other regions are not counted: being alone means alone among the clients of this region.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from meridian_broker.bounds.clients import EPOCH_LEAP


class AccessMode(IntEnum):
    """What a producer asks for; the wire's numbers."""

    SHARED = 0
    """Anybody else may publish, too."""
    EXCLUSIVE = 1
    """Alone or not at all."""
    WAIT_FOR_EXCLUSIVE = 2
    """Alone, as soon as the others are gone."""
    EXCLUSIVE_WITH_FENCING = 3
    """Alone at once: whoever is there is sent away."""


class Verdict(Enum):
    """What comes of it."""

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
    """The epoch in which it was let in before; None when it comes for the first time."""


class Present(NamedTuple):
    """Who is there, the asking producer's own earlier connection not counted."""

    epoch: int | None
    """The topic's; None when no producer ever was alone here."""
    producers: int = 0
    """Connected ones, an exclusive one among them."""
    exclusive: bool = False
    """One of them is alone, or is about to be."""
    waiting: int = 0


class Decision(NamedTuple):
    """The verdict, and the topic's epoch after it."""

    verdict: Verdict
    epoch: int | None


def decide(asked: Asked, present: Present) -> Decision:
    """What a producer gets that asks for ``asked`` while ``present`` holds."""
    if asked.mode is AccessMode.SHARED:
        # Those who wait were here first: a stream of shared producers must not keep them waiting for ever.
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
    """The epoch a producer that is alone from now on publishes in: its own from before, or a new one.

    Its own may be ahead of the topic's, whose record may be an older copy. One that no topic reached is not taken
    over: it would leave no epochs for those who come next.
    """
    last = -1 if epoch is None else epoch
    if asked.topic_epoch is not None and last <= asked.topic_epoch <= last + EPOCH_LEAP:
        return asked.topic_epoch
    return last + 1
