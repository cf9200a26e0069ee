# SPDX-License-Identifier: Apache-2.0
"""The log: one line each on standard error, and lines about an object name it."""

from __future__ import annotations

import copy
import logging


def set_up(level: str) -> None:
    """Log from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # the desk says what happens to an object
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # each probe would be a line


class Lines(logging.Formatter):
    """Time, level, logger, and the object where the line is about one.

    Our own lines begin with the object. kopf attaches a reference to its records, and leaves the rest to formatters.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it."""
        of = getattr(record, "k8s_ref", None)
        if of:
            record = copy.copy(record)
            name = "/".join(part for part in (of.get("namespace"), of.get("name")) if part)
            record.msg, record.args = f"{of.get('kind')} {name}: {record.getMessage()}", ()
        return super().format(record)
