# SPDX-License-Identifier: Apache-2.0
"""Stamps: which region did something, and when, in a total order that needs no agreement between regions.

A ``Stamp`` is a reading of a hybrid logical clock (Kulkarni et al., 2014) with the region that took it. It follows
the wall clock as long as that moves forward, and counts on from the last stamp when the clock stands still or was set
back. So a region's stamps only grow, and stay close to wall-clock time.

Order (rules R12, R40): later ``time_ms``, then greater ``counter``; of two equal in both, the lexicographically
**smaller** region wins. ``<``, ``sorted`` and ``max`` follow that order: the greatest stamp is the one that beats all
others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

_FIXED: Final = struct.Struct(">QQ")
_NUMBERS_MAX: Final = 2 * len(str(2**64 - 1)) + 1
"""Maximum length of the two numbers and the dot between them."""


class Stamp(NamedTuple):
    """One reading of a region's hybrid clock."""

    time_ms: int
    """Milliseconds since 1970."""
    counter: int
    """Separates the stamps of one region within one millisecond."""
    region: str

    def beats(self, other: Stamp) -> bool:
        """Whether this stamp wins over the other one. No stamp beats itself."""
        if self.time_ms != other.time_ms:
            return self.time_ms > other.time_ms
        if self.counter != other.counter:
            return self.counter > other.counter
        return self.region < other.region

    # The order of plain tuples would let the greater region win, so all four comparisons are replaced.
    def __lt__(self, other: object) -> bool:
        return other.beats(self) if isinstance(other, Stamp) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.beats(other) if isinstance(other, Stamp) else NotImplemented

    def __le__(self, other: object) -> bool:
        return not self.beats(other) if isinstance(other, Stamp) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return not other.beats(self) if isinstance(other, Stamp) else NotImplemented

    def __str__(self) -> str:
        return f"{self.time_ms}.{self.counter}@{self.region}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """The inverse of ``str``. :raises ValueError: the text is not a stamp."""
        numbers, _, region = text.partition("@")
        time_ms, _, counter = numbers.partition(".")
        are_numbers = numbers.isascii() and time_ms.isdecimal() and counter.isdecimal()
        if not (region and are_numbers and len(numbers) <= _NUMBERS_MAX):
            raise ValueError(
                f"{text[:80]!r} is not a stamp: expected MILLISECONDS.COUNTER@REGION, such as 12.0@us-east"
            )
        return cls(int(time_ms), int(counter), region)

    def encode(self) -> bytes:
        """``u64 time | u64 counter | region``. Read it back with ``decode``; not made to be compared as bytes."""
        return _FIXED.pack(self.time_ms, self.counter) + self.region.encode()

    @classmethod
    def decode(cls, data: bytes) -> Stamp:
        """:raises ValueError: these bytes are not a stamp."""
        try:
            time_ms, counter = _FIXED.unpack_from(data)
            return cls(time_ms, counter, str(data[_FIXED.size :], "utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"{len(data)} bytes are not a stamp: {error}") from None


ZERO: Final = Stamp(0, 0, "")
"""Before every stamp that a clock issues: the epoch of a subscription that was never rewound."""


class HybridClock:
    """Issues a region's stamps. ``now_ms`` is its wall clock, passed in so that tests and the simulator control
    time."""

    __slots__ = ("_counter", "_now_ms", "_time_ms", "region")

    def __init__(self, now_ms: Callable[[], int], region: str, last: Stamp | None = None) -> None:
        """``last``: the newest stamp known from before a restart; the first one issued comes after it."""
        self._now_ms = now_ms
        self.region = region
        self._time_ms, self._counter = (last.time_ms, last.counter) if last is not None else (0, 0)

    def next(self, after: Stamp | None = None) -> Stamp:
        """A stamp greater than all before it and than ``after`` (say, the one stored beside the value to replace).

        ``after`` counts for this one stamp only: a stamp far in the future must not drag the whole region along.
        """
        time_ms, counter = self._time_ms, self._counter
        now = self._now_ms()
        if now > time_ms:
            time_ms, counter = now, 0
        else:
            counter += 1
        self._time_ms, self._counter = time_ms, counter
        if after is not None and (after.time_ms, after.counter) >= (time_ms, counter):
            time_ms, counter = after.time_ms, after.counter + 1
            if time_ms <= now:
                self._time_ms, self._counter = time_ms, counter
        return Stamp(time_ms, counter, self.region)

    def observe(self, stamp: Stamp, max_ahead_ms: int) -> bool:
        """Take note of a stamp from elsewhere: those issued here later will be greater.

        :returns: False when it is more than ``max_ahead_ms`` ahead of the wall clock. Then it is ignored, so that one
            region with a wrong clock cannot push all others into the future.
        """
        if stamp.time_ms > self._now_ms() + max_ahead_ms:
            return False
        if (stamp.time_ms, stamp.counter) > (self._time_ms, self._counter):
            self._time_ms, self._counter = stamp.time_ms, stamp.counter
        return True
