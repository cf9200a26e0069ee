# SPDX-License-Identifier: Apache-2.0
"""The hash of a whole list of topics."""

from __future__ import annotations

from collections.abc import Iterable

from meridian_broker.topics.directory.patterns import Digest


def digest(topics: Iterable[str]) -> str:
    """The hash by which clients recognise a list that they have."""
    made = Digest()
    made.add(sorted(topics))
    return str(made)
