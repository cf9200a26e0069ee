# SPDX-License-Identifier: Apache-2.0
"""Short names of topics, as stories use them, and full ones."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "persistent://public/default/"


def full_name(topic: str) -> str:
    """``t`` -> ``persistent://public/default/t``."""
    return NAMESPACE + topic
