# SPDX-License-Identifier: Apache-2.0
"""Names and times that several modules of the simulator share."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "persistent://public/default/"
HEARD_US: Final = 1_000_000
"""This long after a restore the others know that the region was gone, and with it what it had confirmed before."""
RETRY_US: Final = 500_000
"""Delay after the end of a connection before clients look for a broker again."""


def full_name(topic: str) -> str:
    """``t`` -> ``persistent://public/default/t``."""
    return NAMESPACE + topic


def base_of(topic: str) -> str:
    """``p-partition-1`` -> ``p``; ``t`` -> ``t``."""
    base, separator, number = topic.rpartition("-partition-")
    return base if separator and number.isdecimal() else topic


def number_of(topic: str) -> int:
    """``p-partition-1`` -> 1; ``t`` -> -1."""
    return -1 if base_of(topic) == topic else int(topic.rpartition("-")[2])


def incarnation_of(topic_name: str, incarnation: str) -> str:
    """The model's name for a topic: one created after a deletion is another (R8)."""
    short = topic_name.rpartition("/")[2]
    return f"{short} since {incarnation}" if incarnation else short
