# SPDX-License-Identifier: Apache-2.0
"""Waiting for other regions: barriers before the first dispatch, flushes before a close is answered (R20).

Both are the same thing: a set of regions, each of which confirms or drops out with a reason, and a time limit for
all. They differ in what confirms: a barrier, the merge of the region's answer; a flush, the
confirmation of every DELTA that carries the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meridian_broker.replication.progress.messages import SubscriptionKey

TOO_LATE = "NoAnswerInTime"
LINK_DOWN = "LinkDown"


@dataclass(frozen=True, slots=True)
class WaitResult:
    """How a barrier or a flush ended."""

    confirmed: frozenset[str]
    """Regions whose state is now here (barrier), or that hold all of ours (flush)."""
    missing: Mapping[str, str]
    """The other regions of the topic, each with the reason."""
    refused: frozenset[str] = frozenset()
    """Missing regions that a barrier can reach: they answered with a reason instead of their progress."""

    @property
    def complete(self) -> bool:
        return not self.missing


BarrierResult = WaitResult
FlushResult = WaitResult


@dataclass(slots=True)
class Wait:
    """One barrier or flush under way."""

    number: int
    key: SubscriptionKey
    deadline_ms: int
    done: Callable[[WaitResult], None]
    incarnation: str
    """The topic's when the wait began."""
    waiting: dict[str, set[int]] = field(default_factory=dict)
    """Region -> numbers of the DELTA it has still to confirm; a barrier's set stays empty."""
    queued: set[str] = field(default_factory=set)
    """Regions for which part of what they must confirm has not been sent yet."""
    confirmed: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)


class Waits:
    """All of them. Every wait ends: by its last region, or by its deadline."""

    def __init__(self, *, wait_ms: int, most: int) -> None:
        self._wait_ms = wait_ms
        self._most = most
        self._waits: dict[int, Wait] = {}
        """By number, hence by deadline: all wait equally long."""
        self._flushes: dict[SubscriptionKey, set[int]] = {}
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._waits)

    def start(self, key: SubscriptionKey, incarnation: str, now_ms: int, done: Callable[[WaitResult], None]) -> Wait:
        """A wait without regions; call ``end_if_complete`` after they are added."""
        wait = Wait(self._next_number, key, now_ms + self._wait_ms, done, incarnation)
        self._next_number += 1
        self._waits[wait.number] = wait
        return wait

    @property
    def full(self) -> bool:
        return len(self._waits) >= self._most

    def get(self, number: int) -> Wait | None:
        return self._waits.get(number)

    def watch_deltas(self, wait: Wait, region: str, numbers: set[int], *, queued: bool) -> None:
        """The flush waits until the region has confirmed these DELTA, and those still queued for it."""
        wait.waiting[region] = numbers
        if queued:
            wait.queued.add(region)
        self._flushes.setdefault(wait.key, set()).add(wait.number)

    def delta_sent(self, region: str, number: int, keys: Iterable[SubscriptionKey]) -> None:
        """Queued changes of these subscriptions left as this DELTA."""
        for wait in self._of(keys):
            if region in wait.queued:
                wait.queued.discard(region)
                wait.waiting[region].add(number)

    def delta_requeued(self, region: str, key: SubscriptionKey) -> None:
        """The region refused it for want of the whole, which is queued now."""
        for wait in self._of([key]):
            if region in wait.waiting:
                wait.queued.add(region)

    def delta_confirmed(self, region: str, number: int, keys: Iterable[SubscriptionKey]) -> None:
        for wait in self._of(keys):
            numbers = wait.waiting.get(region)
            if numbers is not None:
                numbers.discard(number)
                if not numbers and region not in wait.queued:
                    self.resolve(wait, region)

    def delta_lost(self, region: str, keys: Iterable[SubscriptionKey], reason: str) -> None:
        """These will not be confirmed, or the region refused them."""
        for wait in self._of(keys):
            self.resolve(wait, region, reason)

    def region_gone(self, region: str) -> None:
        """The link is down: nothing more will arrive from the region."""
        for wait in list(self._waits.values()):
            self.resolve(wait, region, LINK_DOWN)

    def resolve(self, wait: Wait, region: str, missing: str = "", *, refused: bool = False) -> None:
        """The region is done with, for good or with a reason. :param refused: it gave the reason itself."""
        if wait.waiting.pop(region, None) is None:
            return
        wait.queued.discard(region)
        if missing:
            wait.missing[region] = missing
            if refused:
                wait.refused.add(region)
        else:
            wait.confirmed.add(region)
        self.end_if_complete(wait)

    def end_if_complete(self, wait: Wait) -> None:
        """Call the waiting callback if no region is left to wait for."""
        if wait.waiting or self._waits.pop(wait.number, None) is None:
            return
        flushes = self._flushes.get(wait.key)
        if flushes is not None:
            flushes.discard(wait.number)
            if not flushes:
                del self._flushes[wait.key]
        wait.done(WaitResult(frozenset(wait.confirmed), wait.missing, frozenset(wait.refused)))

    def expire(self, now_ms: int) -> None:
        for wait in list(self._waits.values()):
            if wait.deadline_ms > now_ms:
                return
            for region in list(wait.waiting):
                self.resolve(wait, region, TOO_LATE)

    def next_deadline(self) -> int | None:
        return next(iter(self._waits.values())).deadline_ms if self._waits else None

    def _of(self, keys: Iterable[SubscriptionKey]) -> list[Wait]:
        if not self._flushes:
            return []
        numbers = {number for key in keys for number in self._flushes.get(key, ())}
        return [self._waits[number] for number in sorted(numbers)]
