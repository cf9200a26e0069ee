# SPDX-License-Identifier: Apache-2.0
"""Versions of the protocols that are announced in CONNECT and CONNECTED."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 21
"""The newest protocol version whose commands are in ``pulsar.proto``."""

PEER_PROTOCOL_VERSION: Final = 1
"""Version of the exchange between Meridian regions (``peer.proto``), announced in ``FeatureFlags``."""
