# SPDX-License-Identifier: Apache-2.0
"""The simplest model of progress, the acks of every entry in every layer, and random plans to test it with."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from meridian_broker.positions import EARLIEST, ZERO, AckSet, Beginning, Position, Progress, Stamp
from support.worlds.ready_made import one_of_kinds

REGIONS = ("us-east", "us-west")
LEDGERS, ENTRIES = 2, 4
PLACES = [EARLIEST] + [Position(ledger, entry) for ledger in range(LEDGERS) for entry in range(-1, ENTRIES)]
ACKABLE = [place for place in PLACES if place.entry >= 0]
EPOCHS = [Stamp(time, 0, region) for time in (1, 2) for region in ("b", "a")]
SIZE = 3
many = settings(max_examples=600, deadline=None)


def publish_time(region: str, place: Position) -> int:
    """An entry's publish time. They are in no order, because producers' clocks differ."""
    return 1 + (place.ledger * 31 + place.entry * 17 + len(region) + (region == "us-west") * 5) % 7


# Drawing one of many prepared values is ten times as fast as building each value from draws.
RANGES = [(low, high) for low in PLACES for high in PLACES if low < high]
RUNS = [(after, upto) for after, upto in RANGES if upto.entry >= 0]


def a_rewind(random: Random) -> tuple[Any, ...]:
    """``(rules, publish time, base)``."""
    rules = {region: random.choice(RANGES) for region in REGIONS if random.random() < 0.6}
    time = random.randrange(9) if random.random() < 0.3 else None
    base = {region: random.choices(RUNS, k=random.randrange(3)) for region in REGIONS if random.random() < 0.5}
    return rules, time, base


REWINDS: list[tuple[Any, ...]] = [
    ({}, None, {}),
    *(({}, time, {}) for time in range(9)),
    *(a_rewind(Random(seed)) for seed in range(600)),
]
histories = st.tuples(*(st.sampled_from(REWINDS) for _ in EPOCHS))
"""The rewind of each epoch: a stamp stands for one rewind."""


def a_beginning(incarnation: Stamp, created: Stamp, random: Random) -> Beginning:
    """The beginning of a creation: a stamp stands for one creation, at one place."""
    return Beginning(
        incarnation, created, {region: random.choice(PLACES[1:]) for region in REGIONS if random.random() < 0.7}
    )


INCARNATIONS = [ZERO, Stamp(50, 0, "b"), Stamp(50, 0, "a")]
BEGINNINGS = [
    *(Beginning(incarnation, ZERO, {}) for incarnation in INCARNATIONS[1:]),
    *(a_beginning(incarnation, Stamp(60, n, "a"), Random(n)) for incarnation in INCARNATIONS for n in range(5)),
]

_ANY = [(epoch, region) for epoch in [ZERO, *EPOCHS] for region in REGIONS]
steps = one_of_kinds(
    [("ack", *any_, *run) for any_ in _ANY for run in RUNS],
    [("one", *any_, place) for any_ in _ANY for place in ACKABLE],
    [("batch", *any_, place, bits) for any_ in _ANY for place in ACKABLE for bits in range(1, 8)],
    [("rewind", which) for which in range(len(EPOCHS))],
    [("begin", beginning) for beginning in BEGINNINGS],
)
plans = st.lists(steps, max_size=8)


def point(place: Position) -> Position:
    return Position(place.ledger, place.entry - 1)


def run(progress: Progress, step: tuple[Any, ...], history: tuple[Any, ...]) -> None:
    match step:
        case ("begin", beginning):
            progress.begin(beginning)
        case ("rewind", which):
            epoch, (rules, time, base) = EPOCHS[which], history[which]
            sets = {}
            for region, claimed in base.items():
                sets[region] = AckSet()
                for after, upto in claimed:
                    sets[region].claim(after, upto)
            progress.rewind(epoch, rules, sets, time)
        case ("ack", epoch, region, after, upto):
            progress.ack(min(epoch, progress.epoch), region, after, upto)
        case ("one", epoch, region, place):
            time = publish_time(region, place)
            progress.ack(min(epoch, progress.epoch), region, point(place), place, time)
        case ("batch", epoch, region, place, bits):
            time = publish_time(region, place)
            progress.ack_batch(min(epoch, progress.epoch), region, place, SIZE, bits, point(place), time)


class NaiveModel:
    """Per epoch and entry, the acked messages as bits. Never forgets a layer."""

    def __init__(self) -> None:
        self.beginning = Beginning(ZERO, ZERO, {})
        self.rewinds: dict[Stamp, tuple[Any, ...]] = {}
        self.acked: dict[tuple[Stamp, str, Position], int] = {}

    @property
    def epoch(self) -> Stamp:
        return max(self.rewinds, default=ZERO)

    def rules(self, epoch: Stamp, region: str, place: Position) -> bool:
        rules, time, _ = self.rewinds[epoch]
        if time is not None and publish_time(region, place) >= time:
            return True
        return region in rules and rules[region][0] < place <= rules[region][1]

    def layer(self, region: str, place: Position, epoch: Stamp | None = None) -> Stamp:
        known = [e for e in self.rewinds if (epoch is None or e <= epoch) and self.rules(e, region, place)]
        return max(known, default=ZERO)

    def run(self, step: tuple[Any, ...], history: tuple[Any, ...]) -> None:
        match step:
            case ("begin", beginning):
                self.begin(beginning)
            case ("rewind", which):
                epoch, base = EPOCHS[which], history[which][2]
                self.rewinds[epoch] = history[which]
                for region, claimed in base.items():
                    for after, upto in claimed:
                        for place in ACKABLE:
                            if after < place <= upto:
                                self.add(epoch, region, place)
            case ("ack", epoch, region, after, upto):
                for place in ACKABLE:
                    if after < place <= upto:
                        self.add(self.layer(region, place, min(epoch, self.epoch)), region, place)
            case ("one", epoch, region, place):
                self.add(self.layer(region, place, min(epoch, self.epoch)), region, place)
            case ("batch", epoch, region, place, bits):
                self.add(self.layer(region, place, min(epoch, self.epoch)), region, place, bits)

    def add(self, epoch: Stamp, region: str, place: Position, bits: int = (1 << SIZE) - 1) -> None:
        key = epoch, region, place
        self.acked[key] = self.acked.get(key, 0) | bits

    def begin(self, other: Beginning) -> None:
        """A later incarnation is another subscription; of two creations of one, the earlier one counts."""
        if self.beginning.incarnation < other.incarnation:
            self.rewinds, self.acked, self.beginning = {}, {}, other
        elif self.beginning.incarnation == other.incarnation and other.created != ZERO:
            self.beginning = min(self.beginning, other, key=lambda one: (one.created == ZERO, one.created))

    def join(self, other: NaiveModel) -> None:
        self.begin(other.beginning)
        if other.beginning.incarnation < self.beginning.incarnation:
            return
        self.rewinds |= other.rewinds
        for key, bits in other.acked.items():
            self.acked[key] = self.acked.get(key, 0) | bits

    def reads(self) -> dict[tuple[str, Position], int]:
        found = {}
        for region in REGIONS:
            start = self.beginning.places.get(region, EARLIEST)
            for place in ACKABLE:
                layer = self.layer(region, place)
                acked = self.acked.get((layer, region, place), 0)
                found[region, place] = (1 << SIZE) - 1 if layer == ZERO and place <= start else acked
        return found


def reads(progress: Progress) -> dict[tuple[str, Position], int]:
    found = {}
    for region in REGIONS:
        for place in ACKABLE:
            time = publish_time(region, place)
            remaining = progress.remaining(region, place, SIZE, time)
            found[region, place] = (1 << SIZE) - 1 if remaining is None else remaining
            assert (remaining == 0) == progress.is_acked(region, place, time)
    return {key: (1 << SIZE) - 1 & ~bits for key, bits in found.items()}


def build(plan: list[tuple[Any, ...]], history: tuple[Any, ...]) -> tuple[Progress, NaiveModel]:
    progress, model = Progress(), NaiveModel()
    for step in plan:
        # A layer that is overruled for good may be forgotten with its epoch, but never the newest one.
        assert progress.epoch == model.epoch
        run(progress, step, history)
        model.run(step, history)
    return progress, model
