# SPDX-License-Identifier: Apache-2.0
"""Logging to standard error, one line per record. Lines about an object name it."""

from __future__ import annotations

import copy
import logging


def set_up(level: str) -> None:
    """Log records of ``level`` and above."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # the desk logs what happens to an object
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # every probe would log a line


class Lines(logging.Formatter):
    """Time, level, logger and, where the line is about an object, the object.

    Our own messages begin with the object. kopf attaches a reference to its records and leaves it to formatters.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by any traceback."""
        of = getattr(record, "k8s_ref", None)
        if of:
            record = copy.copy(record)
            name = "/".join(part for part in (of.get("namespace"), of.get("name")) if part)
            record.msg, record.args = f"{of.get('kind')} {name}: {record.getMessage()}", ()
        return super().format(record)
