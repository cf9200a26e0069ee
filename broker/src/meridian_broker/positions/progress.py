# SPDX-License-Identifier: Apache-2.0
"""Progress: where a subscription stands, in a form that is valid in every region.

A cursor says "these entries of this region's ledgers are acked" and means nothing elsewhere. ``Progress`` says the same
about *origins*: per origin region the ``AckSet`` of its stream. Two regions' progress merges by union: in any order,
any number of times, over any path. It is a join-semilattice, so regions that received the same acks agree.

Union alone could never go back. So a rewind (seek backwards, reset) adds a **layer**: its stamp is a new *epoch*, it
rules some of the entries, and those are read from it alone (R12). The base layer, epoch ``ZERO``, rules everything.

* ``join``: union of the layers by epoch, and within a layer of the acks.
* An entry reads the newest layer that rules it.
* An ack counts in the epoch under which its message was dispatched (R13): in the newest layer, not newer than that,
  that rules the entry.
* The place where the subscription *began* (``beginning.py``) is kept beside the acks: entries before it count as acked
  in the base layer, until an earlier creation becomes known (R15). A later incarnation of the subscription replaces all
  of it (R16).
* *Reports* (``reports.py``) say up to where a region owes nothing, acked or not: they let floors rise (R11).
* A layer whose entries are all ruled by newer ones is never read again and is discarded. As the newer ones are part
  of the same progress and only grow, discarding it early or late makes no difference to any join.

A *delta* is simply a small progress, and merging one is ``join``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import blake2b

from meridian_broker.positions import reports
from meridian_broker.positions.acks_by_region import (
    acks_minus,
    acks_upto,
    acks_within,
    copy_acks,
    join_acks,
    same_acks,
)
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.beginning import UNKNOWN, Beginning
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.encoded import EncodedAcks
from meridian_broker.positions.layer import Layer, Rules
from meridian_broker.positions.layered import NO_ACKS
from meridian_broker.positions.layers import Layers, Touched, epoch_of
from meridian_broker.positions.position import EARLIEST, Position


class Progress(EncodedAcks):
    """The acked entries of a subscription: all origins, all epochs. Mutable."""

    __slots__ = ()

    def begin(self, beginning: Beginning) -> bool:
        """Take note of a creation or a deletion: a later incarnation than this one's starts with nothing acked.

        :returns: whether anything was new.
        """
        mine = self.beginning
        joined = mine.joined(beginning)
        if joined is mine or joined == mine:
            return False
        if joined.incarnation != mine.incarnation:
            self._base, self._layers, self.reports = NO_ACKS, None, reports.NONE
        self.beginning = joined
        return True

    # -- rewinds -------------------------------------------------------------------------------------------------------

    def rewind(
        self,
        epoch: Stamp,
        rules: Rules,
        base: Mapping[str, AckSet] | None = None,
        publish_time_ms: int | None = None,
    ) -> bool:
        """Go back: from now on the ruled entries count as acked only where ``base`` says so.

        :param epoch: a new stamp, for example ``HybridClock.next(after=progress.epoch)``.
        :param rules: ``(low, high]`` per origin region.
        :param publish_time_ms: for a seek by time: it also rules every entry published at that time or later, including
            entries that are not stored or known here yet.
        :returns: whether anything was new.
        :raises ValueError: the epoch is that of the base layer, a range is empty, or the time has more than 63 bits.
        """
        if publish_time_ms is not None and not 0 <= publish_time_ms < 1 << 63:
            raise ValueError(f"a rewind cannot be stored for the time {publish_time_ms}")
        if epoch <= ZERO:
            raise ValueError(f"a rewind needs a stamp later than {ZERO}, not {epoch}: take one from the region's clock")
        for region, (low, high) in rules.items():
            if not EARLIEST <= low < high:
                raise ValueError(f"a rewind cannot rule ({low}, {high}] of {region}: the range is empty")
        layer = Layer(epoch, {sys.intern(region): rule for region, rule in rules.items()}, publish_time_ms)
        layer.acks = copy_acks(base or {})
        one = Progress()
        one.beginning = self.beginning.bare()
        one._layers = Layers([layer])
        return self.join(one)

    def merge_rewinds(self, done: Mapping[str, Position]) -> Progress | None:
        """The delta to join to this progress so that newer rewinds overrule some older ones, which are then discarded.

        :param done: per origin, up to where no region owes anything under exactly these rewinds. Every region knows all
            of them, so no rewind older than the newest can still arrive.
        :returns: None if that discards no rewind.

        The newest rewind is extended to rule everything that is done, with the acks for it. The newest seek by time is
        extended to rule as much as older ones did, once it has all acks made under those. What any entry reads stays
        the same, except that a done entry reads as acked if it was acked under any of them. This is a change like any
        other: a rewind's ranges and acks only grow, so regions that receive it early, late or never, or make it
        themselves, agree.
        """
        if self._layers is None or len(self._layers) < 2:
            return None
        self._normalise()
        heads = [layer.head() for layer in self._layers]
        acked = {region: AckSet(min(self.start(region), end)) for region, end in done.items()}
        for acks in self._all_acks():
            join_acks(acked, acks_upto(acks, done))
        newest = heads[-1]
        newest.acks = copy_acks(acked)
        for region, end in done.items():
            low, high = newest.rules.get(region, (EARLIEST, EARLIEST))
            if EARLIEST < end >= low:  # otherwise it would also rule the entries in between
                newest.rules[region] = EARLIEST, max(high, end)
        changed = sorted({len(heads) - 1, self._absorb_times(heads, done, acked)})
        delta = Progress()
        delta.beginning = self.beginning.bare()
        delta._layers = Layers(heads[at] for at in changed)
        after = self.copy()
        after.join(delta)
        return delta if len(after._layers or ()) < len(self._layers) else None

    def _absorb_times(self, heads: list[Layer], done: Mapping[str, Position], acked: Mapping[str, AckSet]) -> int:
        """Extend the newest seek by time to older ones, as long as the same entries are acked under both.

        :param acked: the acks of what is done.
        :returns: the index of that seek, or else of the newest rewind.
        """
        layers = self._layers or Layers()
        at = max((number for number, layer in enumerate(layers) if layer.publish_time_ms is not None), default=0)
        newest = layers[at].copy()
        if newest.publish_time_ms is None:
            return len(layers) - 1
        join_acks(newest.acks, acked)
        join_acks(heads[at].acks, acked)
        for older in reversed(layers[:at]):
            if any(high > done.get(region, EARLIEST) for region, (_, high) in older.rules.items()):
                break
            if older.publish_time_ms is not None:
                also = older.copy()
                join_acks(also.acks, acked)
                if not same_acks(also.acks, newest.acks):
                    break
                times = [one.publish_time_ms for one in (heads[at], older) if one.publish_time_ms is not None]
                heads[at].publish_time_ms = min(times)
        return at

    @property
    def layers(self) -> Layers | None:
        """The rewinds, for reading. It becomes a new list when one is added or extended."""
        return self._layers

    @property
    def is_plain(self) -> bool:
        """Whether an ack means the same as in any other subscription: there was no rewind and no deletion."""
        incarnation = self.beginning.incarnation
        return self._layers is None and (incarnation is ZERO or incarnation == ZERO)

    def count_rewinds(self) -> int:
        """How many rewinds are remembered."""
        return len(self._layers or ())

    def state(self) -> int:
        """A digest of what can make entries owed again: the beginning and the rewinds. A report is valid for one state
        (R11)."""
        out = bytearray()
        self.beginning.put(out)
        for layer in self._layers or ():
            layer.put_head(out)
        return int.from_bytes(blake2b(out, digest_size=8).digest(), "big")

    @property
    def is_empty(self) -> bool:
        if self._layers is not None and self._layers.timeless:
            return False
        is_bare = not self._layers and self.beginning == UNKNOWN and not self.reports
        return is_bare and all(acks.is_empty for acks in self._base.values())

    def cool(self, like: Progress | None = None) -> None:
        """Called periodically: encode idle parts compactly, and share with ``like`` the parts that are equal."""
        self._normalise()
        for epoch, acks in self._by_epoch():
            for region, one in acks.items():
                one.cool(None if like is None else like.acks(epoch, region))

    # -- the algebra ---------------------------------------------------------------------------------------------------

    def join(self, other: Progress) -> bool:
        """Merge everything the other has; progress of an earlier incarnation is ignored.

        :returns: whether anything was new.

        The cost depends on the other's size, not on this one's, unless the other has a new rewind.
        """
        mine, their = self.beginning, other.beginning
        if (
            mine.incarnation != their.incarnation and mine.incarnation > their.incarnation
        ):  # usually equal, and "!=" is faster than ">"
            return False
        changed = their is not UNKNOWN and self.begin(their)
        told = other.reports and reports.joined(self.reports, other.reports)
        if told and told is not self.reports:
            self.reports, changed = told, True
        if self._layers is None and other._layers is None:  # as for nearly all subscriptions
            return (bool(other._base) and join_acks(self._changeable(), other._base)) or changed
        if other._layers is not None and other._layers.timeless:
            changed |= self._join_timeless(other, other._layers)
        if other._base or (other._layers and any(layer.publish_time_ms is not None for layer in other._layers)):
            self._normalise()  # only then can one see what is new
        if other._layers:
            changed |= self._join_layers(other._layers)
        if other._base and self._base_counts():
            changed |= join_acks(self._changeable(), other._base)
        return changed

    def _join_timeless(self, other: Progress, theirs: Layers) -> bool:
        """Merge the acks that the other keeps once for all seeks by time: directly if the same rewinds are known here;
        otherwise by adding them to each of the other's layers, which are joined next.

        :returns: whether anything was new.
        """
        layers = self._layers
        is_known = layers is not None and (theirs.known is layers.known or theirs.heads == layers.heads)
        if layers is None or not is_known or any(map(_has_floor, theirs.timeless.values())):
            other._normalise()
            return False
        if not _is_surely_new(theirs.timeless, layers.timeless, next(layers.timed_acks())):
            rest = acks_minus(theirs.timeless, layers.timeless)
            if all(acks_within(rest, acks) for acks in self._acks_by_time(layers)):
                return False
            if all(rest.keys() <= acks.keys() for acks in self._acks_by_time(layers)):
                self._normalise()  # a run may be noted partly once, partly per layer; the rest is then too large
                if all(acks_within(theirs.timeless, acks) for acks in self._acks_by_time(layers)):
                    return False
        return join_acks(layers.timeless, theirs.timeless)

    def _join_layers(self, theirs: Layers) -> bool:
        layers = Layers() if self._layers is None else self._layers
        changed = is_wider = False
        new: list[Layer] = []
        for their in theirs:
            known = layers.find(their.epoch)
            if known is None:
                new.append(their.copy())
            elif not their.head_within(known):
                is_wider = True
        if is_wider or any(layers.known.find(one.epoch) is None for one in new):
            self._normalise()  # timeless acks count in the rewinds known when they were added
        for their in theirs:
            known = layers.find(their.epoch)
            if known is not None:
                changed |= known.join(their)
        if new or is_wider:
            after = layers.replaced(sorted([*layers, *new], key=epoch_of))
            after = None if after is None else after.not_overruled()
            if after is not None:
                after.timeless = layers.timeless
            is_any_new = after is not None and any(after.find(one.epoch) is not None for one in new)
            if is_any_new or is_wider:
                self._layers, changed = after, True
                if not self._base_counts():
                    self._base = NO_ACKS
        return changed

    def within(self, other: Progress) -> bool:
        """Whether the other has everything this one has: ``other.join(self)`` would change nothing."""
        self._normalise()
        other._normalise()
        if self.beginning.incarnation != other.beginning.incarnation:
            return self.beginning.incarnation < other.beginning.incarnation
        if other.beginning.joined(self.beginning) != other.beginning:
            return False
        if reports.joined(other.reports, self.reports) is not other.reports:
            return False
        if other._base_counts() and not acks_within(self._base, other._base):
            return False
        if self._layers is None:
            return True
        theirs = Layers() if other._layers is None else other._layers
        for layer in self._layers:
            their = theirs.find(layer.epoch)
            if their is None:
                if not other._overrules(layer):
                    return False
            elif not (layer.head_within(their) and acks_within(layer.acks, their.acks)):
                return False
        return True

    def minus(self, other: Progress) -> Progress:
        """The part of this that the other lacks, see ``AckSet.minus``. Empty exactly if this is within the other."""
        self._normalise()
        other._normalise()
        result = Progress()
        beginning = self.beginning
        if beginning.incarnation != other.beginning.incarnation:
            return self.copy() if beginning.incarnation > other.beginning.incarnation else result
        if other.beginning.joined(beginning) != other.beginning:
            result.beginning = beginning
        result.reports = reports.lacking(self.reports, other.reports)
        if other._base_counts():
            result._base = acks_minus(self._base, other._base)
        theirs = Layers() if other._layers is None else other._layers
        layers = []
        for layer in self._layers or ():
            their = theirs.find(layer.epoch)
            if their is None:
                if not other._overrules(layer):
                    layers.append(layer.copy())
                continue
            rest = layer.head()
            rest.acks = acks_minus(layer.acks, their.acks)
            if rest.acks or not layer.head_within(their):
                layers.append(rest)
        result._layers = Layers(layers) or None
        result._forget_overruled()
        if result.beginning is UNKNOWN and not result.is_empty:
            result.beginning = beginning.bare()
        return result

    def empty_delta(self) -> Progress:
        """Progress with nothing acked, for collecting acks that are then joined here and elsewhere.

        It knows the rewinds, so that each ack finds its layer, but contains only those that get acks. A new
        ``Progress()`` does not work once there was a rewind.
        """
        result = Progress()
        result.beginning = self.beginning.bare()
        if self._layers is not None:
            result._layers = Touched(self._layers.known)
        return result

    def heads(self) -> Progress:
        """All rewinds, with nothing acked."""
        result = Progress()
        result.beginning = self.beginning.bare()
        if self._layers is not None:
            result._layers = Layers(layer.head() for layer in self._layers.known)
        return result

    def _overrules(self, layer: Layer) -> bool:
        return self._layers is not None and self._layers.overrules(layer)

    def copy(self) -> Progress:
        other = Progress()
        other.beginning = self.beginning
        other.reports = self.reports
        other._base = copy_acks(self._base)
        other._layers = None if self._layers is None else self._layers.copied()
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Progress):
            return NotImplemented
        self._normalise()
        other._normalise()
        if self.beginning != other.beginning or self.reports != other.reports:
            return False
        return list(self._layers or ()) == list(other._layers or ()) and same_acks(self._base, other._base)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        floors = ", ".join(f"{region} up to {floor}" for region, floor in self.floors().items())
        return f"<Progress of epoch {self.epoch}: {floors or 'nothing acked'}; {self.count_detail()} above>"


def _has_floor(acks: AckSet) -> bool:
    return acks.floor > EARLIEST


def _is_surely_new(theirs: Mapping[str, AckSet], *known: Mapping[str, AckSet]) -> bool:
    """Whether for some region none of these acks its last entry, as with nearly every acknowledgement."""
    for region, acks in theirs.items():
        last = acks.last()
        if last is not None:
            for one in known:
                mine = one.get(region)
                if mine is not None and mine.contains(last):
                    break
            else:
                return True
    return False
