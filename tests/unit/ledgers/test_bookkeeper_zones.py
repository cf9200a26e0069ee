# SPDX-License-Identifier: Apache-2.0
"""Copies are in several zones wherever possible, from a ledger's first ensemble to its last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.bookies import AVOID_SECONDS, Bookies
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet
from meridian_broker.engines.bookkeeper.zones import Zones, parse_zones

BOOKIES = [f"{zone}{number}" for zone in "abc" for number in range(4)]
ZONES = Zones({"a*": "A", "b*": "B", "c*": "C"})


class Link:
    """Bookies, any of which may be down; the order in which they are considered is drawn."""

    def __init__(self, data: st.DataObject, here: list[str]) -> None:
        self.data = data
        self.here = here
        self.stored: tuple[str, ...] | None = None

    def send(self, _bookie: str, _first: int, packets: Sequence[Packet]) -> int:
        return len(packets)

    def send_all(self, _bookies: tuple[str, ...], _entry: int, _packet: Packet) -> bool:
        return True

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        others = self.data.draw(st.permutations([bookie for bookie in self.here if bookie not in exclude]))
        if not others:
            return wanted if wanted in self.here else None
        return ZONES.next_to([bookie for bookie in exclude if bookie != wanted], others)

    def wake(self) -> None: ...

    def avoid(self, bookie: str) -> None: ...

    def defer(self, callback: Callable[[], None]) -> None: ...

    def store_ensemble(self, _first: int, ensemble: tuple[str, ...]) -> None:
        self.stored = ensemble


@given(
    here=st.lists(st.sampled_from(BOOKIES), unique=True, min_size=1),
    size=st.integers(1, 5),
    chosen=st.integers(0, 3),
)
def test_an_ensemble_is_in_as_many_zones_as_there_are(here: list[str], size: int, chosen: int) -> None:
    first = ZONES.ensemble(here[:chosen], size)
    ensemble = ZONES.ensemble(here[chosen:], size, first)
    assert len(set(ensemble)) == len(ensemble) == min(size, len(here))
    assert set(ensemble) <= set(here)
    if not chosen:
        assert ZONES.number(ensemble) == min(size, ZONES.number(here))
    if size > len(first) and ZONES.number(here) > 1 and len(ensemble) > 1:
        assert ZONES.number(ensemble) > 1 or len(first) == size


@given(data=st.data(), size=st.integers(2, 4))
def test_a_ledger_stays_in_several_zones_whichever_bookies_fail(data: st.DataObject, size: int) -> None:
    """One or several at once, with or without returning; unless all remaining bookies are in one zone."""
    link = Link(data, list(BOOKIES))
    ensemble = ZONES.ensemble(data.draw(st.permutations(BOOKIES)), size)
    adding = Adding(7, link, link.store_ensemble, ensemble, 1, limits=AddLimits(), now_ms=0)
    for _ in range(data.draw(st.integers(1, 6))):
        link.here = data.draw(st.lists(st.sampled_from(BOOKIES), unique=True, min_size=size))
        lost = [bookie for bookie in adding.ensemble if bookie not in link.here]
        for bookie in lost:
            adding.lost(bookie, "away")
            while link.stored is not None:
                link.stored = None
                adding.ensemble_stored()
        now = adding.ensemble
        if lost and set(now) <= set(link.here) and ZONES.number(now) == 1:
            stayed = set(ensemble) & set(now)
            assert ZONES.number([*stayed, *link.here]) == 1 or ZONES.number(ensemble) == 1
        ensemble = now


@given(here=st.lists(st.sampled_from(BOOKIES), unique=True, min_size=2), data=st.data())
def test_a_replacement_keeps_zones_apart(here: list[str], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(here) - 1))
    stay, candidates = here[:size], here[size:]
    found = ZONES.next_to(stay, candidates)
    assert found in candidates
    assert ZONES.number([*stay, found]) == max(ZONES.number([*stay, one]) for one in candidates)


def test_without_zones_the_first_bookie_is_chosen() -> None:
    assert Zones().next_to(["a1"], ["a2", "b1"]) == "a2"
    assert Zones().ensemble(["a1", "a2", "b1"], 2) == ("a1", "a2")


def test_the_longest_matching_pattern_wins() -> None:
    zones = Zones(parse_zones(" bookie-a-* = a, bookie-a-b-*=a-b,bookie-a-7=c ,, *=rest"))
    assert [zones.of(f"bookie-{one}") for one in ("a-0", "a-b-0", "a-7", "a-77", "x")] == ["a", "a-b", "c", "a", "rest"]
    assert Zones({"x": "a"}).of("y") == ""


@pytest.mark.parametrize("text", ["x", "=a", "x=", "a*b=c", "**=a", "x=a,x=b", ",".join(f"{n}=a" for n in range(1001))])
def test_invalid_zone_settings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"BOOKIE=ZONE|two zones|limit"):
        parse_zones(text)


async def test_one_zone_alone_is_used_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    bookies = Bookies(zones=ZONES)
    for name in ("a0", "a1", "b0"):
        bookies.registered(name, (name, 1), is_writable=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert ZONES.number(bookies.choose_ensemble(2)) == 2
            assert bookies.choose("b0", {"b0", "a0"}) == "a1" or not caplog.messages
        caplog.clear()
        assert ZONES.number(bookies.choose_ensemble(2)) == 2
        bookies.unregistered("b0")
        for _ in range(3):
            assert set(bookies.choose_ensemble(3)) == {"a0", "a1"}
        assert len(caplog.messages) == 1 and "all in zone A" in caplog.messages[0]
        bookies.registered("b0", ("b0", 1), is_writable=True)
        assert {bookies.choose("a0", {"a0", "a1"}) for _ in range(10)} == {"b0"}
        bookies.avoid("b0")
        assert set(bookies.choose_ensemble(2)) == {"a0", "a1"}
        assert len(caplog.messages) == 2
    assert AVOID_SECONDS > 0
    assert asyncio.get_running_loop().is_running()
    await bookies.close()
