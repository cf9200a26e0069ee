# SPDX-License-Identifier: Apache-2.0
"""Which broker takes a bundle that nobody owns, and which bundle goes to a broker that has too few.

Every broker and bundle have a score together, a hash of both names, and the broker with the highest score takes the
bundle (rendezvous hashing). So brokers that see the same records choose alike without asking each other. When a broker
goes, only its bundles move; when one comes, it gets only bundles that become free. Brokers that are loaded well above
the average are passed over, because bundles differ in weight and their number per broker is small.

A broker that comes gets bundles of the others, one at a time, until no broker has two more than another. So exactly as
many move as have to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from meridian_broker.ownership.bundles import Bundle

SLACK: Final = 1.25
"""How far above the average a broker may be and still get bundles. Less balances better and moves more."""
BUSY: Final = 0.85
"""Share of its capacity beyond which a broker gets no bundle if another one is below."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker that may take bundles, with its load as last reported."""

    broker: str
    bundles: int
    """How many it owns."""
    usage: float = 0.0
    """Share of its capacity in use: 1.0 is all."""


def choose(bundle: Bundle, candidates: Collection[Candidate]) -> str | None:
    """The broker that should take the bundle; None: there is no candidate. The order of candidates does not matter."""
    fit = _not_busy(_below_average(candidates)) or _not_busy(candidates) or candidates
    return max(fit, key=lambda one: (_score(one.broker, bundle), one.broker)).broker if fit else None


def divide(bundles: Iterable[Bundle], candidates: Collection[Candidate]) -> dict[Bundle, str]:
    """The broker that should take each of the bundles, which become free together; without candidates none does."""
    found: dict[Bundle, str] = {}
    by_name = {one.broker: one for one in candidates}
    for bundle in sorted(bundles):
        if (chosen := choose(bundle, by_name.values())) is not None:
            found[bundle] = chosen
            by_name[chosen] = replace(by_name[chosen], bundles=by_name[chosen].bundles + 1)
    return found


def to_hand_over(mine: Collection[Bundle], me: str, candidates: Collection[Candidate]) -> tuple[Bundle, str] | None:
    """The bundle of this broker that another one should have, and that one; None: nothing is to be handed over.

    :param mine: the bundles that this broker owns.
    """
    others = [one for one in candidates if one.broker != me]
    if not mine or not others:
        return None
    least = min(others, key=lambda one: (one.bundles, one.broker))
    most = max(one.bundles for one in others)
    if len(mine) - least.bundles < 2 or len(mine) < most:
        return None  # if another one has more, that one hands over
    return max(mine, key=lambda bundle: (_score(least.broker, bundle), bundle)), least.broker


def _below_average(candidates: Collection[Candidate]) -> list[Candidate]:
    limit = SLACK * sum(one.bundles for one in candidates) / max(len(candidates), 1) + 1
    return [one for one in candidates if one.bundles < limit]


def _not_busy(candidates: Collection[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.usage < BUSY]


def _score(broker: str, bundle: Bundle) -> bytes:
    return blake2b(f"{broker} {bundle}".encode(), digest_size=8).digest()
