# SPDX-License-Identifier: Apache-2.0
"""A layer: one rewind, the entries that it applies to, and the acks since (R12)."""

from __future__ import annotations

from meridian_broker.positions.acks_by_region import copy_acks, join_acks, put_acks, same_acks, take_acks
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.claims import put_position, take_position
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.positions.varints import Reader, put_name, put_number

Rules = dict[str, tuple[Position, Position]]
"""Per origin region the ``(low, high]`` that a rewind rules."""


class Layer:
    """One rewind and the acks since. ``epoch`` identifies it: one stamp is one rewind, everywhere."""

    __slots__ = ("acks", "epoch", "publish_time_ms", "rules")

    def __init__(self, epoch: Stamp, rules: Rules, publish_time_ms: int | None) -> None:
        self.epoch = epoch
        self.rules = rules
        self.publish_time_ms = publish_time_ms
        """It also rules every entry published at this time or later; None: it was not a seek by time."""
        self.acks: dict[str, AckSet] = {}

    @property
    def rules_all_by_time(self) -> bool:
        return self.publish_time_ms is not None and self.publish_time_ms <= 0

    def rules_entry(self, region: str, position: Position, publish_time_ms: int) -> bool:
        if self.publish_time_ms is not None and publish_time_ms >= self.publish_time_ms:
            return True
        rule = self.rules.get(region)
        return rule is not None and rule[0] < position <= rule[1]

    def may_rule(self, region: str, after: Position, upto: Position, publish_time_ms: int) -> bool:
        """Whether it may rule some entry of ``(after, upto]``. A publish time of 0 means unknown, so it may."""
        if self.publish_time_ms is not None and (not publish_time_ms or publish_time_ms >= self.publish_time_ms):
            return True
        rule = self.rules.get(region)
        return rule is not None and after < rule[1] and rule[0] < upto

    def rules_all(self, region: str, after: Position, upto: Position) -> bool:
        """Whether it certainly rules all of ``(after, upto]``."""
        if self.rules_all_by_time:
            return True
        rule = self.rules.get(region)
        return rule is not None and rule[0] <= after and upto <= rule[1]

    def head(self) -> Layer:
        """The same rewind without acks."""
        return Layer(self.epoch, dict(self.rules), self.publish_time_ms)

    def copy(self) -> Layer:
        layer = self.head()
        layer.acks = copy_acks(self.acks)
        return layer

    def head_within(self, other: Layer) -> bool:
        if self.publish_time_ms is not None and (
            other.publish_time_ms is None or self.publish_time_ms < other.publish_time_ms
        ):
            return False
        return all(
            (their := other.rules.get(region)) is not None and their[0] <= low and high <= their[1]
            for region, (low, high) in self.rules.items()
        )

    def join(self, other: Layer) -> bool:
        """Add the other's acks. One stamp is one rewind; if a fault made two, both ranges count."""
        changed = False
        if not other.head_within(self):
            changed = True
            for region, (low, high) in other.rules.items():
                mine = self.rules.get(region, (low, high))
                self.rules[region] = min(low, mine[0]), max(high, mine[1])
            times = [time for time in (self.publish_time_ms, other.publish_time_ms) if time is not None]
            self.publish_time_ms = min(times) if times else None
        return join_acks(self.acks, other.acks) or changed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layer):
            return NotImplemented
        return (
            self.epoch == other.epoch
            and self.rules == other.rules
            and self.publish_time_ms == other.publish_time_ms
            and same_acks(self.acks, other.acks)
        )

    __hash__ = None  # type: ignore[assignment]

    def put_head(self, out: bytearray) -> None:
        """Append the encoding that ``take_head`` reads."""
        put_number(out, self.epoch.time_ms)
        put_number(out, self.epoch.counter)
        put_name(out, self.epoch.region)
        put_number(out, 0 if self.publish_time_ms is None else self.publish_time_ms + 1)
        put_number(out, len(self.rules))
        for region in sorted(self.rules):
            put_name(out, region)
            for position in self.rules[region]:
                put_position(out, position)

    def put(self, out: bytearray) -> None:
        self.put_head(out)
        put_acks(out, self.acks)

    @classmethod
    def take_head(cls, reader: Reader) -> Layer:
        """A rewind without acks. :raises ValueError: these bytes are not valid."""
        epoch = Stamp(reader.number(), reader.number(), reader.name())
        time = reader.number()
        rules: Rules = {}
        for _ in range(reader.count(5)):
            region = reader.name()
            rules[region] = take_position(reader), take_position(reader)
            if rules[region][0] >= rules[region][1]:
                raise reader.broken("a rewind rules an empty range")
        return cls(epoch, rules, time - 1 if time else None)

    @classmethod
    def take(cls, reader: Reader) -> Layer:
        """:raises ValueError: these bytes are not a valid layer."""
        layer = cls.take_head(reader)
        layer.acks = take_acks(reader)
        return layer
