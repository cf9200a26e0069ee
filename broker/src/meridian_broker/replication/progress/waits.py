# SPDX-License-Identifier: Apache-2.0
"""Waiting for other regions: barriers before the first dispatch, flushes before a close is answered (R20).

Both are the same thing: a set of regions, each of which confirms or drops out with a reason, and a time limit for
all. They differ in what confirms: a barrier, the merge of the region's answer; a flush, the
confirmation of every DELTA that carries the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meridian_broker.replication.peers import region_of
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
    """Peer -> numbers of the DELTA it has still to confirm; a barrier's set stays empty."""
    queued: set[str] = field(default_factory=set)
    """Peers for which part of what they must confirm has not been sent yet."""
    confirmed: set[str] = field(default_factory=set)
    """Regions, as are those that follow."""
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

    def watch_deltas(self, wait: Wait, peer: str, numbers: set[int], *, queued: bool) -> None:
        """The flush waits until the peer has confirmed these DELTA, and those still queued for it."""
        wait.waiting[peer] = numbers
        if queued:
            wait.queued.add(peer)
        self._flushes.setdefault(wait.key, set()).add(wait.number)

    def delta_sent(self, peer: str, number: int, keys: Iterable[SubscriptionKey]) -> None:
        """Queued changes of these subscriptions left as this DELTA."""
        for wait in self._of(keys):
            if peer in wait.queued:
                wait.queued.discard(peer)
                wait.waiting[peer].add(number)

    def delta_requeued(self, peer: str, key: SubscriptionKey) -> None:
        """The peer refused it for want of the whole, which is queued now."""
        for wait in self._of([key]):
            if peer in wait.waiting:
                wait.queued.add(peer)

    def delta_confirmed(self, peer: str, number: int, keys: Iterable[SubscriptionKey]) -> None:
        for wait in self._of(keys):
            numbers = wait.waiting.get(peer)
            if numbers is not None:
                numbers.discard(number)
                if not numbers and peer not in wait.queued:
                    self.resolve(wait, peer)

    def delta_lost(self, peer: str, keys: Iterable[SubscriptionKey], reason: str) -> None:
        """These will not be confirmed, or the peer refused them."""
        for wait in self._of(keys):
            self.resolve(wait, peer, reason)

    def peer_gone(self, peer: str, *, is_back_soon: bool = False) -> None:
        """The link is down: nothing more will arrive from the peer.

        :param is_back_soon: it, or another one in its place, can be asked again in a moment.
        """
        for wait in list(self._waits.values()):
            self.resolve(wait, peer, LINK_DOWN, refused=is_back_soon)

    def resolve(self, wait: Wait, peer: str, missing: str = "", *, refused: bool = False) -> None:
        """The peer is done with, for good or with a reason. :param refused: asking again in a moment makes sense."""
        if wait.waiting.pop(peer, None) is None:
            return
        wait.queued.discard(peer)
        region = region_of(peer)
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
            for peer in list(wait.waiting):
                self.resolve(wait, peer, TOO_LATE)

    def next_deadline(self) -> int | None:
        return next(iter(self._waits.values())).deadline_ms if self._waits else None

    def _of(self, keys: Iterable[SubscriptionKey]) -> list[Wait]:
        if not self._flushes:
            return []
        numbers = {number for key in keys for number in self._flushes.get(key, ())}
        return [self._waits[number] for number in sorted(numbers)]
