# SPDX-License-Identifier: Apache-2.0
"""Bounds of the composition root that no operator needs to set, each with its reason."""

from __future__ import annotations

from typing import Final

START_SECONDS_MAX: Final = 60.0
"""How long ``meridian up`` waits until every region is healthy. A start reads at most the log after the last index
checkpoint, which takes seconds; the rest is for a machine under load."""

HEALTH_POLL_SECONDS: Final = 0.05
"""Pause between two health checks of a starting region: short compared with its start, and hardly any load."""

HEALTH_ANSWER_SECONDS_MAX: Final = 5.0
"""How long one health request may take before it is sent again."""

STOP_MARGIN_SECONDS: Final = 5.0
"""Extra time that a broker gets beyond ``brokerShutdownTimeoutMs`` before it is killed."""

LOG_TAIL_LINES: Final = 8
"""Lines of a broker's log that are shown when it does not start: enough for the end of a traceback."""

LOG_TAIL_BYTES: Final = 16 * 1024
"""How much of the log's end is read for them."""

REGIONS_MAX: Final = 16
"""Regions of one ``meridian up``. The number of links grows with the square, and ports are ten apart."""
