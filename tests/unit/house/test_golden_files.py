# SPDX-License-Identifier: Apache-2.0
"""Files of every released format, kept forever: today's code reads them, and refuses newer ones with an explanation.

When a format changes, its golden files stay, the reader keeps reading them, and ``tests/golden/make`` writes those of
the new version beside them. A failure here means that data on somebody's disk can no longer be read.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.ledgers import entry
from meridian_broker.ledgers.labels import Label
from meridian_broker.ledgers.offloaded.format import CopyIndex, CopyNewer, unpack_block
from meridian_broker.ledgers.offloaded.records import Offloaded
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys, records
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync import events
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.dropped import Dropped
from meridian_broker.positions.position import Position
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress import codec
from meridian_broker.topics.dispatch_scope import votes
from meridian_broker.topics.journal import changes
from meridian_broker.topics.journal.subscription_record import decode_record, encode_record
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.publishing import sequence_ids
from meridian_broker.topics.subscriptions.damaged_records import Loss
from meridian_broker.wire.pulsar.frames import FrameDecoder
from meridian_broker.wire.pulsar.topic_name import parse
from support.worlds import golden_world as world

GOLDEN = Path(__file__).parents[2] / "golden"
CURRENT = GOLDEN / "0.1"
"""What this version writes, by file name."""
NEWER = "written by a newer version of Meridian"


def golden(name: str) -> bytes:
    return (CURRENT / name).read_bytes()


def test_this_version_still_writes_its_golden_files(tmp_path: Path) -> None:
    """Byte for byte: a format that changes without a new version number is caught here."""
    files = {name: data.hex() for name, data in world.small_files().items()}
    assert {path.name: path.read_bytes().hex() for path in CURRENT.glob("*.bin")} == files


async def test_this_version_still_writes_its_golden_log(tmp_path: Path) -> None:
    await world.write_log(tmp_path / "log")
    written = {path.name: path.read_bytes().hex() for path in (tmp_path / "log").iterdir()}
    assert written == {path.name: path.read_bytes().hex() for path in (CURRENT / "log-2").iterdir()}


async def test_this_version_still_writes_its_golden_json(tmp_path: Path) -> None:
    """Fields may be added, because readers keep unknown ones; none may be removed or changed."""
    await world.write_metadata(tmp_path / "metadata.sql")
    written, before = values(tmp_path / "metadata.sql"), values(CURRENT / "metadata.sql")
    assert sorted(written) == sorted(before)
    for path, value in before.items():
        assert written[path]["format"] == value["format"] == 1
        assert holds(written[path]["value"], value["value"]), path
    assert holds(json.loads(encode_record(world.SUBSCRIPTION)), json.loads(world.RECORD))


def values(script: Path) -> dict[str, Any]:
    """The value at each path of a store created by this script."""
    sql = sqlite3.connect(":memory:")
    sql.executescript(script.read_text())
    found = {path: json.loads(value) for path, value in sql.execute("SELECT path, value FROM entries")}
    sql.close()
    return found


def holds(new: Any, old: Any) -> bool:
    """Whether the new value contains everything of the old one unchanged."""
    if isinstance(new, dict) and isinstance(old, dict):
        return all(key in new and holds(new[key], value) for key, value in old.items())
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


# -- values


def test_positions_are_read() -> None:
    assert AckSet.decode(golden("ack-set.bin")) == world.ack_set()
    assert Progress.decode(golden("progress.bin")) == world.progress()
    assert Progress.decode(golden("progress-by-time.bin")) == world.progress_by_time()
    assert Progress.decode(golden("progress-noted-once.bin")) == world.noted_once()
    assert Progress.decode(golden("progress-reports.bin")) == world.reported()
    assert Dropped.decode(golden("dropped.bin")) == world.dropped()


def test_entries_are_read() -> None:
    own = entry.unpack(golden("entry-own.bin"))
    assert (own.flags, own.messages, own.key_hash, own.origin_checksum) == (entry.BATCH, 7, 0xDEADBEEF, 0x01020304)
    assert (own.publish_time_ms, own.stored_time_ms) == (world.TIME_MS, world.TIME_MS + 2)
    assert (own.prev, own.region, own.origin) == (Position(3, 41), None, None)
    assert (own.replicate_to, own.deliver_at_ms) == (("us-west",), world.TIME_MS + 60_000)
    assert golden("entry-own.bin")[own.body_offset :] == world.BODY
    foreign = entry.unpack(golden("entry-foreign.bin"))
    assert foreign == world.foreign_header()
    assert golden("entry-foreign.bin")[foreign.body_offset :] == world.BODY
    assert entry.unpack(golden("entry-unchained.bin")) == world.unchained_header()


def test_copies_of_offloaded_ledgers_can_be_read() -> None:
    chunk, index = (
        golden("offloaded-chunk.bin"),
        CopyIndex.decode(golden("offloaded-index.bin"), world.OFFLOADED_LEDGER),
    )
    assert (chunk, index) == world.offloaded()
    found: list[bytes | None] = []
    for number, (first, of, offset, length) in enumerate(index.blocks):
        assert of == 0
        block = chunk[offset : offset + length]
        found += unpack_block(world.OFFLOADED_LEDGER, first, index.end_of(number) - first, block).entries
    assert found == [b"entry %d, " % number + b"x" * number for number in range(5)]
    record = records.decode("", golden("offloaded-record.bin"))[0]
    assert Offloaded.from_json(world.OFFLOADED_LEDGER, record) == world.OFFLOADED


def test_a_newer_format_of_a_ledgers_copy_is_not_damage() -> None:
    """Damage would be repaired from other regions."""
    newer = golden("offloaded-index.bin")[:-4].replace(b"MRDNOFF1", b"MRDNOFF2")
    with pytest.raises(CopyNewer, match=r"newer version of Meridian \(format 2, .*upgrade"):
        CopyIndex.decode(newer + crc32c(newer).to_bytes(4, "big"), world.OFFLOADED_LEDGER)


def test_every_kind_of_progress_record_has_a_golden_file() -> None:
    assert world.progress_records().keys() == set(changes.Kind)


@pytest.mark.parametrize("kind", world.progress_records())
def test_progress_records_are_read(kind: changes.Kind) -> None:
    name = f"progress-record-{kind.name.lower().replace('_', '-')}.bin"
    of = "" if kind in world.NAMELESS else "billing"
    expected = (kind, of, world.TIME_MS, world.progress_records()[kind])
    assert changes.decode(golden(name)) == expected
    if kind is changes.Kind.SUBSCRIPTION:
        assert decode_record(expected[3]) == world.SUBSCRIPTION
    if kind is changes.Kind.WHOLE:
        assert Whole.decode(expected[3]).record == world.RECORD
    if kind is changes.Kind.ACKED_BY_MANY:
        acked = [(changes.Kind.ACKED, one, world.TIME_MS, b"delta") for one in ("billing", "audit")]
        assert changes.expand(golden(name)) == acked
    if kind is changes.Kind.SEVERAL:
        gone = [(changes.Kind.REMOVED, one, world.TIME_MS, b"") for one in ("billing", "audit")]
        assert changes.expand(golden(name)) == gone
    if kind is changes.Kind.LOST:
        assert Loss.decode("7", expected[3]) == Loss(7, 3, world.TIME_MS, ("billing",), in_doubt=True)
    if kind is changes.Kind.VOTES:
        assert votes.decode(expected[3]) == {
            "eu-central": ("eu-central#7", 3, 6000),
            "us-east": ("us-west#12", 9, 0),
        }
    if kind is changes.Kind.SEQUENCES:
        assert sequence_ids.decode(expected[3]) == world.SEQUENCES


@pytest.mark.parametrize("expected", world.metadata_messages(), ids=lambda message: type(message).__name__)
def test_messages_about_metadata_are_read(expected: events.Message) -> None:
    data = golden(f"metadata-{type(expected).__name__.lower()}.bin")
    assert events.decode(data) == expected
    with pytest.raises(ValueError, match="format 3; this version reads 1 and 2: upgrade this region"):
        events.decode(b"\x03" + data[1:])


def test_what_writers_of_metadata_knew_is_read() -> None:
    expected = world.metadata_message_of_writers()
    found = events.decode(golden("metadata-changes-2.bin"))
    assert found == expected
    assert isinstance(found, events.Changes)
    assert [one.state.knows for one in found.events] == [one.state.knows for one in expected.events]


@pytest.mark.parametrize("expected", world.peer_messages(), ids=lambda message: type(message).__name__)
def test_peer_messages_are_read(expected: object) -> None:
    (command,) = FrameDecoder().feed(golden(f"peer-{type(expected).__name__.lower()}.bin"))
    assert codec.decode(command[0], command[1]) == expected


@pytest.mark.parametrize(
    ("name", "read", "newer"),
    [
        ("progress.bin", Progress.decode, 6),
        ("dropped.bin", Dropped.decode, 2),
        ("entry-own.bin", entry.unpack, 2),
        ("entry-foreign.bin", entry.unpack, 2),
        ("progress-record-acked.bin", changes.decode, 2),
    ],
)
def test_a_newer_value_is_refused_with_an_explanation(name: str, read: Callable[[bytes], object], newer: int) -> None:
    data = golden(name)
    assert data[0] == 1
    with pytest.raises(ValueError, match=rf"newer version of Meridian \(format {newer},"):
        read(bytes((newer,)) + data[1:])


@pytest.mark.parametrize(
    ("name", "read", "what"),
    [
        ("progress.bin", Progress.decode, "the progress is damaged: it has format 0, and .* reads 1 to 5"),
        ("dropped.bin", Dropped.decode, "the record of drops is damaged: it has format 0, and .* reads 1$"),
        ("entry-own.bin", entry.unpack, "the entry is damaged: it has format 0"),
        ("progress-record-acked.bin", changes.decode, "the progress record is damaged: it has format 0"),
    ],
)
def test_a_format_that_no_version_wrote_is_not_called_newer(
    name: str, read: Callable[[bytes], object], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        read(b"\x00" + golden(name)[1:])


def test_a_kind_that_no_version_wrote_is_not_called_newer() -> None:
    data = golden("progress-record-acked.bin")
    with pytest.raises(ValueError, match="damaged: no kind has number 0"):
        changes.decode(data[:1] + b"\x00" + data[2:])


def test_newer_sequence_ids_are_refused_with_an_explanation() -> None:
    payload = changes.decode(golden("progress-record-sequences.bin")).payload
    assert payload[0] == 1
    with pytest.raises(ValueError, match=r"newer version of Meridian \(format 2,"):
        sequence_ids.decode(b"\x02" + payload[1:])


# -- the log


async def read_all(directory: Path) -> dict[int, list[bytes]]:
    labels = world.LABELS if directory.name == "log-2" else {}
    store = await LocalLedgerStore.start(directory)
    try:
        assert store.damages == ()
        found = {}
        for info in await store.list():
            reader = await store.open(info.ledger_id)
            found[info.ledger_id] = await reader.read(0, reader.last_confirmed(), 1 << 20)
            assert (info.entries, info.sealed) == world.CONFIRMED[info.ledger_id]
            assert info.label == (labels[info.ledger_id].encode() if info.ledger_id in labels else b"")
            assert not info.label or Label.decode(info.label) == labels[info.ledger_id]
        with pytest.raises(LedgerError, match="was used before"):
            await store.create(3, fence=9)
        return found
    finally:
        await store.close()


@pytest.fixture(params=["log", "log-2"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The log in each format: the first had no ledger labels."""
    return Path(shutil.copytree(CURRENT / request.param, tmp_path / request.param))


async def test_the_log_is_read(log: Path) -> None:
    assert await read_all(log) == world.LEDGERS


@pytest.mark.parametrize("pattern", ["checkpoint-*", "*.index", "[cs]*[x1]"])
async def test_the_log_is_read_without_its_checkpoint_and_index(log: Path, pattern: str) -> None:
    removed = [file for file in log.glob(pattern) if file.suffix != ".log"]
    assert removed
    for file in removed:
        file.unlink()
    assert await read_all(log) == world.LEDGERS


def as_newer(data: bytes, crc_at: int, newer: int) -> bytes:
    """The same file header with a newer version and a correct checksum."""
    assert data[8] == 0
    assert 0 < data[9] < newer
    return with_version(data, crc_at, newer)


def with_version(data: bytes, crc_at: int, version: int) -> bytes:
    """The same file header with another version (a u16 after the magic) and a correct checksum."""
    changed = data[:9] + bytes((version,)) + data[10:]
    end = crc_at if crc_at >= 0 else len(data) + crc_at
    return changed[:end] + struct.pack(">I", crc32c(changed[:end])) + changed[end + 4 :]


@pytest.mark.parametrize(
    ("name", "crc_at", "what"),
    [
        ("segment-000000000002.log", 36, "log format 3"),
        ("checkpoint-000000000001", -4, "checkpoint format 3"),
    ],
)
async def test_a_newer_log_is_refused_with_an_explanation(log: Path, name: str, crc_at: int, what: str) -> None:
    """Only segments after the checkpoint are read, and what a newer broker wrote is among them."""
    file = log / name
    file.write_bytes(as_newer(file.read_bytes(), crc_at, 3))
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    with pytest.raises(LedgerError, match=rf"a newer version of Meridian .{what},.* upgrade this broker"):
        await LocalLedgerStore.start(log)
    after = {path.name: path.read_bytes() for path in log.iterdir() if path.name != "LOCK"}
    assert after == before, "refused files are left unchanged"


@pytest.mark.parametrize(
    ("name", "crc_at", "what"),
    [
        ("segment-000000000002.log", 36, "log format 0"),
        ("checkpoint-000000000001", -4, "checkpoint format 0"),
    ],
)
async def test_a_log_of_no_version_is_refused_and_not_called_newer(
    log: Path, name: str, crc_at: int, what: str
) -> None:
    file = log / name
    file.write_bytes(with_version(file.read_bytes(), crc_at, 0))
    with pytest.raises(LedgerError, match=rf"{name} is damaged: it has {what}, and .* reads 1 to 2"):
        await LocalLedgerStore.start(log)


async def test_a_newer_index_file_is_rebuilt(log: Path) -> None:
    """It is a cache: nothing is lost."""
    file = log / "segment-000000000001.index"
    file.write_bytes(as_newer(file.read_bytes(), 20, 2))
    assert await read_all(log) == world.LEDGERS


# -- metadata


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "metadata.sqlite"
    sql = sqlite3.connect(file)
    sql.executescript((CURRENT / "metadata.sql").read_text())
    sql.close()
    return file


async def test_metadata_is_read(database: Path) -> None:
    store = await SqliteMetadataStore.open(database)
    try:
        catalog = world.catalog_on(store)
        await catalog.refresh()
        assert catalog.known_clusters() == sorted(world.REGIONS)
        for name in world.REGIONS:
            cluster = await catalog.clusters.get(name)
            assert cluster.to_json() == world.CLUSTERS[name].to_json()
        assert (await catalog.tenants.get("public")).allowed_clusters == set(world.REGIONS)
        assert (await catalog.namespaces.get("public/default")).policies() == world.POLICIES.policies()
        many = await catalog.partitioned.get(parse("many"))
        assert (many.partitions, many.properties) == (4, {"a": "b"})
        orders, _ = await catalog.topics.get(parse("orders"))
        assert holds(orders.to_json(), world.TOPIC_RECORD.to_json())
        assert await catalog.topics.incarnation(parse("gone")) != ""
        schema = await catalog.schemas.get(parse("orders"))
        assert (schema.version, schema.to_json()) == (0, world.SCHEMA.to_json())
        # Numbers continue after those assigned before.
        before = records.decode("", (await found(store, keys.LEDGER_IDS)))[0]
        assert await catalog.allocate_ledger_id() > before
        assert await catalog.next_broker_epoch("us-east:6650") == 2
    finally:
        await store.close()


async def test_a_topic_with_progress_in_its_record_is_refused_by_older_brokers(database: Path) -> None:
    """They would open it without its subscriptions. They can open it again once its progress is in a ledger."""
    assert json.loads(golden("topic-record-at-rest.bin"))["format"] == 2
    store = await SqliteMetadataStore.open(database)
    try:
        path, topics = keys.topic(parse("orders")), world.catalog_on(store).topics
        await store.put(path, golden("topic-record-at-rest.bin"))
        record, version = await topics.get(parse("orders"))
        assert record == world.AT_REST
        version = await topics.put(parse("orders"), record, version)
        assert json.loads(await found(store, path))["format"] == 2
        await topics.move(parse("orders"), parse("aside"), {}, None)
        assert json.loads(await found(store, keys.topic(parse("aside"))))["format"] == 2
        record, version = await topics.get(parse("aside"))
        used = replace(record, progress_snapshot=None, progress_ledgers=(9,))
        await topics.put(parse("aside"), used, version)
        assert json.loads(await found(store, keys.topic(parse("aside"))))["format"] == 1
    finally:
        await store.close()


async def found(store: SqliteMetadataStore, path: str) -> bytes:
    record = await store.get(path)
    assert record is not None
    return record.value


async def test_a_newer_metadata_value_is_refused_with_an_explanation(database: Path) -> None:
    store = await SqliteMetadataStore.open(database)
    try:
        path = keys.topic(parse("orders"))
        value = (await found(store, path)).replace(b'"format":1', b'"format":3')
        await store.put(path, value)
        with pytest.raises(MetadataError, match=r"by a newer version of Meridian \(format 3,"):
            await world.catalog_on(store).topics.get(parse("orders"))
    finally:
        await store.close()


async def test_newer_metadata_tables_are_refused_with_an_explanation(database: Path) -> None:
    sql = sqlite3.connect(database)
    sql.execute("PRAGMA user_version = 2")
    sql.close()
    with pytest.raises(MetadataError, match=r"newer version of Meridian .metadata format 2,"):
        await SqliteMetadataStore.open(database)
