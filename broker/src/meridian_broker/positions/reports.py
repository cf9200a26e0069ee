# SPDX-License-Identifier: Apache-2.0
"""Reports: up to where a region owes nothing, so that floors can pass entries that were dropped everywhere (rule R11).

A drop belongs to its region and is not an ack (R14). So regions do not exchange drops but how far they owe nothing: a
*report* names per origin the position up to which every entry is, in that region, acked, dropped, or neither stored nor
expected. The minimum of all regions' reports is a floor: each entry up to it was acked somewhere or is owed nowhere.

A rewind, or an earlier beginning, makes entries owed again (R12, R15), so a report is valid for one *state* of the
subscription: a digest of both. A region's later report replaces its earlier one, even if it covers less. Reports
merge per region: the later stamp wins, so they are a semilattice like all of ``Progress``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from meridian_broker.positions.claims import put_position, take_position
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.varints import Reader, put_name, put_number


class Report(NamedTuple):
    """See the module's text."""

    stamp: Stamp
    """When the region made the report, by its own clock."""
    state: int
    """``Progress.state`` in the region at that time."""
    upto: Mapping[str, Position]
    """Per origin region: up to here nothing is owed."""

    def joined(self, other: Report) -> Report:
        """The one that counts."""
        if self.stamp != other.stamp:
            return max(self, other, key=lambda one: one.stamp)
        # One stamp is one report; if a fault made two, the one that promises less counts.
        if self.state != other.state:
            return max(self, other, key=lambda one: one.state)
        both = self.upto.keys() & other.upto.keys()
        return Report(self.stamp, self.state, {region: min(self.upto[region], other.upto[region]) for region in both})


Reports = Mapping[str, Report]
"""Reports by region. Never changed in place."""
NONE: Final[Reports] = {}


def joined(mine: Reports, theirs: Reports) -> Reports:
    """The union; ``mine`` itself if nothing is new."""
    if not theirs or mine is theirs:
        return mine
    both = dict(mine)
    for region, report in theirs.items():
        known = mine.get(region)
        both[region] = report if known is None else known.joined(report)
    return mine if both == mine else both


def lacking(mine: Reports, theirs: Reports) -> Reports:
    """Mine, without those that the other has in the same or a later version."""
    return {region: report for region, report in mine.items() if joined(theirs, {region: report}) is not theirs}


def vouched(reports: Reports, regions: Iterable[str], state: int, acked: Mapping[str, Position]) -> dict[str, Position]:
    """Per origin the floor that all these regions vouch for, where it is above the contiguous acks.

    :param acked: per origin the end of the contiguous acks; the same in every region.
    """
    found = agreed(reports, regions, state) or {}
    return {origin: position for origin, position in found.items() if position > acked.get(origin, EARLIEST)}


def agreed(reports: Reports, regions: Iterable[str], state: int) -> dict[str, Position] | None:
    """Per origin up to where none of these regions owes anything; None: not all of them report on this state."""
    found: dict[str, Position] | None = None
    for region in regions:
        report = reports.get(region)
        if report is None or report.state != state:
            return None
        upto = report.upto
        if found is None:
            found = dict(upto)
        else:
            found = {origin: min(found[origin], upto[origin]) for origin in found.keys() & upto.keys()}
    return found


def digest(reports: Reports) -> int:
    """64 bits, the same in every region; 0 if there are no reports."""
    if not reports:
        return 0
    out = bytearray()
    put(out, reports)
    return int.from_bytes(blake2b(out, digest_size=8).digest(), "big")


def put(out: bytearray, reports: Reports) -> None:
    """Append the canonical encoding."""
    put_number(out, len(reports))
    for region in sorted(reports):
        stamp, state, upto = reports[region]
        put_name(out, region)
        put_number(out, stamp.time_ms)
        put_number(out, stamp.counter)
        put_name(out, stamp.region)
        out += state.to_bytes(8, "big")
        put_number(out, len(upto))
        for origin in sorted(upto):
            put_name(out, origin)
            put_position(out, upto[origin])


def take(reader: Reader) -> Reports:
    """:raises ValueError: these bytes are not valid reports."""
    reports: dict[str, Report] = {}
    for _ in range(reader.count(13)):
        region = reader.name()
        if region in reports:
            raise reader.broken(f"region {region!r} reports twice")
        stamp = Stamp(reader.number(), reader.number(), reader.name())
        state = int.from_bytes(reader.take(8), "big")
        upto: dict[str, Position] = {}
        for _ in range(reader.count(3)):
            origin = reader.name()
            if origin in upto:
                raise reader.broken(f"origin {origin!r} comes twice")
            upto[origin] = take_position(reader)
        reports[region] = Report(stamp, state, upto)
    return reports
