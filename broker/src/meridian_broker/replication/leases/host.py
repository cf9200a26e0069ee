# SPDX-License-Identifier: Apache-2.0
"""What the holder's side of leases needs around it."""

from __future__ import annotations

from typing import Protocol

from meridian_broker.replication.leases.messages import LeaseMessage, Stream
from meridian_broker.replication.leases.request import LeaseRequest


class LeaseHost(Protocol):
    """Who makes the requests."""

    def peer_of(self, voter: str, topic: str) -> str:
        """The peer that answers for a voter on a topic's streams: the voter itself, or that one of its brokers which
        owns the topic.
        """

    def can_ask(self, peer: str) -> bool:
        """Whether it can be reached."""

    def can_renew(self, peer: str) -> bool:
        """Whether it understands renewals without names."""

    def send(self, peer: str, message: LeaseMessage) -> None: ...

    def promised_ms(self, stream: Stream) -> int:
        """How long this region's own vote is promised to another holder."""

    def won(self, request: LeaseRequest) -> None:
        """The stream is ours until ``request.until_ms``, which advances with each renewal."""

    def lost(self, request: LeaseRequest) -> None:
        """The stream is not ours any more. Readers of ``until_ms`` have stopped by themselves."""

    def wanted_back(self, request: LeaseRequest) -> None:
        """Its preferred holder requests it: stop, and then ``release`` it. Otherwise the lease expires."""
