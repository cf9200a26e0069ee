# SPDX-License-Identifier: Apache-2.0
"""Metadata inside bodies: read as protobuf reads it, extended without touching what the client wrote."""

from __future__ import annotations

import base64
import struct
from typing import Any

import mmh3
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata, origin_fields
from meridian_broker.wire.pulsar.metadata import SOURCE_POSITION_PROPERTY, BodyError, MetadataView
from meridian_broker.wire.pulsar.varints import varint

THOROUGH = settings(max_examples=500, deadline=None)
u64 = st.one_of(
    st.sampled_from([0, 127, 128, 16384, 1_790_000_000_123, (1 << 63) - 1, (1 << 64) - 1]),
    st.integers(0, (1 << 64) - 1),
)
text = st.one_of(st.text(max_size=6), st.just("n" * 130))
maybe = st.booleans()

OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "partition_key": text,
    "compression": st.integers(0, 4),
    "uncompressed_size": st.integers(0, (1 << 32) - 1),
    "num_messages_in_batch": st.one_of(st.integers(1, 1000), st.integers(-(1 << 31), (1 << 31) - 1)),
    "event_time": u64,
    "schema_version": st.binary(max_size=9),
    "partition_key_b64_encoded": maybe,
    "ordering_key": st.binary(max_size=140),
    "highest_sequence_id": u64,
    "null_value": maybe,
}
RARE: dict[str, st.SearchStrategy[Any]] = {
    "replicated_from": text,
    "deliver_at_time": st.integers(1, (1 << 63) - 1),
    "marker_type": st.integers(0, 30),
    "txnid_least_bits": u64,
    "uuid": text,
    "num_chunks_from_msg": st.integers(1, 100),
    "total_chunk_msg_size": st.integers(0, 1 << 30),
    "chunk_id": st.integers(0, 100),
    "encryption_algo": text,
}


@st.composite
def metadatas(draw: st.DrawFn) -> pb.MessageMetadata:
    made = pb.MessageMetadata(producer_name=draw(text), sequence_id=draw(u64), publish_time=draw(u64))
    for name in draw(st.lists(st.sampled_from(sorted(OPTIONAL)), max_size=4)):
        setattr(made, name, draw(OPTIONAL[name]))
    for _ in range(draw(st.integers(0, 2))):
        made.properties.add(key=draw(text), value=draw(text))
    if draw(st.integers(0, 3)) == 0:
        for name in draw(st.lists(st.sampled_from(sorted(RARE)), max_size=3)):
            setattr(made, name, draw(RARE[name]))
        made.replicate_to.extend(draw(st.lists(text, max_size=2)))
        if draw(maybe):
            made.properties.add(key=SOURCE_POSITION_PROPERTY, value=draw(st.sampled_from(["3:4", "x", "1:-2", "٣:1"])))
        if draw(maybe):
            made.encryption_keys.add(key="k", value=b"v")
    return made


def expected(message: pb.MessageMetadata, offset: int) -> MetadataView:
    def given_or_none(name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return MetadataView(
        producer_name=message.producer_name,
        sequence_id=message.sequence_id,
        publish_time_ms=message.publish_time,
        num_messages=message.num_messages_in_batch,
        is_batch=message.HasField("num_messages_in_batch"),
        highest_sequence_id=message.highest_sequence_id,
        partition_key=given_or_none("partition_key"),
        partition_key_b64=message.partition_key_b64_encoded,
        ordering_key=given_or_none("ordering_key"),
        schema_version=given_or_none("schema_version"),
        payload_offset=offset,
        compression=message.compression,
        uncompressed_bytes=message.uncompressed_size,
        event_time_ms=message.event_time,
        replicate_to=tuple(message.replicate_to) or None,
        replicated_from=given_or_none("replicated_from"),
        marker_type=given_or_none("marker_type"),
        deliver_at_ms=given_or_none("deliver_at_time"),
        uuid=given_or_none("uuid"),
        chunk_id=given_or_none("chunk_id"),
        num_chunks=message.num_chunks_from_msg,
        total_chunk_bytes=message.total_chunk_msg_size,
        transactional=message.HasField("txnid_least_bits") or message.HasField("txnid_most_bits"),
        encrypted=bool(message.encryption_keys),
    )


@THOROUGH
@given(metadatas(), st.binary(max_size=20))
def test_scan_reads_as_protobuf_reads(message: pb.MessageMetadata, payload: bytes) -> None:
    encoded = message.SerializeToString()
    body = metadata.build_body(encoded, payload)
    view = metadata.scan(body)
    assert view == expected(message, 10 + len(encoded))
    assert body[view.payload_offset :] == payload
    assert metadata.scan(body) == view  # again, with the times remembered
    assert metadata.body_checksum(body) == crc32c(body[6:]) == origin_fields.origin_checksum(body, 0)


@THOROUGH
@given(metadatas(), st.integers(1 << 35, (1 << 42) - 1), st.integers(0, 5), st.binary(max_size=9))
def test_plain_facts_agree_with_the_scan(message: pb.MessageMetadata, time: int, cut: int, payload: bytes) -> None:
    """The fast path handles only plain metadata of its producer, in full agreement with the scan."""
    plain = pb.MessageMetadata(producer_name="p", sequence_id=message.sequence_id, publish_time=time)
    start = metadata.plain_start("p")
    body = metadata.build_body(plain.SerializeToString(), payload)
    facts = metadata.plain_facts(body, start)
    assert facts is None or facts == (time, metadata.body_checksum(body))
    assert facts is not None or message.sequence_id >= 1 << 63
    assert metadata.plain_facts(body, start) == facts  # once more, with the time remembered
    assert metadata.plain_facts(body, metadata.plain_start("q")) is None
    truncated = body[: len(body) - len(payload) - 1 - cut]
    assert metadata.plain_facts(truncated, start) is None
    body = metadata.build_body(message.SerializeToString(), payload)
    facts = metadata.plain_facts(body, metadata.plain_start(message.producer_name) or b"?")
    if facts is not None:
        assert metadata.scan(body) == expected(message, 10 + len(message.SerializeToString()))
        assert facts == (message.publish_time, metadata.body_checksum(body))
        assert len(message.ListFields()) == 3


@THOROUGH
@given(metadatas(), st.binary(max_size=20))
def test_a_body_examined_in_place_reads_the_same(message: pb.MessageMetadata, payload: bytes) -> None:
    """Large bodies are not copied from the read buffer: a view of them reads the same, and is not kept."""
    body = metadata.build_body(message.SerializeToString(), payload)
    around = b"before" + body + b"after"
    seen = memoryview(around)[6 : 6 + len(body)]
    start = metadata.plain_start(message.producer_name)
    assert metadata.plain_facts(seen, start) == metadata.plain_facts(body, start)
    assert metadata.begins_with(seen, start) == metadata.begins_with(body, start)
    view = metadata.scan(seen)
    assert view == metadata.scan(body)
    assert not any(isinstance(value, memoryview) for value in view)
    assert metadata.body_checksum(seen) == metadata.body_checksum(body)
    assert metadata.parse(seen) == metadata.parse(body)
    assert origin_fields.origin_checksum(seen, 0) == origin_fields.origin_checksum(body, 0)


TAGS = [8, 10, 16, 24, 34, 42, 50, 58, 64, 72, 88, 96, 120, 130, 136, 146, 152, 192, 200, 1000]


@THOROUGH
@given(metadatas(), st.lists(st.tuples(st.sampled_from(TAGS), st.one_of(st.binary(max_size=8), u64)), max_size=4))
def test_odd_metadata_agrees_with_protobuf(message: pb.MessageMetadata, tail: list[tuple[int, bytes | int]]) -> None:
    """Fields repeated, in any order, of the wrong kind, unknown or broken: the hand-written parser never differs."""
    encoded = message.SerializeToString()
    for tag, value in tail:
        if tag & 7 == 2:
            value = value if isinstance(value, bytes) else varint(value)
            encoded += varint(tag) + varint(len(value)) + value
        else:
            encoded += varint(tag) + (varint(value) if isinstance(value, int) else value)
    body = metadata.build_body(encoded, b"payload")
    try:
        wanted = metadata._view(metadata.parse(body), 10 + len(encoded))
    except BodyError:
        with pytest.raises(BodyError):
            metadata.scan(body)
    else:
        assert metadata.scan(body) == wanted


@THOROUGH
@given(metadatas(), st.binary(max_size=20), st.integers(0, 1 << 53), st.integers(0, 1 << 20), text, st.booleans())
def test_replication_fields_are_added_and_removed(
    message: pb.MessageMetadata, payload: bytes, ledger: int, entry: int, region: str, renumbered: bool
) -> None:
    encoded = message.SerializeToString()
    body = metadata.build_body(encoded, payload)
    version = b"\0\0\0\0\0\0\0\7" if renumbered else None
    extended, appended = origin_fields.append_replication(body, region, ledger, entry, version)
    assert extended[10 : 10 + len(encoded)] == encoded
    assert origin_fields.origin_checksum(extended, appended) == metadata.body_checksum(body)
    assert metadata.body_checksum(extended) == crc32c(extended[6:])
    assert origin_fields.strip_appended(extended, appended) == body

    wanted = pb.MessageMetadata()
    wanted.CopyFrom(message)
    wanted.replicated_from = region
    wanted.properties.add(key=SOURCE_POSITION_PROPERTY, value=f"{ledger}:{entry}")
    if version is not None:
        wanted.schema_version = version
    assert metadata.parse(extended) == wanted
    view = metadata.scan(extended)
    assert view.replicated_from == region
    assert extended[view.payload_offset :] == payload


@given(st.integers(1, 30))
def test_a_changed_origin_is_detected(at: int) -> None:
    body = metadata.build_body(_simple().SerializeToString(), b"x" * 30)
    extended, appended = origin_fields.append_replication(body, "west", 1, 2)
    spoilt = bytearray(extended)
    spoilt[-at] ^= 4
    assert origin_fields.origin_checksum(bytes(spoilt), appended) != metadata.body_checksum(body)


def _simple(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1_790_000_000_000, **fields)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, b"p-5"),
        ({"partition_key": "flight"}, b"flight"),
        ({"partition_key": ""}, b""),
        ({"partition_key": base64.b64encode(b"\xff\0").decode(), "partition_key_b64_encoded": True}, b"\xff\0"),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, b"not base64!"),
        ({"partition_key": "flight", "ordering_key": b"tail"}, b"tail"),
    ],
)
def test_key_hash(fields: dict[str, Any], key: bytes) -> None:
    view = metadata.scan(metadata.build_body(_simple(**fields).SerializeToString(), b""))
    assert metadata.key_hash(view) == mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def test_key_hash_is_murmur3() -> None:
    """Published values of Murmur3 x86 32 bit, seed 0."""
    for key, value in ((b"", 0), (b"hello", 0x248BFA47), (b"hello, world", 0x149BBB7F)):
        view = metadata.scan(metadata.build_body(_simple(ordering_key=key).SerializeToString(), b""))
        assert metadata.key_hash(view) == value & 0x7FFFFFFF


def test_ordinary_messages_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        _simple(),
        _simple(num_messages_in_batch=1000, compression=pb.ZSTD, uncompressed_size=100_000, highest_sequence_id=1004),
        _simple(partition_key="k", event_time=1_790_000_000_000, schema_version=b"\0" * 8, ordering_key=b"o"),
        _simple(properties=[pb.KeyValue(key="k" * 200, value="v" * 300)], partition_key_b64_encoded=True),
    ]
    bodies = [metadata.build_body(one.SerializeToString(), b"x") for one in made]
    wanted = [metadata._view(metadata.parse(body), metadata.metadata_bounds(body)[1]) for body in bodies]
    monkeypatch.setattr(metadata, "parse", None)
    assert [metadata.scan(body) for body in bodies] == wanted


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "0 bytes are not a message body"),
        (b"\x0e\x01" + bytes(7), "9 bytes are not a message body"),
        (b"\x0e\x02" + bytes(8), "begins with 0x0e01, not 0x0e02"),
        (b"\x0e\x01" + bytes(4) + struct.pack(">I", 1), "metadata of 1 bytes in a message body of 10"),
        (metadata.build_body(b"", b"payload"), "lacks a producer name"),
        (metadata.build_body(b"\x0a\x01p\x10\x01", b""), "lacks a producer name, a sequence id or a publish time"),
        (metadata.build_body(b"\x0a\x7fp", b""), "not a MessageMetadata"),
        (metadata.build_body(b"\x0a\x01\xff\x10\x01\x18\x01", b""), "not UTF-8"),
        (metadata.build_body(b"\x0a\x01p\x10\x01\x18\x01\x32\x01\xff", b""), "not UTF-8"),
    ],
)
def test_invalid_bodies(body: bytes, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        metadata.scan(body)


@pytest.mark.parametrize("appended", [-1, 18, 1 << 40])
def test_more_than_there_is_was_never_appended(appended: int) -> None:
    body = metadata.build_body(_simple().SerializeToString(), b"a payload that is long enough")
    with pytest.raises(BodyError, match="cannot have been appended"):
        origin_fields.origin_checksum(body, appended)
    with pytest.raises(BodyError, match="cannot have been appended"):
        origin_fields.strip_appended(body, appended)
