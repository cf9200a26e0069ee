# SPDX-License-Identifier: Apache-2.0
"""A small deterministic world with one of everything that Meridian 0.1 writes to disk or to a peer.

``tests/golden/make`` writes it to files once per released format; ``tests/unit/house/test_golden_files.py`` reads those
files with the current code. Nothing here depends on clocks or randomness, so the files are the same on every machine.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.ledgers import entry
from meridian_broker.ledgers.labels import Belonging, Label
from meridian_broker.ledgers.labels import Kind as LedgerKind
from meridian_broker.ledgers.offloaded.format import CopyIndex, Packer
from meridian_broker.ledgers.offloaded.records import Offloaded, State
from meridian_broker.metadata import counters, records
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.policy_table import MESSAGE_TTL, RETENTION
from meridian_broker.metadata.policy_values import Retention
from meridian_broker.metadata.records import ClusterRecord, SchemaRecord
from meridian_broker.metadata.sync import events
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.metadata.topic_records import LedgerRecord, TopicRecord
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.clock import ZERO, HybridClock, Stamp
from meridian_broker.positions.dropped import Cause, Dropped
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.progress import Progress
from meridian_broker.positions.reports import Report
from meridian_broker.replication.leases import messages as lease
from meridian_broker.replication.leases.quorums import BEGUN, VoterSets
from meridian_broker.replication.progress import codec
from meridian_broker.replication.progress import messages as peer
from meridian_broker.topics.backfill.gaps import Accepted
from meridian_broker.topics.journal import changes
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.publishing import sequence_ids
from meridian_broker.topics.subscriptions.damaged_records import Loss
from meridian_broker.wire.pulsar.topic_name import parse

REGIONS = ("us-east", "us-west", "eu-central")
TOPIC = "persistent://public/default/orders"
TIME_MS = counters.EPOCH_2020_MS + 5 * 365 * 86_400_000
EPOCH = Stamp(TIME_MS, 3, "us-west")
SUBSCRIPTION = SubscriptionRecord(
    "billing", True, Stamp(TIME_MS, 1, "us-east"), Stamp(TIME_MS, 0, "eu-central"), {"team": "ü"}
)
RECORD = (
    b'{"name":"billing","replicated":true,"flag_stamp":[1735516800000,1,"us-east"],'
    b'"created":[1735516800000,0,"eu-central"],"properties":{"team":"\\u00fc"}}'
)
"""The same record as 0.1 writes it, spelt out because JSON may gain fields without a new format."""

# -- positions


def ack_set() -> AckSet:
    """A floor, runs and single entries above it, a link between ledgers, a partly acked batch."""
    acks = AckSet()
    acks.claim(EARLIEST, Position(3, 40))
    acks.claim(Position(3, 44), Position(3, 47))
    acks.claim(Position(3, 90), Position(5, 0))
    for number in range(2, 60, 7):
        acks.claim_point(Position(5, number))
    acks.claim_batch(Position(5, 100), 70, (1 << 66) | 0b1011, Position(5, 98))
    return acks


def progress() -> Progress:
    """Two origins and a rewind."""
    made = Progress()
    made.ack(ZERO, "us-east", EARLIEST, Position(3, 40))
    made.ack(ZERO, "us-east", Position(3, 44), Position(3, 47))
    made.ack(ZERO, "eu-central", Position(8, 2), Position(8, 9))
    made.ack_batch(ZERO, "eu-central", Position(8, 12), 10, 0b11, Position(8, 11))
    made.rewind(EPOCH, {"us-east": (Position(3, 9), Position(3, 99))}, publish_time_ms=TIME_MS - 5)
    made.ack(EPOCH, "us-east", Position(3, 9), Position(3, 12))
    return made


def progress_by_time() -> Progress:
    """A seek by time, stored as the time."""
    made = Progress()
    made.ack(ZERO, "us-east", EARLIEST, Position(3, 40))
    made.rewind(EPOCH, {}, publish_time_ms=TIME_MS - 5)
    made.ack(EPOCH, "us-east", Position(3, 9), Position(3, 12))
    return made


def noted_once() -> Progress:
    """A delta after two seeks by time."""
    whole = progress_by_time()
    whole.rewind(Stamp(TIME_MS + 10, 0, "us-west"), {}, publish_time_ms=TIME_MS + 5)
    delta = whole.empty_delta()
    delta.ack(delta.epoch, "us-east", Position(3, 41), Position(3, 44))
    return delta


def reported() -> Progress:
    """``progress()`` with two regions' reports of what they no longer owe (format 4)."""
    made = progress()
    for number, region in enumerate(REGIONS[:2]):
        upto = {"us-east": Position(3, 44), "eu-central": Position(8, 12 + number)}
        made.reports = {**made.reports, region: Report(Stamp(TIME_MS + 7, number, region), made.state(), upto)}
    return made


def dropped() -> Dropped:
    """Drops for every cause."""
    made = Dropped()
    for number, cause in enumerate(Cause):
        made.add(cause, REGIONS[number % 3], Position(2, 10 * number), Position(2, 10 * number + 4))
    return made


# -- entries and records

BODY = bytes.fromhex("0e01") + b"any bytes: the body stays as the client sent it"


def own_entry() -> bytes:
    extras = entry.pack_extras(("us-west",), TIME_MS + 60_000)
    return entry.pack_own(entry.BATCH, 7, 0xDEADBEEF, 0x01020304, TIME_MS, TIME_MS + 2, 3, 41, extras, BODY)


def unchained_header() -> entry.EntryHeader:
    """Header of a message from an Apache Pulsar region, as it is read back."""
    origin = Position(1 << 52, 41)
    header = foreign_header()._replace(flags=entry.FOREIGN | entry.UNCHAINED, region="apache", origin=origin)
    return header._replace(prev=entry.before(origin), body_offset=71)


def foreign_header() -> entry.EntryHeader:
    """``body_offset`` is that of the packed header."""
    return entry.EntryHeader(
        flags=entry.FOREIGN | entry.MARKER,
        body_offset=75,
        messages=1,
        key_hash=0,
        origin_checksum=0xFFFFFFFF,
        publish_time_ms=TIME_MS,
        stored_time_ms=TIME_MS + 9,
        prev=EARLIEST,
        region="eu-central",
        origin=Position(8, 12),
        replicate_to=None,
        deliver_at_ms=None,
    )


SEQUENCES = sequence_ids.Record(
    sequence_ids.FRESH, Position(3, 41), [("till 1", 99, TIME_MS), ("Kasse ü", 0, TIME_MS - 1)]
)


SEVERAL = [changes.encode(Kind.REMOVED, name, TIME_MS, b"") for name in ("billing", "audit")]
NAMELESS = (Kind.ACKED_BY_MANY, Kind.SEVERAL)
"""Kinds of records that name no subscription in their head."""


def progress_records() -> dict[Kind, bytes]:
    """One payload of each kind."""
    whole = progress().encode()
    return {
        Kind.SUBSCRIPTION: RECORD,
        Kind.ACKED: whole,
        Kind.MERGED: whole,
        Kind.PROGRESS: whole,
        Kind.FIRST_HAND: whole,
        Kind.DROPPED: dropped().encode(),
        Kind.REMOVED: b"",
        Kind.SEQUENCES: sequence_ids.encode(SEQUENCES),
        Kind.WHOLE: Whole(RECORD, whole, whole).encode(),
        Kind.GAP: Accepted("us-west", Position(3, 41), Position(5, 7), TIME_MS, "an operator").encode(),
        Kind.FLOORS: whole,
        Kind.ACKED_BY_MANY: b"\0\x05delta\0\x07billing\0\x05audit",
        Kind.LOST: Loss(7, 3, TIME_MS, ("billing",), in_doubt=True).encode(),
        Kind.PULSAR: struct.pack(">Bqqqqqqqq", 1, 9, 4, 9, 3, 5, 7, 10, 0),
        Kind.VOTES: b'{"eu-central":["eu-central#7",3,6000],"us-east":["us-west#12",9,0]}',
        Kind.SEVERAL: b"".join(len(one).to_bytes(4, "big") + one for one in SEVERAL),
    }


# -- what regions say to each other


FIRST = VoterSets(((Stamp(TIME_MS, 0, "us-east"), ("us-east", "us-west")),))
VOTERS = VoterSets((*FIRST.lists, (Stamp(TIME_MS + 1, 3, "us-west"), tuple(sorted(REGIONS)))), BEGUN)


def peer_messages() -> list[peer.PeerMessage]:
    """One message of each kind, with every field in use."""
    bytes_of_progress, record, incarnation = progress().encode(), RECORD, str(EPOCH)
    keys = (
        peer.KeyDigest((ZERO, "us-east", -1), 1 << 63),
        peer.KeyDigest((EPOCH, "us-east", 3), 0x0123456789ABCDEF),
    )
    subscriptions = (peer.SubscriptionDigest("billing", 11, 12, keys), peer.SubscriptionDigest("audit", 13, 14))
    return [
        peer.Hello(1, "us-east", 17, answer=True),
        peer.Delta(
            17,
            (
                peer.DeltaItem(TOPIC, "billing", incarnation, bytes_of_progress, record, ("eu-central",)),
                peer.DeltaItem(TOPIC, "audit", "", b"", passed_on=True),
            ),
        ),
        peer.DeltaAck(17, (peer.Refusal(1, peer.UNKNOWN_SUBSCRIPTION, "nobody told us of it"),)),
        peer.Digest(
            17,
            4,
            (
                peer.TopicDigest(TOPIC, incarnation, 99, in_flux=True, forced=True, subscriptions=subscriptions),
                peer.TopicDigest(f"{TOPIC}-2", "", 98),
            ),
            answer=True,
        ),
        peer.Fetch(
            (
                peer.Question(TOPIC),
                peer.Question(TOPIC, "billing", state=True, keys=((EPOCH, "us-east", 3),)),
            )
        ),
        peer.State((peer.StateItem(TOPIC, "billing", incarnation, record, bytes_of_progress),)),
        peer.Barrier(5, TOPIC, "billing", incarnation, keys, wants_record=True),
        peer.BarrierDone(5, bytes_of_progress, record, "the topic is being closed"),
        lease.LeaseAsk(
            8, "us-east#12", 6000, (lease.AskItem((TOPIC, "billing", "us-west"), 3, 2**63 + 17, "us-east"),)
        ),
        lease.LeaseAnswer(
            8,
            (
                lease.AnswerItem((TOPIC, "billing", "us-west"), 3, True),
                lease.AnswerItem((TOPIC, "audit", "us-west"), 2, False, 5, 4711, "us-west#7", lease.HELD),
            ),
        ),
        lease.LeaseRenewal(9, "us-east#12", ((3, 2**127 + 17), (127, 4711))),
        lease.LeaseRenewed(9, (127,)),
        lease.LeaseRelease("us-east#12", (((TOPIC, "billing", "us-west"), 3),)),
        lease.VotersAsk((lease.VotersItem(TOPIC, "billing", VOTERS, REGIONS), lease.VotersItem(TOPIC, "audit", FIRST))),
        lease.VotersAnswer((lease.VotersItem(TOPIC, "billing", VOTERS, REGIONS, is_clean=True),)),
    ]


# -- directories

LEDGERS = {
    1: [own_entry(), b"", b"x" * 300],
    2: [b"%d:" % number + b"y" * 40 for number in range(30)],
    4: [b"the tail"],
}
"""Entries of the log's ledgers. 3 was deleted; 4 is open, as after a kill."""
LABELS = {
    1: Label(LedgerKind.MESSAGES, Belonging(TOPIC, ""), Position(0, 17), {"us-west": Position(5, 4)}, is_joined=False),
    2: Label(LedgerKind.PROGRESS, Belonging(TOPIC, "1735516800000.3@eu-central")),
}
"""Labels that they were created with, since format 2 of the log."""
CONFIRMED = {1: (3, True), 2: (30, True), 4: (1, False)}


async def write_log(directory: Path) -> None:
    """A log of several segments, with index files and a checkpoint, copied while it is in use."""
    used = directory.with_name(directory.name + ".used")
    never = 1 << 30
    store = await LocalLedgerStore.start(used, checkpoint_bytes=never)
    for ledger_id in (1, 2, 3):
        label = LABELS[ledger_id].encode() if ledger_id in LABELS else b""
        writer = await store.create(ledger_id, fence=7, label=label)
        for data in LEDGERS.get(ledger_id, [b"soon gone"]):
            await _append(writer.append, data)
        await writer.seal()
    await store.delete(3)
    await store.close()
    # A start begins a new segment, so the previous one is closed: it gets its index file, and a checkpoint is due.
    store = await LocalLedgerStore.start(used, checkpoint_bytes=1)
    await store.tidy()
    await store.close()
    store = await LocalLedgerStore.start(used, checkpoint_bytes=never)
    writer = await store.create(4, fence=8)
    for data in LEDGERS[4]:
        await _append(writer.append, data)
    directory.mkdir(parents=True)
    for file in sorted(used.iterdir()):
        if file.name.startswith(("segment-", "checkpoint-")):
            shutil.copyfile(file, directory / file.name)
    await store.close()
    shutil.rmtree(used)


async def _append(append: Callable[..., int], data: bytes) -> None:
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    append(data, told.set_result)
    result = await told
    if isinstance(result, Exception):
        raise result


def catalog_on(store: SqliteMetadataStore) -> Catalog:
    """A catalog of us-east with a stopped clock."""
    return Catalog(store, HybridClock(lambda: TIME_MS, "us-east"), lambda: TIME_MS, asyncio.sleep, lambda _: 0)


CLUSTERS = {name: ClusterRecord(f"http://{name}:8080", "", f"pulsar://{name}:6650", "") for name in REGIONS}
TOPIC_RECORD = TopicRecord(
    properties={"owner": "bar"},
    ledgers=(
        LedgerRecord(1, 3, 390, TIME_MS, EARLIEST, {}),
        LedgerRecord(2, own_before=Position(1, 2), origins_before={"us-west": Position(9, 4)}),
    ),
    progress_ledgers=(4,),
    last_own=Position(1, 2),
    last_origins={"us-west": Position(9, 4)},
    terminated=Position(2, 29),
    topic_epoch=3,
)
AT_REST = replace(
    TOPIC_RECORD,
    progress_ledgers=(),
    progress_snapshot=(b"first record of its progress log", b"second"),
)
"""A topic that gave up its ledger of acknowledgements (since format 2 of this record)."""
SCHEMA = SchemaRecord("JSON", b'{"type":"record","name":"Order","fields":[]}', {"by": "hand"}, TIME_MS)
POLICIES = NamespaceRecord(frozenset(REGIONS), own={RETENTION: Retention(60, -1), MESSAGE_TTL: 3600})


async def write_metadata(file: Path) -> None:
    """A region's embedded metadata with one record of each kind, as SQL, because SQLite's own bytes may differ."""
    database = file.with_suffix(".sqlite")
    store = await SqliteMetadataStore.open(database)
    try:
        catalog = catalog_on(store)
        await catalog.refresh()
        await catalog.ensure_bootstrap(CLUSTERS)
        await catalog.namespaces.update("public/default", lambda _: POLICIES)
        await catalog.partitioned.create(parse("many"), 4, {"a": "b"})
        await catalog.topics.create(parse("orders"), TOPIC_RECORD)
        await catalog.topics.create(parse("gone"))
        await catalog.topics.delete(parse("gone"))
        await catalog.schemas.add(parse("orders"), SCHEMA)
        await catalog.allocate_ledger_id()
        await catalog.next_broker_epoch("us-east:6650")
    finally:
        await store.close()
    with sqlite3.connect(database) as sql:
        pragmas = [
            f"PRAGMA {name} = {sql.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        file.write_text("\n".join([*pragmas, *sql.iterdump()]) + "\n", encoding="utf-8")
    sql.close()
    for left in file.parent.glob(database.name + "*"):
        left.unlink()


# -- all of it


def metadata_messages() -> list[events.Message]:
    """Messages of regions on the event topic of synchronized metadata."""
    stamp, earlier = Stamp(TIME_MS, 3, "us-east"), (1, Stamp(TIME_MS - 5, 0, "us-west"))
    changed = (
        events.Event("/geo/namespaces/shop/orders/policies/message_ttl_in_seconds", Stamped(stamp, b"60", 1), earlier),
        events.Event("/geo/tenants/gone", Stamped(stamp, None), (0, Stamp(TIME_MS - 9, 0, "us-east"))),
        events.Event("/geo/tenants/shop", Stamped(stamp, b"{}")),
    )
    heard = {"us-east": (TIME_MS, 4), "us-west": (TIME_MS - 7, 0)}
    return [events.Changes("us-east", changed), events.Mark("us-east", (TIME_MS, 4), heard)]


def metadata_message_of_writers() -> events.Changes:
    """As one of them, with what its writer knew."""
    earlier = Stamped(Stamp(TIME_MS - 5, 0, "us-west"), None, 1)
    state = Stamped(Stamp(TIME_MS, 3, "us-east"), b"60", 1).following(earlier)
    path = "/geo/namespaces/shop/orders/policies/message_ttl_in_seconds"
    return events.Changes("us-east", (events.Event(path, state, (1, Stamp(TIME_MS - 4, 0, "us-east"))),))


OFFLOADED_LEDGER = 4711


def offloaded() -> tuple[bytes, CopyIndex]:
    """A ledger's copy in an object store: its only chunk, and the index."""
    packer = Packer(OFFLOADED_LEDGER, 20, 1000)
    for number in range(5):
        packer.add(b"entry %d, " % number + b"x" * number)
    chunk, index = packer.finish(Label(LedgerKind.MESSAGES, Belonging(TOPIC, "")).encode())
    assert chunk is not None
    return chunk, index


OFFLOADED = Offloaded(OFFLOADED_LEDGER, State.AWAY, "c0ffee", TIME_MS, 5, 60, b"label")
"""The record of where that ledger is stored."""


def small_files() -> dict[str, bytes]:
    """All files except the directories."""
    files = {
        "ack-set.bin": ack_set().encode(),
        "progress.bin": progress().encode(),
        "progress-by-time.bin": progress_by_time().encode(),
        "progress-noted-once.bin": noted_once().encode(),
        "progress-reports.bin": reported().encode(),
        "dropped.bin": dropped().encode(),
        "entry-own.bin": own_entry(),
        "entry-foreign.bin": entry.pack_foreign(foreign_header()) + BODY,
        "entry-unchained.bin": entry.pack_foreign(unchained_header()) + BODY,
        "topic-record-at-rest.bin": AT_REST.encode(),
        "offloaded-chunk.bin": offloaded()[0],
        "offloaded-index.bin": offloaded()[1].encode(),
        "offloaded-record.bin": records.encode(OFFLOADED.to_json()),
    }
    for kind, payload in progress_records().items():
        name = f"progress-record-{kind.name.lower().replace('_', '-')}.bin"
        name_of = "" if kind in NAMELESS else "billing"
        files[name] = changes.encode(kind, name_of, TIME_MS, payload)
    for message in peer_messages():
        files[f"peer-{type(message).__name__.lower()}.bin"] = codec.encode(message)
    for one in metadata_messages():
        files[f"metadata-{type(one).__name__.lower()}.bin"] = events.encode(one)
    files["metadata-changes-2.bin"] = events.encode(metadata_message_of_writers())
    return files


async def write(directory: Path) -> None:
    """Write everything into an empty or missing directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in small_files().items():
        (directory / name).write_bytes(data)
    await write_log(directory / "log")
    await write_metadata(directory / "metadata.sql")
