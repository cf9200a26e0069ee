# SPDX-License-Identifier: Apache-2.0
"""From live topics to the lines of a snapshot file (``docs/export.md``).

Data that changes with every message is copied on the loop: a topic's ends at one moment, then each subscription at one
moment, so a cursor is always consistent with its progress. In between, the loop serves other work. Everything else -
encoding, writing - happens in a thread.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from meridian_broker.admin.export.plan import Planner, read_plan
from meridian_broker.admin.figures.backlogs import Backlog, backlog_of
from meridian_broker.admin.http.state import AdminState
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.metadata.store import Record
from meridian_broker.metadata.sync.stamped import from_store, newest
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.positions.skipped import stretches
from meridian_broker.topics.cursors.ports import ViewReading
from meridian_broker.topics.journal.changes import Change, Kind
from meridian_broker.topics.journal.subscription_record import decode_record
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic

Json = dict[str, Any]
HOLES_KEPT: Final = 10_000
"""Ranges shown per cursor. Leaving out the rest hides no loss that another region's evidence would show."""


@dataclass(slots=True)
class Captured:
    """The data for one topic's line. Progress is encoded already, because it keeps changing."""

    line: Json
    subscriptions: list[Json] = field(default_factory=list)
    replicated: set[str] = field(default_factory=set)
    ledgers: list[int] = field(default_factory=list)


def capture_topic(state: AdminState, topic: Topic) -> Captured:
    """The ledgers of the log and its end, durable entries only. Subscriptions are added one by one."""
    log = topic.log
    record = topic.metadata.record if topic.metadata is not None else TopicRecord()
    last_own, last_origins = durable_ends(log, record)
    spans = log.spans()
    counts = log.counts()
    return Captured(
        {
            "topic": topic.name,
            "region": state.region,
            "incarnation": topic.incarnation,
            "shadow_of": topic.shadow_of or "",
            "unchained": sorted(log.unchained & log.last_origin.keys()),
            "ledgers": [
                {"id": ledger, "entries": entries, "size": size, "sealed": span.entries >= 0}
                for (ledger, entries, size), span in zip(counts, spans, strict=True)
            ],
            "last_own": str(last_own),
            "last_origin": {region: str(position) for region, position in last_origins.items()},
            "joined": {region: str(place) for region, place in log.joined.items()},
            "trimmed_to": str(trimmed_to(log)),
            "trimmed_origins": {region: str(place) for region, place in trimmed_origins(state.region, log).items()},
            "holes": [
                [region, str(after), str(before)] for region, some in log.holes.ranges.items() for after, before in some
            ],
            "skipped": [
                [remote, str(after), str(upto)]
                for remote, after, upto in stretches(record.skipped, record.skipped_before)
            ],
            "told": _told(topic),
            "links": _links(state, topic),
            "copies": [[str(damaged), str(copy)] for damaged, copy in sorted(log.damage.copies.items())],
            "given_up": [[one.origin, str(one.after), str(one.upto)] for one in topic.gaps.accepted],
        },
        ledgers=[ledger for ledger, _, _ in counts],
    )


def _told(topic: Topic) -> list[list[str]]:
    """For each subscription in snapshot mode, a line that names it, and one for each origin."""
    if not isinstance(topic.snapshots, TopicSnapshots):
        return []
    lines = []
    for name, ends in topic.snapshots.announced().items():
        lines.append([name, "", str(EARLIEST)])
        lines += [[name, origin, str(upto)] for origin, upto in ends.items()]
    return lines


async def capture_subscription(captured: Captured, subscription: Subscription) -> None:
    """Add a subscription as it is at one moment, including acknowledgements of this turn.

    Looking ahead of its cursor takes several turns; entries found acked are in the progress that is copied afterwards.
    """
    reading, stands = await _stands(subscription)
    subscription.cursor.flush_pending()
    log = subscription.topic.log
    dispatcher = subscription.dispatcher
    read = stands.mark_delete if dispatcher is None else max(dispatcher.read, stands.mark_delete)
    progress = subscription.cursor.progress.encode()
    line: Json = {
        "name": subscription.name,
        "replicated": subscription.replicated and subscription.durable,
        "durable": subscription.durable,
        "type": "" if subscription.type is None else subscription.type.name.title(),
        "mark_delete": str(stands.mark_delete),
        "read_position": str(log.after(read) or Position(read.ledger, read.entry + 1)),
        "individually_deleted": [[str(after), str(upto)] for after, upto in stands.holes],
        "backlog": stands.backlog,
        "progress": progress,
    }
    if subscription.cursor.dropped is not None:
        line["dropped"] = subscription.cursor.dropped.encode()
    if not subscription.replicated:
        line["firsthand"] = progress  # no other region can have acked anything
    elif subscription.cursor.first_hand is not None:
        line["firsthand"] = subscription.cursor.first_hand.encode()
    if reading is not None:
        line["thinned"] = reading.thinned_done
    if line["replicated"]:
        captured.replicated.add(subscription.name)
    captured.subscriptions.append(line)


async def _stands(subscription: Subscription) -> tuple[ViewReading | None, Backlog]:
    """A subscription's backlog, and how it reads, unchanged while the backlog was determined."""
    while True:
        reading = subscription.cursor.compacted
        stands = await backlog_of(subscription, HOLES_KEPT)
        if subscription.cursor.compacted is reading:
            return reading, stands


def capture_view(captured: Captured, topic: Topic) -> None:
    """Add the compacted view after the subscriptions: no later view contains entries that their cursors passed because
    of it."""
    view = topic.compaction.view
    if view is None:
        return
    captured.line["view"] = {"horizon": str(view.horizon)}
    if view.is_loaded and any("thinned" in one for one in captured.subscriptions):
        ledgers = [ledger for ledger in captured.ledgers if ledger <= view.horizon.ledger]
        captured.line["view"]["kept"] = {ledger: view.kept(ledger) for ledger in ledgers}


def durable_ends(log: TopicLog, record: TopicRecord) -> tuple[Position, Mapping[str, Position]]:
    """The last durable entry of this region and of each other region.

    The log's own numbers include entries that are still being written.
    """
    spans = log.spans()
    if not spans:
        return record.last_own, record.last_origins
    last = spans[-1]
    origins = dict(last.origins_before)
    index = log.index(last.ledger_id)
    if index is None:
        return log.last_own, log.last_origin
    for code, region in enumerate(index.codes.names):
        at = index.kinds.rfind(bytes((code,))) if code else -1
        place = index.place(at) if at >= 0 else None
        if place is not None:
            origins[region] = place.origin
    return max(last.own_before, index.last_own() or EARLIEST), origins


def trimmed_to(log: TopicLog) -> Position:
    """Everything up to here was trimmed; ``EARLIEST`` if nothing was."""
    spans = log.spans()
    if not spans and (log.last_own != EARLIEST or log.last_origin):
        return LATEST  # nothing is left
    if not spans or (spans[0].own_before == EARLIEST and not spans[0].origins_before):
        return EARLIEST
    return Position(spans[0].ledger_id, -1)


def trimmed_origins(region: str, log: TopicLog) -> dict[str, Position]:
    """Per origin, the last of its entries that was trimmed. Earlier ones that came late may still be here."""
    spans = log.spans()
    if spans:
        ends = {region: spans[0].own_before, **spans[0].origins_before}
    else:
        ends = {region: log.last_own, **log.last_origin}
    return {origin: place for origin, place in ends.items() if place != EARLIEST}


def _links(state: AdminState, topic: Topic) -> list[Json]:
    now = topic.scheduler.now_ms()
    exchange = state.exchange.links.status()
    links = []
    for remote, status in sorted(state.replication.status(topic.name).items()):
        link = exchange.get(remote)
        reached = status.connected or status.entries_out > 0
        links.append(
            {
                "remote": remote,
                "connected": status.connected and link is not None and link.connected,
                "backlog": status.backlog,
                "last_ack_ms": now - status.delay_ms if reached else 0,
            }
        )
    return links


class SnapshotWriter:
    """Writes a snapshot file line by line and counts its partitions. Every method is called in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")
        self._planner = Planner()

    def add(self, captured: Captured, changes: Iterable[Change]) -> None:
        """Add a topic; topics come in the order of their names, in a region of several brokers bundle by bundle."""
        subscriptions = [
            {key: _text(value) if isinstance(value, bytes) else _bits(value) for key, value in one.items()}
            for one in captured.subscriptions
        ]
        view = {key: _bits(value) for key, value in captured.line.get("view", {}).items()}
        record = (
            captured.line
            | ({"view": view} if view else {})
            | {
                "subscriptions": subscriptions,
                "ack_log": _ack_log(changes, captured.replicated),
            }
        )
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._planner.add(record, len(line))
        self._file.write(line)

    def mark(self) -> int:
        """For ``undo``: the length of the file."""
        return self._file.tell()

    def undo(self, mark: int) -> None:
        """Remove the topics that were added after a mark."""
        self._file.flush()
        self._file.truncate(mark)
        self._file.seek(mark)
        self._planner = read_plan(self._path)

    def finish(
        self,
        region: str,
        values: Iterable[tuple[str, Record]],
        tombstones: Iterable[tuple[str, Record]],
        is_synced: Callable[[str], bool],
    ) -> dict[str, int]:
        """Write the trailing line. Returns how many partitions each table has.

        :param region: this one, which may have no topic.
        :param values: as they are stored.
        :param tombstones: the same, by the paths that were deleted.
        :param is_synced: whether this region keeps a path equal with others.
        :raises MetadataError: one of them is damaged.
        """
        states = {path: from_store(path, record.value) for path, record in values}
        for path, record in tombstones:
            latest = newest(states.get(path), from_store(path, record.value, is_deletion=True))
            assert latest is not None
            states[path] = latest
        listed = []
        for path, state in sorted(states.items()):
            digest = "" if state.value is None else blake2b(state.value, digest_size=16).hexdigest()
            listed.append(
                {
                    "path": path,
                    "stamp": list(state.stamp),
                    "digest": digest,
                    "generation": state.generation,
                    "deleted": state.value is None,
                    "shared": is_synced(path),
                }
            )
        line = json.dumps({"region": region, "metadata": listed}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self.close()
        return self._planner.partitions()

    def close(self) -> None:
        self._file.close()


def _ack_log(changes: Iterable[Change], wanted: set[str]) -> list[Json]:
    """The acks of replicated subscriptions as received, without those of an earlier subscription of that name."""
    log: dict[str, list[Json]] = {}
    for kind, name, time_ms, payload in changes:
        if kind is Kind.REMOVED or (kind is Kind.SUBSCRIPTION and decode_record(payload).is_gone):
            log.pop(name, None)
        elif name in wanted and kind in (Kind.ACKED, Kind.MERGED):
            first_hand = kind is Kind.ACKED
            entry = {"subscription": name, "received_ms": time_ms, "progress": _text(payload), "firsthand": first_hand}
            log.setdefault(name, []).append(entry | ({"cause": "ack"} if first_hand else {}))
    return [entry for entries in log.values() for entry in entries]


def _bits(value: Any) -> Any:
    """Entries per ledger as JSON has them; everything else as it is."""
    if not isinstance(value, dict):
        return value
    return {str(ledger): _text(entries.serialize()) for ledger, entries in value.items()}


def _text(data: bytes) -> str:
    return b64encode(data).decode()
