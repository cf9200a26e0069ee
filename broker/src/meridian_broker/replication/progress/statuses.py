# SPDX-License-Identifier: Apache-2.0
"""How the other regions stand with this one's progress: for status, metrics and operators."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.replication.progress.barrier_refusals import Refusals
from meridian_broker.replication.progress.context import ExchangeContext
from meridian_broker.replication.progress.divergence import apart_from
from meridian_broker.replication.progress.lag import Behind, Trouble, Why
from meridian_broker.replication.progress.messages import SubscriptionKey
from meridian_broker.replication.progress.peer import Peer


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The progress of one subscription as known about one other region."""

    region: str
    connected: bool
    last_sent: int
    """Number of the last DELTA sent to the region, over all subscriptions."""
    last_applied: int
    """The highest one it confirmed as durable."""
    pending: int
    """DELTA with this subscription's progress that are queued or unconfirmed."""
    lag_entries: int = 0
    """Entries acknowledged here that the region has not confirmed as durable; a lower bound for those from before this
    broker started (``topics/lifecycle/unconfirmed.py``)."""
    lag_ms: int = 0
    """Age of the oldest change that it has not confirmed."""
    reason: str = ""
    """Why the subscription does not sync with the region, one of ``Why``; empty when it does."""
    detail: str = ""
    """The same in a sentence, when there is more to say."""
    for_ms: int | None = None
    """How long the reason has held; None: since this broker started."""
    sent_ms_ago: int | None = None
    """When the last delta of the subscription was sent to the region; None: none since this broker started."""
    confirmed_ms_ago: int | None = None
    """When the region last confirmed one."""
    applied_ms_ago: int | None = None
    """When progress of the subscription last came from the region and was taken."""


class Statuses:
    """Says what the exchange knows; it changes nothing."""

    def __init__(self, context: ExchangeContext, refusals: Refusals, digest_interval_ms: int) -> None:
        self._context = context
        self._peers = context.peers
        self._refusals = refusals
        self._digest_interval_ms = digest_interval_ms

    def of(self, topic: str, subscription: str, now_ms: int) -> tuple[PeerStatus, ...]:
        """How a subscription stands with each other region of its topic."""
        return tuple(self._status(region, (topic, subscription), now_ms) for region in self._context.others_of(topic))

    def lags(self, now_ms: int) -> dict[tuple[str, str], tuple[int, int]]:
        """``(topic, region)`` -> entries and milliseconds that the region is behind, over all subscriptions."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for peer in self._peers.values():
            for (topic, _), behind in peer.lag.behind():
                entries, oldest = found.get((topic, peer.region), (0, 0))
                found[topic, peer.region] = entries + behind.entries, max(oldest, now_ms - (behind.since() or now_ms))
        return found

    def apart(self, now_ms: int) -> dict[str, dict[str, str]]:
        """Region -> why it and this region do not know the same, by subject: a topic, a subscription of one,
        or, if empty, everything. A link that is down is not reported here."""
        self._context.now_ms = now_ms
        found: dict[str, dict[str, str]] = {}
        for peer in self._peers.values():
            found[peer.region] = apart_from(self._context, peer) | found.get(peer.region, {})
        return found

    def behind_for(self, now_ms: int) -> dict[str, int]:
        """Region -> for how long it may lack something that was acknowledged here. Called every second."""
        found: dict[str, int] = {}
        for peer in self._peers.values():
            if not peer.is_divided and not peer.is_awaited and (since := peer.look_behind(now_ms)) is not None:
                found[peer.region] = max(now_ms - since, found.get(peer.region, 0))
        return found

    def _status(self, region: str, key: SubscriptionKey, now_ms: int) -> PeerStatus:
        peer = self._context.peer_in(region, key[0])
        if peer is None:
            return PeerStatus(region, False, 0, 0, 0, reason=Why.LINK_DOWN)
        behind = peer.lag.get(key) or Behind()
        since = behind.since()
        trouble = self._trouble(peer, key, behind, now_ms)
        numbers, queued = peer.carries(key)

        def ago(at_ms: int | None) -> int | None:
            return None if at_ms is None else max(0, now_ms - at_ms)

        return PeerStatus(
            region,
            peer.up,
            peer.next_number - 1,
            peer.confirmed,
            len(numbers) + queued,
            behind.entries,
            ago(since) or 0,
            "" if trouble is None else trouble.why,
            "" if trouble is None else trouble.text,
            None if trouble is None or trouble.since_ms < 0 else ago(trouble.since_ms),
            ago(behind.sent_ms),
            ago(behind.confirmed_ms),
            ago(behind.applied_ms),
        )

    def _trouble(self, peer: Peer, key: SubscriptionKey, behind: Behind, now_ms: int) -> Trouble | None:
        """Why the two are not in step; None: they are, or will be in a moment."""
        if not peer.up:
            down = -1 if peer.down_since_ms is None else peer.down_since_ms
            return Trouble(Why.OTHER_VERSION if peer.incompatible else Why.LINK_DOWN, peer.incompatible, down)
        if (refused := self._refusals.trouble(key, peer.region)) is not None:
            return refused
        held = peer.waiting.get(key[0])
        known = peer.troubles.get(key) if held is None else held.trouble
        since = behind.since()
        if known is not None or since is None:
            return known
        late_ms = 2 * self._digest_interval_ms
        if behind.missed_since_ms is None:
            return Trouble(Why.NOT_CONFIRMED, "", since) if now_ms - since > late_ms else None
        if now_ms - max(peer.heard_ms, peer.up_since_ms) > late_ms:
            return Trouble(Why.NOT_CONFIRMED, "", max(peer.heard_ms, peer.up_since_ms))
        return Trouble(Why.CATCHING_UP, "", peer.up_since_ms)
