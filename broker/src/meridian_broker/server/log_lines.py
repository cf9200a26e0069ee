# SPDX-License-Identifier: Apache-2.0
"""The format of the log: one line per event, whatever client-supplied text it contains."""

from __future__ import annotations

import logging
import time
from typing import Final

from meridian_broker.wire.shown import cut, shown

LINE_BYTES: Final = 2048
"""A longer line is cut: a name or reason that a client chose must not fill the disk."""
TRACEBACK_LINES: Final = 100
"""A longer traceback is cut to its end, where the error is."""


class LogLines(logging.Formatter):
    """Time in UTC, level, logger, message. Lines of a traceback are indented: none can pass for an event."""

    def __init__(self) -> None:
        super().__init__(
            fmt="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return cut(shown(super().formatMessage(record)), LINE_BYTES)

    def formatException(self, ei: object) -> str:  # noqa: N802 - the library's name
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join("  " + cut(shown(line), LINE_BYTES - 2) for line in lines[-TRACEBACK_LINES:])
