# SPDX-License-Identifier: Apache-2.0
"""How far the other regions are behind, in figures and sentences: for status, stats and metrics alike.

Two things can lag. *Progress*: acknowledgements made here and not confirmed there. *Entries*: entries published here
and not stored there; until they are stored elsewhere, they are lost with this region's volume (R6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from meridian_broker.admin.http.state import AdminState
from meridian_broker.metadata.policy_values import EXACT, SNAPSHOT
from meridian_broker.positions import ZERO
from meridian_broker.positions.position import EARLIEST
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.statuses import PeerStatus
from meridian_broker.topics.backfill.gaps import Gap
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic

Json = dict[str, Any]

SENTENCES: Final = {
    Why.LINK_DOWN: "{region} cannot be reached from {here}{since}{problem}",
    Why.OTHER_INCARNATION: "{detail}",
    Why.OTHER_VERSION: "{detail}",
    Why.NOT_A_REGION: "{detail}",
    Why.UNKNOWN_SUBSCRIPTION: "{region} has not created the subscription{since}: {detail}",
    Why.UNDECODABLE: "{region} and {here} cannot read each other's progress{since}: {detail}",
    Why.REFUSED: "{region} refuses the progress{since}: {detail}",
    Why.TOO_LARGE: "the progress cannot be sent to {region}{since}: {detail}",
    Why.NOT_CONFIRMED: "{region} is connected but confirms nothing{since}",
    Why.DISPATCH_WAITS: "dispatch waits: {region} has not yet reported what was acknowledged there: {detail}",
    Why.CATCHING_UP: "{region} is back{since} and is catching up on what it missed",
}


def peers(admin: AdminState, subscription: Subscription) -> tuple[PeerStatus, ...]:
    """Each other region's status; empty when the subscription is not kept the same in all regions."""
    if not subscription.durable or not subscription.replicated:
        return ()
    return admin.exchange.status(subscription.topic.name, subscription.name)


def is_in_step(found: Iterable[PeerStatus]) -> bool:
    """Every region has confirmed everything."""
    return all(not peer.reason and not peer.pending and not peer.lag_ms for peer in found)


def peer_json(admin: AdminState, peer: PeerStatus) -> Json:
    """One region's status. Times are milliseconds since 1970."""
    now = admin.service.parts.scheduler.now_ms()

    def at(ago: int | None) -> int | None:
        return None if ago is None else now - ago

    return {
        "region": peer.region,
        "connected": peer.connected,
        "lag_entries": peer.lag_entries,
        "lag_ms": peer.lag_ms,
        "reason": str(peer.reason),
        "detail": sentence(admin, peer),
        "since": at(peer.for_ms),
        "last_sent_at": at(peer.sent_ms_ago),
        "last_confirmed_at": at(peer.confirmed_ms_ago),
        "last_applied_at": at(peer.applied_ms_ago),
        "last_sent": peer.last_sent,
        "last_applied": peer.last_applied,
        "pending": peer.pending,
    }


def sentence(admin: AdminState, peer: PeerStatus) -> str:
    """Why the region is not in step, for people; empty when it is."""
    if not peer.reason:
        return ""
    since = " since this broker started"
    if peer.for_ms is not None:
        began = (admin.service.parts.scheduler.now_ms() - peer.for_ms) / 1000
        since = f" since {datetime.fromtimestamp(began, UTC).isoformat(timespec='seconds')}"
    link = admin.exchange.links.status().get(peer.region)
    problem = "" if link is None or link.connected or not link.problem else f": {link.problem}"
    return SENTENCES[Why(peer.reason)].format(
        region=peer.region, here=admin.region, since=since, problem=problem, detail=peer.detail
    )


def _mode(subscription: Subscription) -> str:
    """How other Meridian regions follow it: exact or snapshot."""
    snapshots = subscription.topic.snapshots
    return SNAPSHOT if snapshots is not None and snapshots.replace_exchange_of(subscription.name) else EXACT


def from_pulsar(admin: AdminState, topic: Topic, subscription: Subscription) -> list[Json]:
    """How acknowledgements of messages from each region of Apache Pulsar move to the other regions of Meridian (R2):
    ``exact``, by ``snapshot`` only, or ``unknown``. Empty if nothing moves."""
    if not subscription.durable or not subscription.replicated or len(topic.regions()) == 1:
        return []
    return [
        dict(zip(("region", "moves", "detail"), (region, *_moves(topic, subscription, region)), strict=True))
        for region in sorted(admin.service.parts.pulsar_regions_of(topic.name))
    ]


def _moves(topic: Topic, subscription: Subscription, region: str) -> tuple[str, str]:
    connected = [one for one in topic.producers.values() if one.remote_region == region]
    if any(one.names_sources is False for one in connected):
        return SNAPSHOT, (
            f"{region} sends no source positions (Apache Pulsar 4.0.3, 3.0.10 and newer do): its messages have no "
            "common origin"
        )
    if not connected and region not in topic.log.last_origin:
        return "unknown", f"{region} is not connected, and has never sent a message with an origin"
    return _mode(subscription), ""


NEVER_TOLD: Final = ("single acknowledgements", "rewinds", "deletions")
"""What does not reach regions of Apache Pulsar (R32)."""


def pulsar_json(subscription: Subscription, holes: int) -> Json:
    """How regions of Apache Pulsar follow a subscription, and what of it they are not told (R32).

    :param holes: ranges that are acknowledged beyond mark-delete.
    """
    snapshots = subscription.topic.snapshots
    if not subscription.replicated or not isinstance(snapshots, TopicSnapshots):
        return {}
    untold = [f"{holes} acknowledged ranges beyond {subscription.cursor.mark_delete}"] if holes else []
    if subscription.cursor.progress.epoch != ZERO:
        untold.append("a rewind made here")
    problem, held = snapshots.problem(), snapshots.held_back(subscription.name)
    return {
        region: {
            "syncMode": SNAPSHOT,
            "reason": problem or held.get(region, ""),
            "neverTold": NEVER_TOLD,
            "notTold": untold,
        }
        for region in sorted(snapshots.without_records())
    }


def subscription_json(admin: AdminState, subscription: Subscription, holes: int) -> Json:
    """Meridian's own figures in a subscription's stats, beside Pulsar's. Parameters as for ``pulsar_json``."""
    found = peers(admin, subscription)
    return {
        "pulsarRegions": pulsar_json(subscription, holes),
        "syncMode": _mode(subscription),
        "inSync": is_in_step(found),
        "setSize": subscription.cursor.progress.count_detail(),
        "setBytes": len(subscription.cursor.progress.encode()),
        "regions": {
            peer.region: {
                "connected": peer.connected,
                "lagEntries": peer.lag_entries,
                "lagMs": peer.lag_ms,
                "reason": str(peer.reason),
            }
            for peer in found
        },
    }


@dataclass(frozen=True, slots=True)
class Tail:
    """Entries published here that one other region has not confirmed."""

    entries: int
    size: int
    age_ms: int


def tail(topic: Topic, status: ReplicatorStatus) -> Tail:
    """Entries first stored here that the region has not confirmed; of ledgers not in memory, all entries count."""
    after = status.confirmed if status.confirmed.ledger >= 0 else EARLIEST
    entries = topic.log.own_after(after)
    if not entries or not status.backlog:
        return Tail(0, 0, 0)
    size = topic.log.bytes_after(after) * min(entries, status.backlog) // status.backlog
    return Tail(entries, size, status.delay_ms)


def tail_json(found: Tail) -> Json:
    """A tail as stats show it."""
    return {"entries": found.entries, "bytes": found.size, "ageMs": found.age_ms}


def gap_json(gap: Gap, topic: Topic) -> dict[str, Any]:
    """A gap, with a sentence that says what to do."""
    owed = topic.gaps.owed_to(gap, gap.upto)
    return {
        "origin": gap.origin,
        "after": str(gap.after),
        "upto": str(gap.upto),
        "entries_at_most": gap.entries_at_most,
        "since": gap.since_ms,
        "asked": gap.is_judged,
        "away": list(gap.away),
        "owed_to": owed,
        "detail": _gap_sentence(gap, topic, owed),
    }


def _gap_sentence(gap: Gap, topic: Topic, owed: list[str]) -> str:
    count = "" if gap.entries_at_most is None else f", {gap.entries_at_most} at most,"
    missing = f"{gap.origin}'s entries after {gap.after} up to {gap.upto}{count} are missing in {topic.region}"
    if gap.is_damage:
        missing = (
            f"{gap.origin}'s entries after {gap.after} up to {gap.upto}{count} were damaged by {topic.region}'s disk"
        )
    if not gap.is_judged:
        why = "" if gap.is_damage else f"{gap.origin} no longer stores them, "
        return f"{missing}; {why}the other regions are being asked"
    lost = f"owed to {', '.join(owed)}" if owed else "owed to no subscription known here: all have acknowledged them"
    how = f"meridian topics accept-gap {topic.name} --origin {gap.origin} --up-to {gap.upto}"
    if gap.away:
        away = f"{', '.join(gap.away)} may have them but cannot be asked, or its copy is damaged"
        return f"{missing} ({lost}); {away}. To give them up anyway: {how} --force"
    where = "and no other region has them" if gap.is_damage else "and no region has them any more"
    return f"{missing} ({lost}) {where}. To accept the loss and go on: {how}"
