# SPDX-License-Identifier: Apache-2.0
"""Names of the other ends of links: a region of one broker, or one of the several brokers of a region."""

from __future__ import annotations


def peer_name(region: str, broker: str) -> str:
    """:param broker: its id; empty for the only broker of a region."""
    return f"{region}/{broker}" if broker else region


def region_of(peer: str) -> str:
    """The region of a peer."""
    return peer.partition("/")[0]
