# SPDX-License-Identifier: Apache-2.0
"""The hash of a list of topics, at once."""

from __future__ import annotations

from collections.abc import Iterable

from meridian_broker.topics.directory.patterns import Digest


def digest(topics: Iterable[str]) -> str:
    """By which clients tell whether a list is the one they know."""
    made = Digest()
    made.add(sorted(topics))
    return str(made)
