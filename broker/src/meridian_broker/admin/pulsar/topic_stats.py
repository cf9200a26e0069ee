# SPDX-License-Identifier: Apache-2.0
"""Statistics of one topic, with Pulsar's names for everything that Pulsar has too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.backlogs import Backlog, backlog_of
from meridian_broker.admin.figures.filling import fill
from meridian_broker.admin.figures.rates import Rates
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar.offloading import offloaded_json
from meridian_broker.gateway.pulsar.connection import Connection
from meridian_broker.ledgers.view import LogView
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.single import SingleDispatcher
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

Json = dict[str, Any]

_NOTHING_SENT: Final[Json] = {
    "msgRateOut": 0.0,
    "msgThroughputOut": 0.0,
    "msgOutCounter": 0,
    "bytesOutCounter": 0,
    "msgRateExpired": 0.0,
    "connected": False,
    "replicationDelayInSeconds": 0,
}
"""Statistics of a shadow's replicator that has sent no message."""


@dataclass(slots=True)
class TopicStats:
    """Makes the statistics of one broker's topics."""

    state: AdminState
    rates: Rates

    async def of(self, topic: Topic, *, publishers: bool = True, consumers: bool = True) -> Json:
        """``stats``. Lets others run between subscriptions, and between many clients of one."""
        subscriptions = {}
        async for subscription in in_turns(topic.subscriptions.values()):
            stands = await backlog_of(subscription)
            clients = [self.consumer(one) async for one in in_turns(subscription.consumers)]
            made = self._subscription(subscription, stands, clients)
            subscriptions[subscription.name] = made if consumers else {**made, "consumers": []}
        producers = [one for one in topic.producers.values() if one.remote_region is None]
        age = (topic.scheduler.now_ms() - topic.created_ms) / 1000
        messages, size = topic.received_totals()
        rate_in = self.rates.rate((topic.name, "in"), messages, age)
        bytes_in = self.rates.rate((topic.name, "bytes in"), size, age)
        backlog = max((one["backlogSize"] for one in subscriptions.values()), default=0)
        return {
            "msgRateIn": rate_in,
            "msgThroughputIn": bytes_in,
            "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
            "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
            "bytesInCounter": size,
            "msgInCounter": messages,
            "bytesOutCounter": topic.subscription_registry.bytes_out_before
            + sum(one["bytesOutCounter"] for one in subscriptions.values()),
            "msgOutCounter": topic.subscription_registry.messages_out_before
            + sum(one["msgOutCounter"] for one in subscriptions.values()),
            "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
            "msgChunkPublished": False,
            "storageSize": topic.log.size,
            "backlogSize": backlog,
            **offloaded_json(self.state, topic.name, {ledger: size for ledger, _, size in topic.log.counts()}),
            "waitingPublishers": 0,
            "deduplicationStatus": topic.deduplication.status,
            "ownerBroker": self.state.admin_url().partition("://")[2],
            "publishers": [self.producer(one) async for one in in_turns(producers)] if publishers else [],
            "subscriptions": subscriptions,
            "replication": self.replication(topic),
            "shadowReplication": self.shadows(topic),
            "meridian": {
                "missing": [lagging.gap_json(gap, topic) for gap in topic.gaps.all()],
                **self.shadow(topic),
            },
            "fill": fill(topic),
        }

    def replication(self, topic: Topic) -> Json:
        """Per remote region; ``connected`` means outbound, as in Pulsar."""
        return {
            remote: self._replicator(topic, remote, status)
            for remote, status in sorted(self.state.replication.status(topic.name).items())
        }

    def shadows(self, topic: Topic) -> Json:
        """Per shadow in the topic's list, as Pulsar's replicators."""
        name = topic_name.parse(topic.name)
        shown: Json = {}
        for record in self.state.catalog.shadows.of(name):
            if record.listed:
                shadow = record.shadow_of(name)
                shown[str(shadow)] = self._shadow_here(topic, shadow) or self._shadow_elsewhere(topic, shadow)
        return shown

    def _shadow_here(self, topic: Topic, name: TopicName) -> Json | None:
        """A shadow of this broker reads the topic's log: nothing is sent. None: another broker serves it."""
        shadow, elsewhere = topic.shadows.open.get(str(name)), self.state.shadow_replication
        if shadow is None and elsewhere is not None and not self.state.service.parts.ownership.holds(name):
            return None
        read = EARLIEST if shadow is None else shadow.log.last_confirmed
        return {
            **_NOTHING_SENT,
            "connected": shadow is not None,
            "replicationBacklog": topic.log.distance(read, topic.log.last_confirmed),
        }

    def _shadow_elsewhere(self, topic: Topic, name: TopicName) -> Json:
        """``replicationBacklog`` is left out as long as the shadow's broker has not said how far it has read."""
        replication = self.state.shadow_replication
        assert replication is not None
        status = replication.status(topic.name, name)
        if isinstance(status, str):
            return {**_NOTHING_SENT, "connected": False, "lastError": status}
        age = (topic.scheduler.now_ms() - topic.created_ms) / 1000
        return {
            **_NOTHING_SENT,
            "msgRateOut": self.rates.rate((topic.name, "shadow", status.broker), status.entries_out, age),
            "msgOutCounter": status.entries_out,
            "connected": status.is_connected,
            "replicationDelayInSeconds": status.delay_ms // 1000,
            "outboundConnectedSince": _time(status.connected_since_ms),
            **({} if status.backlog is None else {"replicationBacklog": status.backlog}),
            "lastError": status.last_error,
            "meridian": {
                "broker": status.broker,
                "through": status.shadow,
                "confirmed": None if status.confirmed is None else str(status.confirmed),
                "autoResets": status.resets,
            },
        }

    def shadow(self, topic: Topic) -> Json:
        """A shadow's state relative to its source; empty for other topics."""
        record = self.state.catalog.shadows.find(topic_name.parse(topic.name))
        if record is None or not isinstance(topic.log, LogView):
            return {}
        return {
            "shadow": {
                "source": topic.shadow_of,
                "connected": topic.log.is_attached,
                "holdsSourceLedgers": record.holds,
                "gapEntries": topic.log.skipped_entries,
                "autoResetBacklogEntries": record.reset_behind,
                "autoResets": topic.log.resets,
            }
        }

    async def internal(self, topic: Topic) -> Json:
        """``internalStats``: ledgers and cursors."""
        log = topic.log
        cursors = {}
        async for subscription in in_turns(topic.subscriptions.values()):
            cursors[subscription.name] = _cursor(subscription, await backlog_of(subscription))
        counts, offload = log.counts(), self.state.offload
        newest = counts[-1] if counts else (-1, 0, 0)
        return {
            "entriesAddedCounter": topic.received_totals()[0],
            "numberOfEntries": log.entries,
            "totalSize": log.size,
            "currentLedgerEntries": newest[1],
            "currentLedgerSize": newest[2],
            "waitingCursorsCount": sum(1 for one in topic.subscriptions.values() if one.consumers),
            "pendingAddEntriesCount": 0,
            "lastConfirmedEntry": str(log.last_confirmed),
            "state": _state(topic),
            "ledgers": [
                {
                    "ledgerId": ledger,
                    "entries": entries,
                    "size": size,
                    "offloaded": offload is not None and offload.offloading.is_copied(ledger),
                    "underReplicated": False,
                }
                for ledger, entries, size in counts
            ],
            "cursors": cursors,
            "compactedLedger": _compacted(topic),
            "schemaLedgers": [],
            "incarnation": topic.incarnation,
            "lastOwn": str(log.last_own),
            "lastOrigins": {region: str(position) for region, position in sorted(log.last_origin.items())},
        }

    # -- parts -----------------------------------------------------------------------------------------------------

    def _subscription(self, subscription: Subscription, stands: Backlog, consumers: list[Json]) -> Json:
        topic = subscription.topic
        dispatcher = subscription.dispatcher
        active = dispatcher.active if isinstance(dispatcher, SingleDispatcher) else None
        kind = "" if subscription.type is None else subscription.type.name
        return {
            "msgRateOut": sum(one["msgRateOut"] for one in consumers),
            "msgThroughputOut": sum(one["msgThroughputOut"] for one in consumers),
            "bytesOutCounter": subscription.bytes_out,
            "msgOutCounter": subscription.messages_out,
            "msgBacklog": stands.backlog,
            "msgBacklogNoDelayed": stands.backlog,
            "backlogSize": topic.log.bytes_after(subscription.cursor.mark_delete),
            "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
            "msgDelayed": 0,
            "unackedMessages": subscription.unacked_messages,
            "type": kind,
            "activeConsumerName": active.name if active is not None else None,
            "msgRateExpired": 0.0,
            "totalMsgExpired": subscription.entries_dropped,
            "lastAckedTimestamp": subscription.cursor.last_acked_ms,
            "consumers": consumers,
            "isDurable": subscription.durable,
            "isReplicated": subscription.replicated,
            "durable": subscription.durable,
            "replicated": subscription.replicated,
            "allowOutOfOrderDelivery": False,
            "nonContiguousDeletedMessagesRanges": len(stands.holes),
            "subscriptionProperties": dict(subscription.record.properties),
            "markDeletePosition": str(stands.mark_delete),
            "regions": sorted(self.state.service.parts.regions_of(topic.name)) if subscription.replicated else [],
            "meridian": lagging.subscription_json(self.state, subscription, len(stands.holes)),
        }

    def consumer(self, consumer: Consumer) -> Json:
        topic = consumer.subscription.topic
        age = (topic.scheduler.now_ms() - consumer.connected_since_ms) / 1000
        key = (topic.name, consumer.subscription.name, consumer.consumer_id, id(consumer.port))
        return {
            "consumerName": consumer.name,
            **connection(consumer.port),
            "connectedSince": _time(consumer.connected_since_ms),
            "availablePermits": consumer.permits,
            "unackedMessages": consumer.unacked_messages,
            "blockedConsumerOnUnackedMsgs": consumer.blocked,
            "msgRateOut": self.rates.rate((*key, "out"), consumer.messages_out, age),
            "msgThroughputOut": self.rates.rate((*key, "bytes out"), consumer.bytes_out, age),
            "bytesOutCounter": consumer.bytes_out,
            "msgOutCounter": consumer.messages_out,
            "metadata": dict(consumer.metadata or {}),
        }

    def producer(self, producer: Producer) -> Json:
        topic = producer.topic
        age = (topic.scheduler.now_ms() - producer.connected_since_ms) / 1000
        key = (topic.name, producer.producer_id, id(producer.port))
        rate = self.rates.rate((*key, "in"), producer.messages_in, age)
        throughput = self.rates.rate((*key, "bytes in"), producer.bytes_in, age)
        return {
            "accessMode": "Shared",
            "producerId": producer.producer_id,
            "producerName": producer.name,
            **connection(producer.port),
            "connectedSince": _time(producer.connected_since_ms),
            "msgRateIn": rate,
            "msgThroughputIn": throughput,
            "averageMsgSize": throughput / rate if rate else 0.0,
            "chunkedMessageRate": 0.0,
            "metadata": dict(producer.metadata or {}),
        }

    def _replicator(self, topic: Topic, remote: str, status: ReplicatorStatus) -> Json:
        inbound = next((one for one in topic.producers.values() if one.remote_region == remote), None)
        now = topic.scheduler.now_ms()
        age = (now - topic.created_ms) / 1000
        incoming = inbound.messages_in if inbound is not None else 0
        incoming_bytes = inbound.bytes_in if inbound is not None else 0
        key = (topic.name, remote)
        return {
            "msgRateIn": self.rates.rate((*key, "in"), incoming, age),
            "msgThroughputIn": self.rates.rate((*key, "bytes in"), incoming_bytes, age),
            "msgInCount": incoming,
            "bytesInCount": incoming_bytes,
            "msgRateOut": self.rates.rate((*key, "out"), status.messages_out, age),
            "msgThroughputOut": self.rates.rate((*key, "bytes out"), status.bytes_out, age),
            "msgOutCounter": status.messages_out,
            "bytesOutCounter": status.bytes_out,
            "msgRateExpired": 0.0,
            "replicationBacklog": status.backlog,
            "connected": status.connected,
            "replicationDelayInSeconds": status.delay_ms // 1000,
            "inboundConnection": None if inbound is None else connection(inbound.port)["address"],
            "inboundConnectedSince": None if inbound is None else _time(inbound.connected_since_ms),
            "outboundConnection": self._address(remote) if status.connected else None,
            "outboundConnectedSince": _time(status.connected_since_ms),
            "state": status.state.value,
            "confirmed": str(status.confirmed),
            "hold": None if status.hold is None else status.hold.value,
            "lastError": status.last_error,
            "warning": status.warning,
            "meridian": {
                "unreplicated": lagging.tail_json(lagging.tail(topic, status)),
                "turnedAway": topic.intake.refusals().get(remote),
            },
        }

    def _address(self, remote: str) -> str | None:
        cluster = self.state.catalog.cluster(remote)
        return None if cluster is None else cluster.broker_service_url


def _cursor(subscription: Subscription, stands: Backlog) -> Json:
    log = subscription.topic.log
    mark_delete = stands.mark_delete
    dispatcher = subscription.dispatcher
    read = mark_delete if dispatcher is None else max(dispatcher.read, mark_delete)
    holes = [f"({after}..{upto}]" for after, upto in stands.holes]
    return {
        "markDeletePosition": str(mark_delete),
        "readPosition": str(log.after(read) or Position(read.ledger, read.entry + 1)),
        "waitingReadOp": bool(subscription.consumers) and log.after(read) is None,
        "pendingReadOps": 0,
        "messagesConsumedCounter": subscription.messages_out,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{', '.join(holes)}]",
        "state": "Open",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": log.distance(mark_delete, log.last_confirmed),
        "totalNonContiguousDeletedMessagesRange": len(holes),
        "properties": dict(subscription.record.properties),
        "progress": {
            "epoch": str(subscription.cursor.progress.epoch),
            "floors": {region: str(floor) for region, floor in sorted(subscription.cursor.progress.floors().items())},
            "detail": subscription.cursor.progress.count_detail(),
        },
    }


def _compacted(topic: Topic) -> Json:
    """The ledger of the compacted view, and its horizon."""
    view = topic.compaction.view
    having = (-1, -1, -1) if view is None else (view.record.ledger_id, view.record.entries, view.record.size)
    return {
        **dict(zip(("ledgerId", "entries", "size"), having, strict=True)),
        "offloaded": False,
        "underReplicated": False,
        "horizon": None if view is None else str(view.horizon),
    }


def connection(port: object) -> Json:
    """Address and version of the client."""
    if not isinstance(port, Connection) or port.transport is None:
        return {"address": None, "clientVersion": None}
    peer = port.transport.get_extra_info("peername")
    return {"address": f"/{peer[0]}:{peer[1]}" if peer else None, "clientVersion": port.client_version}


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _state(topic: Topic) -> str:
    if topic.failure is not None:
        return "Fenced"
    return "LedgerOpened" if topic.terminated is None else "Terminated"


STATS: Final = web.AppKey("stats", TopicStats)
"""Where the admin server keeps its broker's statistics."""
