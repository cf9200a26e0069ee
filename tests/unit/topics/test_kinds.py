# SPDX-License-Identifier: Apache-2.0
"""Which of two creations of one name counts, as a model: regions with topics of either kind meet in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.topics.service.kinds import Creation, Kind, gives_way

REGIONS = ("ap", "eu", "us")


@dataclass
class Region:
    """What a region has under the name."""

    made: Creation | None = None
    aside: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def hear(self, theirs: Creation) -> None:
        """Like ``make_way`` and the creation after it."""
        if self.made is not None and gives_way(self.made, theirs):
            self.aside += self.messages
            self.messages = []
            self.made = None
        if self.made is None:
            self.made = theirs


def meet(asking: Region, asked: Region) -> None:
    if asking.made is not None:
        asked.hear(asking.made)


creations = st.builds(
    Creation,
    st.builds(Stamp, st.integers(1, 5), st.integers(0, 2), st.sampled_from(REGIONS)) | st.just(ZERO),
    st.sampled_from(Kind),
)


@settings(max_examples=500)
@given(
    st.lists(creations, min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20),
)
def test_regions_that_all_met_have_the_earliest_kind_and_every_message(
    made: list[Creation], meetings: list[tuple[int, int]]
) -> None:
    regions = [Region(one, messages=[f"message of {number}"]) for number, one in enumerate(made)]
    every = [(asking, asked) for asking in range(3) for asked in range(3)]
    for asking, asked in [*meetings, *every * 3]:  # replicators retry, from each region to every other
        meet(regions[asking], regions[asked])
    assert {region.made.kind for region in regions if region.made is not None} == {min(made).kind}
    for number, region in enumerate(regions):
        assert [*region.messages, *region.aside] == [f"message of {number}"]


@given(creations, creations)
def test_one_of_two_counts_whichever_asks(one: Creation, other: Creation) -> None:
    """Two regions that tell each other at the same moment neither both give way nor both stay."""
    assert (gives_way(one, other) != gives_way(other, one)) == (one.kind is not other.kind)


def test_a_topic_of_an_earlier_version_counts_as_created_first() -> None:
    later = Creation(Stamp(1, 0, "us"), Kind.PARTITIONED)
    assert Creation(ZERO, Kind.PLAIN) < later
    assert Creation(ZERO, Kind.PARTITIONED) < Creation(ZERO, Kind.PLAIN)
