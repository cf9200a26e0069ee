# SPDX-License-Identifier: Apache-2.0
"""The holder's rolls: what each voter granted it, to be renewed without names (R26, ``grant_digests.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meridian_broker.replication.leases.claim import Claim
from meridian_broker.replication.leases.grant_digests import Roll
from meridian_broker.replication.leases.messages import LeaseRenewal, LeaseRenewed


class Renewals:
    """A claim is on the roll of each voter, or in ``Claim.by_name``."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._rolls: dict[str, Roll[tuple[Claim, int]]] = {}
        """Each claim with the number of the last question that was put before it came on the roll."""

    def granted(self, voter: str, claim: Claim, number: int) -> None:
        """The voter promised it by name. :param number: of the last question that was put, to whomever."""
        if voter in claim.by_name:
            roll = self._rolls.get(voter)
            if roll is None:
                roll = self._rolls[voter] = Roll(self._holder)
            roll.put(claim.item, (claim, number))
            claim.by_name.discard(voter)

    def refused(self, voter: str, claim: Claim) -> None:
        """The voter did not, when it was asked last."""
        if voter not in claim.by_name:
            self._rolls[voter].drop(claim.stream)
            claim.by_name.add(voter)

    def left(self, claim: Claim) -> None:
        """It is not to be renewed as it is: whoever is asked for it again is asked by name."""
        for voter in claim.voters:
            self.refused(voter, claim)

    def questions(self, number: int, can_renew: Callable[[str], bool]) -> Iterator[tuple[str, LeaseRenewal]]:
        """What is to be sent to whom. :param can_renew: does that voter understand it?"""
        for voter, roll in self._rolls.items():
            if not can_renew(voter):  # it runs an older version by now
                for index in list(roll.parts):
                    self._empty(voter, index)
            elif roll.parts:
                yield voter, LeaseRenewal(number, self._holder, tuple(roll.digests()))

    def answered(self, voter: str, answer: LeaseRenewed) -> tuple[list[Claim], list[Claim]]:
        """Claims that were renewed, and those that are to be asked for by name."""
        roll = self._rolls.get(voter)
        if roll is None:
            return [], []
        unknown = [claim for index in answer.differing for claim in self._empty(voter, index)]
        renewed = [
            claim for part in roll.parts.values() for claim, since in part.grants.values() if since < answer.number
        ]
        return renewed, unknown

    def _empty(self, voter: str, index: int) -> list[Claim]:
        claims = [claim for claim, _ in self._rolls[voter].empty(index)]
        for claim in claims:
            claim.by_name.add(voter)
        return claims
