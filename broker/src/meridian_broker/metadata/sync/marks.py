# SPDX-License-Identifier: Apache-2.0
"""Records of the marks that were heard from other regions (``events.Mark``), and since when.

That a region has heard a mark tells what it has known since, not what it knew at its earlier writes. So some marks are
kept with the moment, by this region's clock, at which they were heard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment

MARKS_KEPT: Final = 16
LATEST_KEPT: Final = 8
"""Marks come every few seconds, and regions are compared every minute. Of earlier ones, fewer are kept the older they
are, so that something is known about writes of hours ago, too: a region may have been away for that long."""

Since = tuple[Moment, Moment]
"""A mark, and when it was heard: later writes of this region have later stamps."""


def read_mark(path: str, data: bytes) -> tuple[Moment, dict[str, Moment]]:
    """A region's mark, and the marks of others that it has heard. :raises MetadataError: the record is damaged."""
    shown, _ = decode(path, data)
    heard = {str(region): (int(upto[0]), int(upto[1])) for region, upto in shown["heard"].items()}
    return _moment(shown["mark"]), heard


def read_since(path: str, data: bytes) -> tuple[Since, ...]:
    """The last marks of a region, the newest one last. :raises MetadataError: the record is damaged."""
    shown, _ = decode(path, data)
    if "since" not in shown:  # of an earlier version
        return ((_moment(shown["mark"]), BEGINNING),)
    return tuple((_moment(mark), _moment(at)) for mark, at in shown["since"])


def write_mark(upto: Moment, heard: Mapping[str, Moment], since: Sequence[Since]) -> bytes:
    """
    :param heard: marks of others that the region has heard.
    :param since: as ``read_since``.
    """
    return encode(
        {
            "mark": list(upto),
            "heard": {region: list(moment) for region, moment in heard.items()},
            "since": [[list(mark), list(at)] for mark, at in thinned(since)],
        }
    )


def thinned(since: Sequence[Since]) -> list[Since]:
    """The marks to keep: the latest ones, the oldest one, and some between these at distances that grow with their
    age."""
    kept = [*since]
    while len(kept) > MARKS_KEPT:
        now_ms = kept[-1][1][0]

        def matters(place: int, now_ms: int = now_ms) -> float:
            (before_ms, _), (heard_ms, _), (after_ms, _) = (at for _, at in kept[place - 1 : place + 2])
            return (after_ms - before_ms) / max(1, now_ms - heard_ms)

        del kept[min(range(1, len(kept) - LATEST_KEPT), key=matters)]
    return kept


def heard_at(since: Sequence[Since], at: Moment) -> Moment:
    """The mark that had been heard when this region made a write with such a stamp. ``BEGINNING``: none, or too long
    ago to tell."""
    return max((mark for mark, heard in since if heard < at), default=BEGINNING)


def _moment(shown: Sequence[int]) -> Moment:
    return int(shown[0]), int(shown[1])
