# SPDX-License-Identifier: Apache-2.0
"""This broker's identity among brokers of all regions, and how it proves it (see ``wire.peer_proof``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meridian_broker.replication.peers import peer_name
from meridian_broker.wire.peer_proof import NONCE_BYTES, WITHIN, Answering, Dialling, key_id


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """One region's part in handshakes, also in those among its own brokers."""

    region: str
    secrets: Callable[[], tuple[bytes, ...]]
    """The peer secrets in force, the preferred one first; empty: this region has no peers."""
    random: Callable[[int], bytes]
    """Returns that many cryptographically secure random bytes."""
    broker: str = ""
    """This broker's id among several of the region; empty: it is the only one."""

    def holds(self, key: bytes) -> bool:
        """Whether the secret with this id is still in force. Connections that proved another one are closed."""
        return any(key_id(secret) == key for secret in self.secrets())

    def dial(self, region: str, binding: bytes) -> Dialling:
        """Begin a handshake with a broker of ``region``. :param binding: from ``tls.channel_binding``."""
        return Dialling(self.secrets(), self.region, region, self.random(NONCE_BYTES), binding)

    def dial_own(self, broker: str, binding: bytes) -> Dialling:
        """Begin one with another broker of this region, by its id."""
        names = peer_name(self.region, self.broker), peer_name(self.region, broker)
        return Dialling(self.secrets(), *names, self.random(NONCE_BYTES), binding, WITHIN)

    def answer(self, binding: bytes) -> Answering:
        """For an incoming connection."""
        own = peer_name(self.region, self.broker) if self.broker else ""
        return Answering(self.secrets(), self.region, self.random(NONCE_BYTES), binding, broker=own)
