# SPDX-License-Identifier: Apache-2.0
"""The grants of each voter to this holder, for renewal without naming streams (R26, ``grant_digests.py``).

A voter is a region. Where it has several brokers, each answers for the topics that it owns, so grants are kept by
*peer*: the broker that answered, or the region itself if it has one broker. A stream whose topic has another peer now
is asked for by name there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meridian_broker.replication.leases.grant_digests import GrantDigests
from meridian_broker.replication.leases.messages import LeaseRenewal, LeaseRenewed
from meridian_broker.replication.leases.request import LeaseRequest


class Renewals:
    """For each voter of a request, either the request is among the grants of one of that voter's peers
    (``LeaseRequest.granted_by``), or the voter is in ``LeaseRequest.by_name``."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._granted: dict[str, GrantDigests[tuple[LeaseRequest, int]]] = {}
        """By peer: each request with the number of the last question sent before it was granted."""

    def granted(self, voter: str, request: LeaseRequest, number: int, peer: str) -> None:
        """The voter granted it by name. :param number: of the last question sent, to any voter."""
        if request.granted_by.get(voter, peer) != peer:
            self.refused(voter, request)
        if voter in request.by_name:
            granted = self._granted.get(peer)
            if granted is None:
                granted = self._granted[peer] = GrantDigests(self._holder)
            granted.put(request.item, (request, number))
            request.by_name.discard(voter)
            request.granted_by[voter] = peer

    def refused(self, voter: str, request: LeaseRequest) -> None:
        """The voter refused the last request, or has to be asked by name again."""
        if (peer := request.granted_by.pop(voter, None)) is not None:
            self._granted[peer].drop(request.stream)
            request.by_name.add(voter)

    def left(self, request: LeaseRequest) -> None:
        """It cannot be renewed unchanged: it is requested by name from every voter."""
        for voter in request.voters:
            self.refused(voter, request)

    def follow(self, voter: str, request: LeaseRequest, peer: str) -> None:
        """This peer answers for the voter now."""
        if request.granted_by.get(voter, peer) != peer:
            self.refused(voter, request)

    def questions(self, number: int, can_renew: Callable[[str], bool]) -> Iterator[tuple[str, LeaseRenewal]]:
        """Messages to send, with their peers. :param can_renew: whether that peer understands them."""
        for peer, granted in list(self._granted.items()):
            if not granted.parts:
                del self._granted[peer]
            elif not can_renew(peer):  # it runs an older version by now
                for index in list(granted.parts):
                    self._empty(peer, index)
            else:
                yield peer, LeaseRenewal(number, self._holder, tuple(granted.digests()))

    def answered(self, peer: str, answer: LeaseRenewed) -> tuple[list[LeaseRequest], list[LeaseRequest]]:
        """Requests that were renewed, and those that must be requested by name."""
        granted = self._granted.get(peer)
        if granted is None:
            return [], []
        unknown = [request for index in answer.differing for request in self._empty(peer, index)]
        renewed = [
            request
            for part in granted.parts.values()
            for request, since in part.grants.values()
            if since < answer.number
        ]
        return renewed, unknown

    def _empty(self, peer: str, index: int) -> list[LeaseRequest]:
        requests = [request for request, _ in self._granted[peer].empty(index)]
        for request in requests:
            (voter,) = (voter for voter, by in request.granted_by.items() if by == peer)
            del request.granted_by[voter]
            request.by_name.add(voter)
        return requests
