# SPDX-License-Identifier: Apache-2.0
"""How an outgoing connection is made: addresses, credentials, patience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.tls import ContextSource
from meridian_broker.wire.peer_proof import Dialling

PEER_AUTH_METHOD: Final = "meridian-peer"
"""Authentication method that brokers of one deployment use among themselves (R7)."""
PEER_KEEP_ALIVE_SECONDS: Final = 5.0
"""Silence after which a broker pings the other one; twice that ends their connection. A network that loses every packet
closes no connection, and until the loss is noticed nothing is relayed by a third region (R6)."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to connect and how long to wait. Times in seconds."""

    auth_method: str | None = None
    auth_data: bytes | None = None
    """Never logged."""
    token: Callable[[], bytes] | None = None
    """Returns the token to connect with, instead of ``auth_data``. May raise ``OSError``."""
    is_replicator: bool = False
    """Connect to a region of Apache Pulsar, to replicate to it."""
    peer: PeerIdentity | None = None
    """Connect as a broker of this region, to one of another region; None: as a client."""
    answerer: str = ""
    """The region that we intend to reach, if we connect as a peer."""
    own_broker: str = ""
    """The broker of our own region that we intend to reach instead."""
    client_version: str = "meridian"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    keep_alive: float = 30.0
    """Silence after which we ping the other side; after twice that, the connection ends."""
    max_pending_requests: int = 1000
    """Limit on concurrent requests; more wait for their turn."""
    write_buffer: int = 1024 * 1024
    """Bytes waiting for the socket above which ``drain`` waits."""
    tls: ContextSource | None = None
    """TLS for ``pulsar+ssl://``; None: the system's trust store."""

    def towards(self, region: str) -> ClientOptions:
        """These options, for a connection to that region."""
        return replace(self, answerer=region)

    def within(self, broker: str) -> ClientOptions:
        """These options, for a connection to that broker of our own region."""
        return replace(self, own_broker=broker)

    @property
    def wanted(self) -> str:
        """What the other side has to prove that it is, in words."""
        return f"broker {self.own_broker}" if self.own_broker else f"region {self.answerer}"

    def dial(self, identity: PeerIdentity, binding: bytes) -> Dialling:
        """Begin the handshake. :param binding: from ``tls.channel_binding``."""
        return identity.dial_own(self.own_broker, binding) if self.own_broker else identity.dial(self.answerer, binding)


def split_url(url: str) -> list[tuple[str, int, bool]]:
    """``pulsar://a:6650,b:6650`` -> ``[(host, port, tls), ...]``.

    :raises ValueError: another scheme, or no host.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("pulsar", "pulsar+ssl"):
        raise ValueError(f"{url!r} is not a service URL: a service URL begins with pulsar:// or pulsar+ssl://")
    tls = scheme == "pulsar+ssl"
    places = []
    for part in rest.rstrip("/").split(","):
        split = urlsplit(f"//{part}")
        if not split.hostname:
            raise ValueError(f"{url!r} names no host")
        places.append((split.hostname, split.port or (6651 if tls else 6650), tls))
    return places


def peer_options(identity: PeerIdentity, base: ClientOptions | None = None) -> ClientOptions:
    """Options of connections to brokers of other regions. ``towards`` selects the region."""
    return replace(base or ClientOptions(), peer=identity, keep_alive=PEER_KEEP_ALIVE_SECONDS)


def pulsar_options(token: Callable[[], bytes] | None, base: ClientOptions) -> ClientOptions:
    """Options of replicators' connections to regions of Apache Pulsar. :param token: see ``ClientOptions``."""
    return replace(base, token=token, is_replicator=True)
