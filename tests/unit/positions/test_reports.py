# SPDX-License-Identifier: Apache-2.0
"""Reports of what regions do not owe (R11): a semilattice with the rest of progress, and floors that pass no debt."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, Beginning, Position, Progress, Stamp
from meridian_broker.positions.encoded import REPORTS
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import Report, vouched

REGIONS = ("us", "eu", "ap")
ENTRIES = 6

places = st.dictionaries(st.sampled_from(REGIONS[:2]), st.integers(0, ENTRIES).map(lambda n: Position(1, n)))
# One draw of a ready-made value instead of several that make one.
stamps = st.sampled_from([Stamp(time, 0, region) for time, region in product(range(1, 4), REGIONS)])
maybe, acked = st.booleans(), st.sets(st.integers(0, ENTRIES))
reports = st.dictionaries(st.sampled_from(REGIONS), st.builds(Report, stamps, st.integers(0, 2), places))


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    progress = Progress()
    if draw(maybe):
        progress.begin(Beginning(ZERO, draw(stamps), {}))
    for entry in draw(acked):
        progress.ack(ZERO, "us", Position(1, entry - 1), Position(1, entry))
    if draw(maybe):
        progress.rewind(draw(stamps), {"us": (Position(1, 1), Position(1, 4))})
    progress.reports = draw(reports)
    return progress


def joined(*some: Progress) -> Progress:
    result = Progress()
    for one in some:
        result.join(one)
    return result


@settings(max_examples=500)
@given(progresses(), progresses(), progresses())
def test_progress_with_reports_is_a_semilattice(one: Progress, two: Progress, three: Progress) -> None:
    assert joined(one, two) == joined(two, one)
    assert joined(joined(one, two), three) == joined(one, joined(two, three))
    both = joined(one, two)
    assert not both.copy().join(one)
    assert one.within(both)
    assert two.within(both)
    assert joined(one, two.minus(one)) == both
    assert two.minus(one).is_empty == two.within(one)
    assert Progress.decode(both.encode()) == both
    assert Progress.decode(both.encode()).encode() == both.encode()
    mine, its = one.digests(), two.digests()
    assert (mine == its) == (one == two)
    differing = [key for key, digest in its.items() if mine.get(key) != digest]
    assert joined(one, two.extract(differing)) == both
    assert ((ZERO, "", REPORTS) in mine) == bool(one.reports)


class Region:
    """One region with all entries of one origin stored, and the rule that ``topics/cursors/floors.py`` applies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress = Progress()
        self.dropped: set[int] = set()
        self.reports = 0

    def acked_or_dropped(self, entry: int) -> bool:
        return entry in self.dropped or self.progress.is_acked("us", Position(1, entry))

    def merge(self, told: Progress) -> None:
        before = self.progress.rewinds()
        self.progress.join(told)
        for epoch, rules, _ in self.progress.rewinds():
            if all(epoch != known for known, _, _ in before):  # a rewind undoes drops (R12)
                low, high = rules["us"]
                self.dropped -= {entry for entry in self.dropped if low < Position(1, entry) <= high}

    def report(self) -> None:
        first = next((entry for entry in range(ENTRIES) if not self.acked_or_dropped(entry)), ENTRIES)
        self.reports += 1
        report = Report(Stamp(self.reports, 0, self.name), self.progress.state(), {"us": Position(1, first - 1)})
        told = self.progress.empty_delta()
        told.reports = {self.name: report}
        self.progress.join(told)

    def rise(self) -> None:
        for origin, floor in vouched(
            self.progress.reports, REGIONS, self.progress.state(), self.progress.floors()
        ).items():
            self.progress.raise_floor(origin, floor)


steps = st.lists(
    st.one_of(
        st.sampled_from([*product(["ack"], REGIONS, range(ENTRIES))]),
        st.sampled_from([*product(["drop"], REGIONS, range(ENTRIES))]),
        st.sampled_from([*product(["rewind"], REGIONS, range(ENTRIES - 1))]),
        st.sampled_from([*product(["report"], REGIONS, [0])]),
        st.sampled_from([*product(REGIONS, REGIONS, [0])]),
    ),
    max_size=60,
)


@settings(max_examples=500)
@given(steps)
def test_a_floor_never_passes_what_some_region_owes(plan: list[tuple[str, str, int]]) -> None:
    """An entry that counts as acked was acked in its epoch, or was dropped by all in the same epoch."""
    regions = {name: Region(name) for name in REGIONS}
    acked: set[tuple[Stamp, int]] = set()
    dropped: dict[tuple[Stamp, int], set[str]] = {}

    def ruling(region: Region, entry: int) -> Stamp:
        epochs = [
            e for e, rules, _ in region.progress.rewinds() if rules["us"][0] < Position(1, entry) <= rules["us"][1]
        ]
        return max(epochs, default=ZERO)

    for number, (what, name, entry) in enumerate(plan):
        region = regions[name]
        at = Position(1, entry)
        if what == "ack":
            acked.add((ruling(region, entry), entry))
            region.progress.ack(region.progress.epoch, "us", Position(1, entry - 1) if entry else EARLIEST, at)
        elif what == "drop":
            if not region.acked_or_dropped(entry):
                region.dropped.add(entry)
                dropped.setdefault((ruling(region, entry), entry), set()).add(name)
        elif what == "rewind":
            told = region.progress.empty_delta()
            told.rewind(Stamp(number + 1, 0, name), {"us": (at, Position(1, ENTRIES))})
            region.merge(told)
        elif what == "report":
            region.report()
        else:
            region.merge(regions[what].progress.copy())
        region.rise()
        for one in regions.values():
            for each in range(ENTRIES):
                if one.progress.is_acked("us", Position(1, each)):
                    epoch = ruling(one, each)
                    assert (epoch, each) in acked or dropped.get((epoch, each)) == set(REGIONS)


def test_floors_pass_what_all_regions_dropped() -> None:
    """The other half: once everything is exchanged, the floor is at the first owed entry."""
    regions = {name: Region(name) for name in REGIONS}
    regions["us"].progress.ack(ZERO, "us", Position(1, 1), Position(1, 2))
    for region in regions.values():
        region.dropped |= {0, 1}
    regions["eu"].dropped.add(3)
    for _ in range(2):
        for region in regions.values():
            for other in regions.values():
                region.merge(other.progress.copy())
            region.report()
    for region in regions.values():
        region.merge(joined(*(other.progress for other in regions.values())))
        region.rise()
        assert region.progress.floors() == {"us": Position(1, 2)}
        assert not region.progress.count_detail()


def test_reports_from_before_a_rewind_are_void() -> None:
    """R12: all dropped it and reported so, then it is owed again: the earlier reports raise no floor."""
    regions = {name: Region(name) for name in REGIONS}
    for region in regions.values():
        region.dropped |= {0, 1}
        region.report()
    us = regions["us"]
    for region in regions.values():
        us.merge(region.progress.copy())
    told = us.progress.empty_delta()
    told.rewind(Stamp(9, 0, "us"), {"us": (EARLIEST, Position(1, ENTRIES))})
    us.merge(told)
    us.rise()
    assert not us.progress.is_acked("us", Position(1, 0))
    assert us.progress.floors() == {"us": EARLIEST}
