# SPDX-License-Identifier: Apache-2.0
"""The grants of each voter to this holder, for renewal without naming streams (R26, ``grant_digests.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meridian_broker.replication.leases.claim import Claim
from meridian_broker.replication.leases.grant_digests import GrantDigests
from meridian_broker.replication.leases.messages import LeaseRenewal, LeaseRenewed


class Renewals:
    """For each voter of a claim, either the claim is among that voter's grants, or the voter is in
    ``Claim.by_name``."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._granted: dict[str, GrantDigests[tuple[Claim, int]]] = {}
        """Each claim with the number of the last question sent before it was granted."""

    def granted(self, voter: str, claim: Claim, number: int) -> None:
        """The voter granted it by name. :param number: of the last question sent, to any voter."""
        if voter in claim.by_name:
            granted = self._granted.get(voter)
            if granted is None:
                granted = self._granted[voter] = GrantDigests(self._holder)
            granted.put(claim.item, (claim, number))
            claim.by_name.discard(voter)

    def refused(self, voter: str, claim: Claim) -> None:
        """The voter refused the last request, or has to be asked by name again."""
        if voter not in claim.by_name:
            self._granted[voter].drop(claim.stream)
            claim.by_name.add(voter)

    def left(self, claim: Claim) -> None:
        """It cannot be renewed unchanged: it is requested by name from every voter."""
        for voter in claim.voters:
            self.refused(voter, claim)

    def questions(self, number: int, can_renew: Callable[[str], bool]) -> Iterator[tuple[str, LeaseRenewal]]:
        """Messages to send, with their voters. :param can_renew: whether that voter understands them."""
        for voter, granted in self._granted.items():
            if not can_renew(voter):  # it runs an older version by now
                for index in list(granted.parts):
                    self._empty(voter, index)
            elif granted.parts:
                yield voter, LeaseRenewal(number, self._holder, tuple(granted.digests()))

    def answered(self, voter: str, answer: LeaseRenewed) -> tuple[list[Claim], list[Claim]]:
        """Claims that were renewed, and those that must be requested by name."""
        granted = self._granted.get(voter)
        if granted is None:
            return [], []
        unknown = [claim for index in answer.differing for claim in self._empty(voter, index)]
        renewed = [
            claim for part in granted.parts.values() for claim, since in part.grants.values() if since < answer.number
        ]
        return renewed, unknown

    def _empty(self, voter: str, index: int) -> list[Claim]:
        claims = [claim for claim, _ in self._granted[voter].empty(index)]
        for claim in claims:
            claim.by_name.add(voter)
        return claims
