# SPDX-License-Identifier: Apache-2.0
"""R63 for metadata: silence while regions converge, and exactly the path that one of them lost."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_verifier.align.facts import World
from meridian_verifier.align.findings import METADATA, Finding, Reason
from meridian_verifier.align.synced_metadata import FINDINGS_KEPT, Synced, Written, differences, pairs, shown, within
from meridian_verifier.align.verdicts import State, judge, with_metadata
from meridian_verifier.report.words import MEANINGS, troubles

REGIONS = ("ap", "eu", "us")
Regions = dict[str, dict[str, Written]]


def joined(one: Regions, region: str, path: str, state: Written) -> None:
    """A region receives a write."""
    known = one[region].get(path)
    if known is None or known.loses_to(state):
        one[region][path] = state


def everything(first: Regions, still: Regions, second: Regions) -> list[Finding]:
    both = [(source, target) for source in REGIONS for target in REGIONS if source != target]
    return [
        found
        for source, target in both
        for found in differences(source, target, first[source], still[source], second[target])
    ]


def copied(regions: Regions) -> Regions:
    return {name: dict(known) for name, known in regions.items()}


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_regions_that_receive_every_write_in_time_are_aligned(seed: int) -> None:
    """Writes go on all the time, in any region, even between two regions' snapshots; deletions are forgotten."""
    chance, regions = random.Random(seed), {name: dict[str, Written]() for name in REGIONS}
    under_way: list[tuple[str, str, Written]] = []
    now = 0

    def live(steps: int) -> None:
        nonlocal now
        for _ in range(steps):
            if under_way and chance.random() < 0.5:
                joined(regions, *under_way.pop(chance.randrange(len(under_way))))
                continue
            region, path = chance.choice(REGIONS), chance.choice("abcdefgh")
            now += 1
            state = Written(0, now, 0, region, chance.choice(["", "1", "2"]))
            joined(regions, region, path, state)
            under_way.extend((other, path, state) for other in REGIONS if other != region)

    def settle() -> None:
        while under_way:
            joined(regions, *under_way.pop())
        gone = [path for path, one in regions["us"].items() if not one.digest and chance.random() < 0.5]
        for path in gone:
            if all(not one[path].digest for one in regions.values() if path in one):
                for one in regions.values():
                    one.pop(path, None)

    live(60)
    first = copied(regions)
    settle()  # what existed at S1 has arrived by S2
    live(60)
    second: Regions = {}
    for name in chance.sample(REGIONS, 3):
        second[name] = dict(regions[name])
    assert everything(first, second, second) == []


def test_each_kind_of_loss_is_named_with_its_path_and_both_stamps() -> None:
    same = {"/a": Written(0, 5, 0, "us", "1"), "/b": Written(0, 5, 1, "us", "1"), "/c": Written(1, 1, 0, "eu", "")}
    first = {name: dict(same) for name in REGIONS}
    second = copied(first)
    second["eu"]["/a"] = Written(0, 4, 0, "us", "0")
    del second["eu"]["/b"]
    second["eu"]["/c"] = Written(0, 9, 0, "us", "1")
    second["us"]["/a"] = Written(0, 5, 0, "us", "2")
    told = {(one.reason, one.source, one.target, one.path, one.stamps) for one in everything(first, second, second)}
    behind = {
        (Reason.METADATA_BEHIND, source, "eu", path, stamps)
        for source in ("ap", "us")
        for path, stamps in (
            ("/a", ("5.0@us", "4.0@us")),
            ("/c", ("1.0@eu in generation 1 (deleted)", "9.0@us")),
        )
    }
    missing = {(Reason.METADATA_MISSING, one, "eu", "/b", ("5.1@us", "nothing")) for one in ("ap", "us")}
    differs = {(Reason.METADATA_DIFFERS, one, "us", "/a", ("5.0@us", "5.0@us")) for one in ("ap", "eu")}
    assert told == behind | missing | differs


def test_at_the_same_moment_the_region_whose_name_comes_first_wins() -> None:
    one, other = Written(0, 5, 0, "eu", "1"), Written(0, 5, 0, "us", "2")
    assert other.loses_to(one) and not one.loses_to(other)


def test_regions_that_share_by_one_topic_are_compared_in_what_both_share() -> None:
    everybody, folders = frozenset(REGIONS), frozenset(["/geo/tenants"])
    synced = {
        "ap": Synced("t", folders, everybody),
        "eu": Synced("t", folders, everybody),
        "us": Synced("t", folders | {"/geo/namespaces"}, everybody),
    }
    every = {(one, other) for one in REGIONS for other in REGIONS if one != other}
    assert pairs(synced) == dict.fromkeys(every, folders)
    without = {("ap", "us"), ("us", "ap")}
    for apart in (Synced("other", folders, everybody), Synced("t", folders, frozenset(["eu"])),
                  Synced("t", frozenset(["/geo/schemas"]), everybody)):  # fmt: skip
        assert set(pairs(synced | {"eu": apart})) == without
    known = {"/geo/tenants/a": Written(0, 1, 0, "us", "1"), "/geo/tenants-and-more/a": Written(0, 1, 0, "us", "1")}
    assert list(within(known, folders)) == ["/geo/tenants/a"]


def test_the_verdict_says_which_path_is_behind_where() -> None:
    world = World(("eu", "us"), {}, {}, {}, 0)
    aligned = with_metadata(judge(world, [], [], []), [("eu", "us"), ("us", "eu")], [])
    assert [(one.topic, one.state) for one in aligned.subjects] == [(METADATA, State.ALIGNED)]
    first = {"/geo/tenants/shop": Written(0, 5, 0, "us", "1")}
    found = list(differences("us", "eu", first, first, {}))
    verdict = with_metadata(judge(world, [], [], []), [("eu", "us"), ("us", "eu")], found)
    assert (verdict.state, verdict.exit_code) == (State.MISALIGNED, 1)
    assert "1 path of metadata" in verdict.summary
    assert list(troubles(verdict.subjects[0])) == ["MetadataMissing: us -> eu: /geo/tenants/shop: 5.0@us, nothing"]
    assert set(MEANINGS) == set(Reason)


def test_of_very_many_paths_some_are_listed() -> None:
    first = {f"/{number}": Written(0, 5, 0, "us", "1") for number in range(2 * FINDINGS_KEPT)}
    assert len(shown(differences("us", "eu", first, first, {}))) == FINDINGS_KEPT
