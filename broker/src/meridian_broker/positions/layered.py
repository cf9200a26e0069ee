# SPDX-License-Identifier: Apache-2.0
"""Acks in layers: which entries are acked in which epoch, how acks are added, and which layer decides an entry.

The base layer, epoch ``ZERO``, rules everything. Each rewind is a layer above it that rules some of the entries
(``layers.py``). ``encoded.py`` writes and compares them; ``Progress`` merges them.

* An entry reads the newest layer that rules it.
* An ack counts in the epoch under which its message was dispatched (R13): in the newest layer, not newer than that,
  that rules the entry. If only the publish time could tell which one that is, it is added to all candidates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, cast

from meridian_broker.positions.acks_by_region import acks_of, join_acks
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.beginning import UNKNOWN, Beginning
from meridian_broker.positions.claims import BATCH_LIMIT
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.layer import Rules
from meridian_broker.positions.layers import Layers, covered_over, floor_over
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.stretches import Stretch, acked_over, claimed, without

NO_ACKS: Final = cast("dict[str, AckSet]", MappingProxyType({}))
"""The immutable base layer, shared by the possibly many subscriptions that have acked nothing."""


class LayeredAcks:
    """Acks of all origins and all epochs: adds and queries them. Mutable."""

    __slots__ = ("_base", "_layers", "beginning")

    def __init__(self) -> None:
        self.beginning: Beginning = UNKNOWN
        """Where the subscription began, and which of its incarnations this is. Only ``Progress`` changes it."""
        self._base: dict[str, AckSet] = NO_ACKS
        """For reading; use ``_changeable`` for changes."""
        self._layers: Layers | None = None
        """Rewinds, oldest first. None for nearly every subscription."""

    # -- acks ----------------------------------------------------------------------------------------------------------

    def ack(self, epoch: Stamp, region: str, after: Position, upto: Position, publish_time_ms: int = 0) -> bool:
        """Ack ``(after, upto]`` of an origin's stream: one entry and its ``prev``, or a run of them.

        :param epoch: the epoch under which the messages were dispatched (R13).
        :param publish_time_ms: of the acked entry. Omit it for a run: its entries have different times.
        :returns: whether anything was new.
        :raises ValueError: not a valid interval, see ``AckSet.claim``; or an epoch that this progress does not know.

        An interval that extends beyond a rewind's range is added to the older layer, too. That is correct even for the
        part that the newer one rules: those entries *are* acked, in an epoch at least as new.
        """
        if self._layers is None:
            if epoch is not ZERO:
                self._check_epoch(epoch)
            acks = self._base.get(region)
            if acks is None:
                acks = self._changeable()[sys.intern(region)] = AckSet()
            return acks.claim(after, upto)
        layers = self._layers
        if layers.notes_once and not publish_time_ms and (epoch is layers.epoch or epoch == layers.epoch):
            return self._ack_timeless(layers, region, after, upto)
        changed = False
        for layer_acks in self._ruling(epoch, region, after, upto, publish_time_ms):
            changed |= acks_of(layer_acks, region).claim(after, upto)
        return changed

    def _changeable(self) -> dict[str, AckSet]:
        """The base layer, to be changed."""
        if self._base is NO_ACKS:
            self._base = {}
        return self._base

    def _ack_timeless(self, layers: Layers, region: str, after: Position, upto: Position) -> bool:
        """An ack in the newest epoch that counts whichever rewind rules its entry, so no publish time is needed."""
        changed = False
        if len(layers.timed) < len(layers.known):
            for layer in layers.beside_times(region, after, upto):
                changed |= acks_of(layer.acks, region).claim(after, upto)
        # A delta that touches no layer holds nothing in any of them.
        if (layers or layers.known is layers) and self._is_noted(layers, region, after, upto):
            return changed
        return acks_of(layers.timeless, region).claim(after, upto) or changed

    def _is_noted(self, layers: Layers, region: str, after: Position, upto: Position) -> bool:
        """Whether an interval is acked in each layer for which ``timeless`` counts."""
        if all(acks is not None and acks.covers(after, upto) for acks in self._noted(layers, region)):
            return True
        timeless = layers.timeless.get(region)
        if timeless is None or timeless.covers(after, upto) or not timeless.meets(after, upto):
            return False
        if not all(acks is not None and acks.meets(after, upto) for acks in self._noted(layers, region)):
            return False
        self._normalise()  # part may be noted once, part in each layer: together perhaps all of it
        return self._is_noted(layers, region, after, upto)

    def _noted(self, layers: Layers, region: str) -> Iterator[AckSet | None]:
        return (acks.get(region) for acks in self._acks_by_time(layers))

    def _acks_by_time(self, layers: Layers) -> Iterator[Mapping[str, AckSet]]:
        """The acks of each layer for which ``timeless`` counts."""
        yield from layers.timed_acks()
        if self._base_counts():
            yield self._base

    def _normalise(self) -> None:
        """Add the timeless acks to each layer for which they count, so that layers can be read on their own."""
        layers = self._layers
        if layers is not None and layers.timeless:
            timeless, layers.timeless = layers.timeless, {}
            if self._base_counts():
                join_acks(self._changeable(), timeless)
            for layer in layers.all():
                if layer.publish_time_ms is not None:
                    join_acks(layer.acks, timeless)

    def _timeless(self, region: str) -> AckSet | None:
        return None if self._layers is None else self._layers.timeless.get(region)

    def ack_batch(
        self,
        epoch: Stamp,
        region: str,
        position: Position,
        size: int,
        acked: int,
        after: Position | None,
        publish_time_ms: int = 0,
    ) -> bool:
        """Ack some messages of a batch of ``size``: those whose bits are set (R18).

        :param after: the entry's ``prev``, if known.
        :raises ValueError: bits the batch does not have, or an epoch that this progress does not know.
        """
        begin = Position(position[0], position[1] - 1) if after is None else after
        changed = False
        for layer_acks in self._ruling(epoch, region, begin, position, publish_time_ms):
            changed |= acks_of(layer_acks, region).claim_batch(position, size, acked, after)
        return changed

    def raise_floor(self, region: str, position: Position) -> bool:
        """Everything of a region up to here is done, in every epoch: forget the detail (R11)."""
        self._normalise()
        changed = False
        for layer in () if self._layers is None else self._layers.all():
            changed |= acks_of(layer.acks, region).raise_floor(position)
        if self._base_counts():
            changed |= acks_of(self._changeable(), region).raise_floor(position)
        return changed

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Stamp:
        """The newest rewind's stamp; ``ZERO`` if there was none. Messages are dispatched under it."""
        return ZERO if self._layers is None else self._layers.epoch

    def moments(self) -> set[int]:
        """The publish times from which seeks by time rule. Empty: publish times do not matter."""
        return {layer.publish_time_ms for layer in self._layers or () if layer.publish_time_ms is not None}

    def is_acked(self, region: str, position: Position, publish_time_ms: int = 0) -> bool:
        """Whether an entry is acked. Pass its publish time: seeks by time apply by it.

        Without it (0) the answer is True only if the entry is acked whatever its time is.
        """
        if self._layers is not None:
            timeless = self._layers.timeless.get(region)
            if timeless is not None and timeless.contains(position):
                return True
            for layer in self._layers.at(region, position):
                if layer.rules_entry(region, position, publish_time_ms):
                    acks = layer.acks.get(region)
                    return acks is not None and acks.contains(position)
                if not publish_time_ms and layer.publish_time_ms is not None:
                    return self.remaining(region, position, BATCH_LIMIT) == 0
        acks = self._base.get(region)
        if acks is not None and acks.contains(position):
            return True
        places = self.beginning.places
        return bool(places) and position <= places.get(region, EARLIEST)

    def all_acked(self, region: str, after: Position, upto: Position) -> bool:
        """Whether all of ``(after, upto]`` is acked, whichever entries it contains and whenever they were published."""
        timeless = self._timeless(region)
        if timeless is not None and timeless.touches(after, upto):
            if timeless.covers(after, upto):
                return True
            self._normalise()
        newest_first = [] if self._layers is None else list(self._layers.over(region, after, upto))
        return covered_over(region, after, upto, self._base.get(region), self.start(region), newest_first)

    def acked_whenever(self, region: str, upto: Position, apart: Iterable[Stretch] = ()) -> AckSet:
        """The acks up to a position that count whenever their entries were published, except in the stretches
        ``apart``. Entries before the subscription's beginning are not included: an earlier beginning may become
        known."""
        self._normalise()
        newest_first = [] if self._layers is None else self._layers[::-1]
        return claimed(without(acked_over(region, upto, self._base.get(region), newest_first), apart))

    def depends_on_time(self, region: str, position: Position) -> bool:
        """Whether only its publish time can tell if an entry, or part of it, is acked."""
        timeless = self._timeless(region)
        if timeless is not None and timeless.contains(position):
            return False
        found = [self._left(layer, region, position, 1) for layer in self._deciding(region, position, 0)]
        return len(found) > 1 and any(left is not None for left in found)

    def remaining(self, region: str, position: Position, size: int, publish_time_ms: int = 0) -> int | None:
        """The messages of a batch that are *not* acked, as bits: 0 = the whole entry is acked, None = none of it is.
        Without the publish time: like ``is_acked``.
        """
        if self._layers is None:
            return self._left(self._base, region, position, size)
        timeless = self._layers.timeless.get(region)
        if timeless is not None and timeless.contains(position):
            return 0
        together = 0
        for layer in self._deciding(region, position, publish_time_ms):
            left = self._left(layer, region, position, size)
            if left is None:
                return None
            together |= left
        return together

    def goes_beyond(self, places: Mapping[str, Position]) -> bool:
        """Whether any entry of these regions is acked after these places, in any epoch."""
        self._normalise()
        return any(
            acks[region].goes_beyond(place)
            for acks in self._all_acks()
            for region, place in places.items()
            if region in acks
        ) or any(self.start(region) > place for region, place in places.items())

    def touches(self, region: str, after: Position, upto: Position) -> bool:
        """Whether any entry of an interval, or part of a batch in it, is acked in any epoch."""
        timeless = self._timeless(region)
        if timeless is not None and timeless.touches(after, upto):
            return True
        return self.start(region) > after or any(
            acks[region].touches(after, upto) for acks in self._all_acks() if region in acks
        )

    def start(self, region: str) -> Position:
        """Everything of a region up to here lies before the subscription's beginning."""
        return self.beginning.places.get(region, EARLIEST)

    def regions(self) -> frozenset[str]:
        """Origins with acked entries, a beginning, or entries that a rewind rules."""
        self._normalise()
        names = {region for acks in self._all_acks() for region, one in acks.items() if not one.is_empty}
        return frozenset(names.union(self.beginning.places, *(layer.rules for layer in self._layers or ())))

    def floors(self) -> dict[str, Position]:
        """Per origin: every entry up to here is acked. With seeks by time it may be too low, never too high."""
        self._normalise()
        base, places = self._base, self.beginning.places
        if self._layers is None:
            none = AckSet()
            names = base if not places else base.keys() | places
            return {region: base.get(region, none).reach(self.start(region)) for region in names}
        newest_first = self._layers[::-1]
        return {
            region: floor_over(region, base.get(region), self.start(region), newest_first)
            for region in sorted(self.regions())
        }

    def acks(self, epoch: Stamp, region: str) -> AckSet | None:
        """The acks of one layer, for reading; None if there are none."""
        self._normalise()
        if epoch == ZERO:
            return self._base.get(region)
        layer = None if self._layers is None else self._layers.find(epoch)
        return None if layer is None else layer.acks.get(region)

    def rewinds(self) -> list[tuple[Stamp, Rules, int | None]]:
        """All rewinds still in force, oldest first: epoch, ranges that it rules, publish time from which it rules."""
        return [(layer.epoch, dict(layer.rules), layer.publish_time_ms) for layer in self._layers or ()]

    def count_detail(self) -> int:
        """Entry ids and partly acked batches remembered above the floors, all layers."""
        self._normalise()
        return sum(one.count_detail() for acks in self._all_acks() for one in acks.values())

    # -- layers --------------------------------------------------------------------------------------------------------

    def _deciding(self, region: str, position: Position, publish_time_ms: int) -> Iterator[dict[str, AckSet]]:
        """The acks of the newest layer that rules an entry; without its publish time, of all candidates."""
        for layer in () if self._layers is None else self._layers.at(region, position):
            if layer.rules_entry(region, position, publish_time_ms):
                yield layer.acks
                return
            if not publish_time_ms and layer.publish_time_ms is not None:
                yield layer.acks
        yield self._base

    def _left(self, layer: dict[str, AckSet], region: str, position: Position, size: int) -> int | None:
        if layer is self._base and position <= self.start(region):
            return 0
        acks = layer.get(region)
        return None if acks is None else acks.remaining(position, size)

    def _ruling(
        self, epoch: Stamp, region: str, after: Position, upto: Position, publish_time_ms: int
    ) -> Iterator[dict[str, AckSet]]:
        """The acks of all layers to which acking an interval adds, see ``Layers.ruling``.

        :raises ValueError: an epoch that this progress does not know.
        """
        self._check_epoch(epoch)
        if self._layers is None:
            yield self._changeable()
            return
        for layer in self._layers.ruling(epoch, region, after, upto, publish_time_ms):
            yield self._changeable() if layer is None else layer.acks

    def _base_counts(self) -> bool:
        """Whether the base layer may ever be read."""
        return self._layers is None or not self._layers.rules_all

    def _check_epoch(self, epoch: Stamp) -> None:
        if epoch > self.epoch:
            raise ValueError(
                f"an ack of epoch {epoch}, but the newest rewind known here is {self.epoch}: it would be lost in an "
                "older layer. Collect acks in progress.empty_delta(), not in a new Progress()"
            )

    def _by_epoch(self) -> Iterator[tuple[Stamp, dict[str, AckSet]]]:
        yield ZERO, self._base
        for layer in self._layers or ():
            yield layer.epoch, layer.acks

    def _all_acks(self) -> Iterator[dict[str, AckSet]]:
        return (acks for _, acks in self._by_epoch())
