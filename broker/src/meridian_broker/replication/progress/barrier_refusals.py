# SPDX-License-Identifier: Apache-2.0
"""Barriers that a region refuses to answer (R20): asked again until it answers, or until a time limit.

A region that cannot be reached is skipped at once, because its return is not predictable. One that is reachable and
answers "I have not opened that topic yet", or "I know of another deletion", may well have acknowledgements that are
missing here, and will send them in a moment. Dispatching without them would repeat messages that the barrier exists to
filter. So dispatch waits, and the subscription's status names the region. It does not wait forever: a conflict that
only an operator can resolve must not stop consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from meridian_broker.replication.progress.context import ExchangeContext
from meridian_broker.replication.progress.lag import Trouble, Why
from meridian_broker.replication.progress.messages import SubscriptionKey
from meridian_broker.replication.progress.waits import WaitResult, Waits

AGAIN_MS: Final = 100
"""Between two questions to a region that refused."""
PATIENCE_MS: Final = 5000
"""How long refusals delay dispatch. By then digests were compared as well."""
AT_ONCE: Final = 256
"""Barriers asked again in one turn, ..."""
PAUSE_MS: Final = 10
"""... and the pause before the next ones."""

Done = Callable[[WaitResult], None]
Ask = Callable[[SubscriptionKey, Done, Collection[str] | None], None]
"""Asks the topic's regions, or some of them, once: ``Barriers.pull``."""


@dataclass(slots=True)
class _Refused:
    """A barrier of one subscription that will be asked again, for everyone who waits for it."""

    incarnation: str
    since_ms: int
    again_ms: int
    dones: list[Done]
    confirmed: frozenset[str]
    missing: Mapping[str, str]
    refused: frozenset[str]


class Refusals:
    """All of them: one for each subscription, so there are never more than subscriptions with consumers."""

    def __init__(self, context: ExchangeContext, waits: Waits, ask: Ask) -> None:
        self._context = context
        self._waits = waits
        self._ask = ask
        self._waiting: dict[SubscriptionKey, _Refused] = {}
        """Asked again in this order: the pause is the same for all."""
        self._asking: dict[SubscriptionKey, _Refused] = {}
        self._not_before_ms = 0

    def begin(self, key: SubscriptionKey, done: Done) -> None:
        """Ask every region. ``done`` is called once none of them refuses, or after ``PATIENCE_MS``."""
        incarnation, now_ms = self._context.host.incarnation(key[0]), self._context.now_ms
        self._ask(key, partial(self._ended, key, _Refused(incarnation, now_ms, now_ms, [done], *_NOTHING)), None)

    def trouble(self, key: SubscriptionKey, region: str) -> Trouble | None:
        """Why dispatch of a subscription waits for this region; None: it does not."""
        one = self._waiting.get(key) or self._asking.get(key)
        if one is None or region not in one.refused:
            return None
        return Trouble(Why.DISPATCH_WAITS, one.missing[region], one.since_ms)

    def tick(self) -> None:
        """Ask again where the pause is over, some at a time."""
        now_ms = self._context.now_ms
        if now_ms < self._not_before_ms:
            return
        due = [key for key, one in islice(self._waiting.items(), AT_ONCE) if one.again_ms <= now_ms]
        for key in due:
            if self._waits.full:
                break
            one = self._asking[key] = self._waiting.pop(key)
            self._ask(key, partial(self._ended, key, one), one.refused)
        if due:
            self._not_before_ms = now_ms + PAUSE_MS

    def next_deadline(self) -> int | None:
        if not self._waiting:
            return None
        return max(next(iter(self._waiting.values())).again_ms, self._not_before_ms)

    def _ended(self, key: SubscriptionKey, one: _Refused, result: WaitResult) -> None:
        self._asking.pop(key, None)
        answered = {region: why for region, why in one.missing.items() if region not in one.refused}
        one.confirmed |= result.confirmed
        one.missing = {**answered, **result.missing}
        one.refused = result.refused
        host, now_ms = self._context.host, self._context.now_ms
        is_there = host.is_served(key[0]) and self._context.is_now(key[0], one.incarnation)
        if not one.refused or not is_there or now_ms - one.since_ms >= PATIENCE_MS:
            whole = WaitResult(one.confirmed, one.missing, one.refused)
            for done in one.dones:
                done(whole)
            return
        one.again_ms = now_ms + AGAIN_MS
        if (other := self._waiting.pop(key, None)) is not None:
            one.dones += other.dones
            one.since_ms = min(one.since_ms, other.since_ms)
            one.missing = {**other.missing, **one.missing}
            one.refused |= other.refused
        self._waiting[key] = one


_NOTHING: Final[tuple[frozenset[str], Mapping[str, str], frozenset[str]]] = (frozenset(), {}, frozenset())
