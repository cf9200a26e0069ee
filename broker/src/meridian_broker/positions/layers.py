# SPDX-License-Identifier: Apache-2.0
"""Layers: rewinds, and the entries each of them applies to (rules R12, R13).

A rewind *rules* a range ``(low, high]`` of positions per origin region, or every entry published at or after a time, or
both. Ruled entries are read from its layer, whatever older layers contain; all other entries are unaffected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

from meridian_broker.positions.acks_by_region import copy_acks
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.varints import Reader, put_number

LAYERS_MAX = 64
"""With this many rewinds a subscription accepts no further seek back. Regions cut off from each other may each make as
many; their union is written and read whatever its size."""

epoch_of = attrgetter("epoch")


class Layers(list[Layer]):
    """Rewinds, oldest first, and which of them decide a place.

    When a rewind is added or extended, ``Progress`` replaces its list and never changes it: references to an old list
    stay usable, and what that cached about its ranges stays valid.
    """

    __slots__ = ("_by_epoch", "_heads", "_places", "epoch", "notes_once", "rules_all", "timed", "timeless")

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        super().__init__(layers)
        assert len(self) < 2 or all(early.epoch < late.epoch for early, late in pairwise(self)), "in order of epochs"
        self.epoch: Stamp = self[-1].epoch if self else ZERO
        """The newest rewind's epoch."""
        self.rules_all: bool = bool(self) and self[0].rules_all_by_time
        """Whether the base layer is never read. A rewind with that effect is the oldest remembered."""
        self.timed: tuple[Layer, ...] = tuple(layer for layer in reversed(self) if layer.publish_time_ms is not None)
        """The seeks by time, newest first."""
        self.notes_once: bool = len(self.timed) > 1
        """Whether acks of the newest epoch are kept once for all seeks by time, because there are several."""
        self.timeless: dict[str, AckSet] = {}
        """Acks that count whenever their entry was published: kept once for all seeks by time and the base layer."""
        self._heads: bytes | None = None
        self._by_epoch = {layer.epoch: layer for layer in self}
        self._places: dict[str, tuple[list[Position], dict[int, list[Layer]]]] = {}
        """Per origin region the borders of all ranges, and for each stretch between two borders the layers in
        question."""

    @property
    def known(self) -> Layers:
        """All rewinds known, with or without acks."""
        return self

    @property
    def heads(self) -> bytes:
        """The encoded heads of all known rewinds: equal exactly if the same rewinds are known."""
        if self._heads is None:
            out = bytearray()
            put_number(out, len(self))
            for layer in self:
                layer.put_head(out)
            self._heads = bytes(out)
        return self._heads

    def timed_acks(self) -> Iterator[Mapping[str, AckSet]]:
        """The acks of each seek by time, newest first, without those kept once for all."""
        return (layer.acks for layer in self.timed)

    def beside_times(self, region: str, after: Position, upto: Position) -> list[Layer]:
        """The layers of ``over`` that are not seeks by time, for adding acks."""
        return [
            layer
            for layer in self.over(region, after, upto)
            if layer.publish_time_ms is None and layer.may_rule(region, after, upto, 0)
        ]

    def copied(self) -> Layers:
        """An independent copy."""
        other = Layers(layer.copy() for layer in self)
        other.timeless = copy_acks(self.timeless)
        return other

    def find(self, epoch: Stamp) -> Layer | None:
        """The rewind with this stamp, or None."""
        return self._by_epoch.get(epoch)

    def replaced(self, layers: Iterable[Layer]) -> Layers | None:
        """A list of these layers instead; None if there are none."""
        return Layers(layers) or None

    def all(self) -> Iterable[Layer]:
        """All of them, for adding acks."""
        return self

    def at(self, region: str, position: Position) -> list[Layer]:
        """The layers, newest first, that may be the newest to rule an entry. If one rules it by its position it is the
        last one; before that come seeks by time."""
        borders, found = self._places_of(region)
        stretch = bisect_left(borders, position)
        layers = found.get(stretch)
        if layers is None:
            layers = found[stretch] = list(self._look(region, position))
        return layers

    def over(self, region: str, after: Position, upto: Position) -> Iterable[Layer]:
        """As ``at``, for all entries in an interval in which no range begins or ends: the same layers."""
        return reversed(self) if self.stretch(region, after, upto) is None else self.at(region, upto)

    def stretch(self, region: str, after: Position, upto: Position) -> int | None:
        """The number of the stretch, between two borders, that contains an interval; None: a border lies inside."""
        borders = self._places_of(region)[0]
        number = bisect_left(borders, upto)
        return number if number == bisect_right(borders, after) else None

    def ruling(
        self, epoch: Stamp, region: str, after: Position, upto: Position, publish_time_ms: int
    ) -> Iterable[Layer | None]:
        """The layers, newest first and not newer than ``epoch``, that may be the newest to rule part of an interval;
        None at the end if the base layer may be read there, too."""
        layers = self.over(region, after, upto) if epoch == self.epoch else reversed(self)
        for layer in layers:
            if layer.epoch <= epoch:
                if layer.may_rule(region, after, upto, publish_time_ms):
                    yield layer
                if layer.rules_all(region, after, upto):
                    return
        if not self.rules_all:
            yield None

    def _places_of(self, region: str) -> tuple[list[Position], dict[int, list[Layer]]]:
        places = self._places.get(region)
        if places is None:
            borders = sorted({border for layer in self for border in layer.rules.get(region, ())})
            places = self._places[region] = borders, {}
        return places

    def _look(self, region: str, position: Position) -> Iterator[Layer]:
        for layer in reversed(self):
            rule = layer.rules.get(region)
            is_certain = layer.rules_all_by_time or (rule is not None and rule[0] < position <= rule[1])
            if is_certain or layer.publish_time_ms is not None:
                yield layer
            if is_certain:
                return

    def not_overruled(self) -> Layers | None:
        """The list without rewinds whose entries are all ruled by newer ones."""
        newer = _Ruled()
        kept: list[Layer] = []
        for layer in reversed(self):
            if not kept or not newer.covers(layer):
                kept.append(layer)
                newer.add(layer)
        return self.replaced(reversed(kept))

    def overrules(self, layer: Layer) -> bool:
        """Whether newer rewinds here rule every entry that ``layer`` rules."""
        newer = [mine for mine in self if mine.epoch > layer.epoch]
        ruled = _Ruled()
        for one in newer:
            ruled.add(one)
        return bool(newer) and ruled.covers(layer)


class Touched(Layers):
    """The subset of the known rewinds for which a piece of progress holds acks."""

    __slots__ = ("_known", "_noting")

    def __init__(self, known: Layers, layers: Iterable[Layer] = ()) -> None:
        super().__init__(layers)
        self._known = known
        self.epoch, self.rules_all = known.epoch, known.rules_all
        self.timed, self.notes_once = known.timed, known.notes_once
        self._noting: dict[tuple[str, int], list[Layer | None]] = {}
        """Per stretch between two borders, the layers to which acks of the newest epoch are added."""

    @property
    def known(self) -> Layers:
        return self._known

    @property
    def heads(self) -> bytes:
        return self._known.heads

    def timed_acks(self) -> Iterator[Mapping[str, AckSet]]:
        if not self:
            yield {}
            return
        for layer in self.timed:
            mine = self._by_epoch.get(layer.epoch)
            yield {} if mine is None else mine.acks

    def beside_times(self, region: str, after: Position, upto: Position) -> list[Layer]:
        return [self._mine(layer) for layer in self._known.beside_times(region, after, upto)]

    def copied(self) -> Layers:
        other = Touched(self._known, (layer.copy() for layer in self))
        other.timeless = copy_acks(self.timeless)
        return other

    def replaced(self, layers: Iterable[Layer]) -> Layers:
        touched = list(layers)
        new = [layer for layer in touched if self._known.find(layer.epoch) is None]
        known = Layers(sorted([*self._known, *new], key=epoch_of)).not_overruled() if new else self._known
        return Touched(known or self._known, touched)

    def all(self) -> Iterable[Layer]:
        return [self._mine(layer) for layer in self._known]

    def ruling(
        self, epoch: Stamp, region: str, after: Position, upto: Position, publish_time_ms: int
    ) -> Iterable[Layer | None]:
        known = self._known
        stretch = known.stretch(region, after, upto) if epoch == known.epoch and not publish_time_ms else None
        found = None if stretch is None else self._noting.get((region, stretch))
        if found is None:
            layers = known.ruling(epoch, region, after, upto, publish_time_ms)
            found = [None if layer is None else self._mine(layer) for layer in layers]
            if stretch is not None:
                self._noting[region, stretch] = found
        return found

    def _mine(self, layer: Layer) -> Layer:
        mine = self._by_epoch.get(layer.epoch)
        if mine is None:
            mine = self._by_epoch[layer.epoch] = layer.head()
            if self and self[0].epoch < layer.epoch:
                insort(self, mine, key=epoch_of)
            else:
                self.insert(0, mine)
        return mine


class _Ruled:
    """What a set of rewinds certainly rules. A seek by time covers another seek by time, but no ranges of positions."""

    def __init__(self) -> None:
        self._time: int | None = None
        self._ranges: dict[str, tuple[list[Position], list[Position]]] = {}
        """Per origin region where each range begins and where it ends: in order, none touching another."""

    def add(self, layer: Layer) -> None:
        time = layer.publish_time_ms
        if time is not None and (self._time is None or time < self._time):
            self._time = time
        for region, (low, high) in layer.rules.items():
            lows, highs = self._ranges.setdefault(region, ([], []))
            first, end = bisect_left(highs, low), bisect_right(lows, high)
            if first < end:
                low, high = min(low, lows[first]), max(high, highs[end - 1])
            lows[first:end], highs[first:end] = [low], [high]

    def covers(self, layer: Layer) -> bool:
        """Whether this includes all that a rewind rules."""
        if self._time is not None and self._time <= 0:
            return True
        time = layer.publish_time_ms
        if time is not None and (self._time is None or self._time > time):
            return False
        return all(self._covers(region, *rule) for region, rule in layer.rules.items())

    def _covers(self, region: str, low: Position, high: Position) -> bool:
        lows, highs = self._ranges.get(region, ((), ()))
        at = bisect_right(lows, low) - 1
        return at >= 0 and high <= highs[at]


@lru_cache(maxsize=16)
def known_of(heads: bytes) -> Layers:
    """The rewinds of ``Layers.heads``, without acks. Nearly all deltas of a subscription carry the same ones.

    :raises ValueError: these bytes are not valid rewinds, or not in order.
    """
    reader = Reader(heads)
    known = [Layer.take_head(reader) for _ in range(reader.count(6))]
    reader.end()
    check_order(known)
    return Layers(known)


def check_order(layers: list[Layer]) -> None:
    """:raises ValueError: the rewinds are not in the order of their epochs."""
    epochs = [layer.epoch for layer in layers]
    if any(not late > early for early, late in zip([ZERO, *epochs], epochs, strict=False)):
        raise ValueError("the rewinds are not in order")


def covered_over(
    region: str, after: Position, upto: Position, base: AckSet | None, start: Position, newest_first: list[Layer]
) -> bool:
    """Whether all of ``(after, upto]`` is acked, whichever entries it contains and whenever they were published.

    Which of the origin's entries lie there is unknown, so a single run of acks must cover all of it (R3).
    """
    for layer in newest_first:
        low, high = after, upto
        if layer.publish_time_ms is None:
            rule = layer.rules.get(region, (upto, upto))
            low, high = max(after, rule[0]), min(upto, rule[1])
        acks = layer.acks.get(region)
        if low < high and (acks is None or not acks.covers(low, high)):
            return False
        if layer.rules_all(region, after, upto):
            return True
    low = max(after, start)
    return low >= upto or (base is not None and base.covers(low, upto))


def floor_over(region: str, base: AckSet | None, start: Position, newest_first: list[Layer]) -> Position:
    """The highest position up to which every entry of a region is acked, each read from the layer that rules it.

    ``start``: in the base layer everything up to here counts as acked as well.
    Walks up the borders of all ranges: between two of them one layer rules, and seeks by time may.
    """
    borders = sorted({border for layer in newest_first for border in layer.rules.get(region, ())})
    none = AckSet()
    floor = EARLIEST
    while True:
        ends = [border for border in borders if border > floor]
        reach = ends[0] if ends else None
        for layer in newest_first:
            rule = layer.rules.get(region)
            ruled = layer.rules_all_by_time or (rule is not None and rule[0] <= floor < rule[1])
            if ruled or layer.publish_time_ms is not None:
                end = layer.acks.get(region, none).reach(floor)
                reach = end if reach is None else min(reach, end)
            if ruled:
                break
        else:
            end = (base or none).reach(max(floor, start))
            reach = end if reach is None else min(reach, end)
        if reach is None or reach <= floor:
            return floor
        floor = reach
