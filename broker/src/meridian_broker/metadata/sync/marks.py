# SPDX-License-Identifier: Apache-2.0
"""Records of the marks that were heard from other regions (``events.Mark``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.sync.stamped import Moment


def read_mark(path: str, data: bytes) -> tuple[Moment, dict[str, Moment]]:
    """A region's mark, and the marks of others that it has heard. :raises MetadataError: the record is damaged."""
    shown, _ = decode(path, data)
    heard = {str(region): _moment(upto) for region, upto in shown["heard"].items()}
    return _moment(shown["mark"]), heard


def write_mark(upto: Moment, heard: Mapping[str, Moment]) -> bytes:
    """:param heard: marks of others that the region has heard."""
    return encode({"mark": list(upto), "heard": {region: list(moment) for region, moment in heard.items()}})


def _moment(shown: Sequence[int]) -> Moment:
    return int(shown[0]), int(shown[1])
