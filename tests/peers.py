# SPDX-License-Identifier: Apache-2.0
"""Tests that connect as the broker of some region."""

from __future__ import annotations

import os

from meridian_broker.gateway.client_options import ClientOptions, peer_options
from meridian_broker.gateway.peer_identity import PeerIdentity

SECRET = b"a secret that only these tests know"


def identity(region: str, *secrets: bytes) -> PeerIdentity:
    """A region that knows these secrets, or the one of the tests."""
    return PeerIdentity(region, lambda: secrets or (SECRET,), os.urandom)


def as_region(region: str, to: str, secret: bytes = SECRET, base: ClientOptions | None = None) -> ClientOptions:
    """To connect as ``region`` to the region ``to``."""
    return peer_options(identity(region, secret), base).towards(to)
