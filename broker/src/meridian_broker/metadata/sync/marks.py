# SPDX-License-Identifier: Apache-2.0
"""Records of the marks that were heard from other regions (``events.Mark``)."""

from __future__ import annotations

from meridian_broker.metadata.records import decode
from meridian_broker.metadata.sync.stamped import Moment


def read_mark(path: str, data: bytes) -> tuple[Moment, dict[str, Moment]]:
    """A region's mark, and the marks of others that it has heard. :raises MetadataError: the record is damaged."""
    shown, _ = decode(path, data)
    heard = {str(region): (int(upto[0]), int(upto[1])) for region, upto in shown["heard"].items()}
    return (int(shown["mark"][0]), int(shown["mark"][1])), heard
