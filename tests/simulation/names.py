# SPDX-License-Identifier: Apache-2.0
"""What several modules of the simulator call the same: topics, short and in full, and some times."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "persistent://public/default/"
HEARD_US: Final = 1_000_000
"""So long after a restore the others have heard that the region was gone, and what it had confirmed before with it."""
RETRY_US: Final = 500_000
"""So long after the end of a connection clients look for a broker again."""


def full_name(topic: str) -> str:
    """``t`` -> ``persistent://public/default/t``."""
    return NAMESPACE + topic
