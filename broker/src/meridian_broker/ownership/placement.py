# SPDX-License-Identifier: Apache-2.0
"""Which broker takes a bundle without an owner, and which bundle goes to a broker that has too few.

Each pair of broker and bundle has a score, a hash of both names, and the broker with the highest score takes the bundle
(rendezvous hashing). So brokers that see the same records make the same choice without asking each other, and when a
broker leaves, only its bundles move. Brokers loaded well above the average are passed over, because bundles differ in
weight and there are few of them per broker.

A broker that joins gets bundles from the others, one at a time, until no broker has two more than another. So no more
bundles move than have to. ``balancing.py`` says when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from meridian_broker.ownership.bundles import Bundle

SLACK: Final = 1.25
"""A broker with at most this multiple of the average still gets bundles. Lower balances better and moves more."""
BUSY: Final = 0.85
"""A broker that uses at least this fraction of its capacity gets no bundle while another broker uses less."""
RELIEF: Final = 0.3
"""Smallest difference in load for which a busy broker hands a bundle over: below it, hardly anybody would notice."""
LEAST_RELIEF: Final = 0.02
"""A bundle that uses less than this fraction of a broker's capacity is not worth the interruption of a move."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker that may take bundles, with its last reported load."""

    broker: str
    bundles: int
    """How many it owns."""
    usage: float = 0.0
    """Fraction of its capacity in use: 1.0 is all."""


def choose(bundle: Bundle, candidates: Collection[Candidate]) -> str | None:
    """The broker that should take the bundle; None: there is no candidate. The order of candidates does not matter."""
    fit = _not_busy(_below_average(candidates)) or _not_busy(candidates) or candidates
    return max(fit, key=lambda one: (_score(one.broker, bundle), one.broker)).broker if fit else None


def divide(bundles: Iterable[Bundle], candidates: Collection[Candidate]) -> dict[Bundle, str]:
    """The broker that should take each of these bundles, which become free together; empty without candidates."""
    found: dict[Bundle, str] = {}
    by_name = {one.broker: one for one in candidates}
    for bundle in sorted(bundles):
        if (chosen := choose(bundle, by_name.values())) is not None:
            found[bundle] = chosen
            by_name[chosen] = replace(by_name[chosen], bundles=by_name[chosen].bundles + 1)
    return found


def to_hand_over(mine: Collection[Bundle], me: str, candidates: Collection[Candidate]) -> tuple[Bundle, str] | None:
    """A bundle of this broker that another one should get, and that broker; None: none.

    :param mine: the bundles that this broker owns.
    """
    others = [one for one in candidates if one.broker != me]
    if not mine or not others:
        return None
    least = min(others, key=lambda one: (one.bundles, one.broker))
    most = max(one.bundles for one in others)
    if len(mine) - least.bundles < 2 or len(mine) < most:
        return None  # a broker that has more hands over first
    return max(mine, key=lambda bundle: (_score(least.broker, bundle), bundle)), least.broker


def to_relieve(mine: Mapping[Bundle, float], me: str, candidates: Collection[Candidate]) -> tuple[Bundle, str] | None:
    """A bundle that this broker should hand over because of its load, and the broker that gets it; None: none.

    Only the busiest broker hands over. Afterwards the other broker is no busier than this one.

    :param mine: the bundles that this broker owns, with their traffic; 0: unknown.
    """
    busiest = max(candidates, key=lambda one: (one.usage, one.broker), default=None)
    least = min(candidates, key=lambda one: (one.usage, one.broker), default=None)
    traffic = sum(mine.values())
    if busiest is None or least is None or busiest.broker != me or not traffic:
        return None
    if busiest.usage < BUSY or busiest.usage - least.usage < RELIEF:
        return None
    most = (busiest.usage - least.usage) / 2
    loads = {bundle: busiest.usage * own / traffic for bundle, own in mine.items()}
    fit = [(load, bundle) for bundle, load in loads.items() if LEAST_RELIEF <= load <= most]
    return (max(fit)[1], least.broker) if fit else None


def _below_average(candidates: Collection[Candidate]) -> list[Candidate]:
    limit = SLACK * sum(one.bundles for one in candidates) / max(len(candidates), 1) + 1
    return [one for one in candidates if one.bundles < limit]


def _not_busy(candidates: Collection[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.usage < BUSY]


def _score(broker: str, bundle: Bundle) -> bytes:
    return blake2b(f"{broker} {bundle}".encode(), digest_size=8).digest()
