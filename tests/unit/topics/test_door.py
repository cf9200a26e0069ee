# SPDX-License-Identifier: Apache-2.0
"""The door: what a client sends is either refused with a short reason, or can be stored, read and sent on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.clients import (
    ACK_SET_WORDS,
    BATCH_MESSAGES,
    CHUNKS,
    CLIENT_PROPERTIES_BYTES,
    CLIENTS_PER_CONNECTION,
    FRAME_BYTES,
    LATEST_TIME_MS,
    MESSAGE_METADATA_BYTES,
    NAME_BYTES,
    REPLICATE_TO_BYTES,
    SUBSCRIPTION_PROPERTIES_BYTES,
    TOPIC_NAME_CHARACTERS,
    UNCOMPRESSED_BYTES,
)
from meridian_broker.ledgers.entry import (
    deliver_at_ms,
    messages,
    pack_extras,
    pack_foreign,
    pack_own,
    publish_time_ms,
    unpack,
)
from meridian_broker.ledgers.index import LedgerIndex, RegionCodes
from meridian_broker.positions import Stamp
from meridian_broker.positions.claims import BATCH_LIMIT
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.replication.progress.messages import ExchangeLimits
from meridian_broker.topics import validation
from meridian_broker.topics.entry_metadata import foreign_header, own_entry
from meridian_broker.topics.errors import InvalidName, MessageTooLarge, NotAllowed
from meridian_broker.topics.journal import changes
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord, decode_record, encode_record
from meridian_broker.topics.policies import UNLIMITED
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.commands import SEND, Send
from meridian_broker.wire.pulsar.metadata import BodyError, MetadataView, build_body
from support.protocol.raw_connection import batch_of

THOROUGH = settings(max_examples=500, deadline=None)
LARGEST = 1 << 20
I32 = (-(1 << 31), -1, 0, 1, 2, 3, BATCH_MESSAGES, BATCH_MESSAGES + 1, (1 << 31) - 1)
U32 = (0, 1, 12, UNCOMPRESSED_BYTES, UNCOMPRESSED_BYTES + 1, (1 << 32) - 1)
U64 = (0, 1, 1_700_000_000_000, LATEST_TIME_MS, LATEST_TIME_MS + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
I64 = (-(1 << 63), -1, 0, 1, 1_700_000_000_000, LATEST_TIME_MS, LATEST_TIME_MS + 1, (1 << 63) - 1)
ENDS: dict[str, st.SearchStrategy[Any]] = {
    "sequence_id": st.sampled_from(U64),
    "publish_time": st.sampled_from(U64),
    "num_messages_in_batch": st.sampled_from(I32),
    "highest_sequence_id": st.sampled_from(U64),
    "compression": st.integers(0, 4),
    "uncompressed_size": st.sampled_from(U32),
    "event_time": st.sampled_from(U64),
    "deliver_at_time": st.sampled_from(I64),
    "chunk_id": st.sampled_from(I32),
    "num_chunks_from_msg": st.sampled_from((*I32, CHUNKS, CHUNKS + 1)),
    "total_chunk_msg_size": st.sampled_from(I32),
    "uuid": st.sampled_from(("", "u" * NAME_BYTES, "u" * (NAME_BYTES + 1))),
    "partition_key": st.sampled_from(("", "k", "k" * 60_000)),
    "ordering_key": st.sampled_from((b"", b"k")),
    "schema_version": st.sampled_from((b"", b"\0" * 8, b"\0" * 60_000)),
    "marker_type": st.sampled_from(I32),
    "replicated_from": st.sampled_from(("", "us-east")),
}
REGIONS = st.sampled_from(([], ["us-east"], ["r" * 255] * 128, ["r" * 255] * 200, ["r" * 65_535]))


@st.composite
def sends(draw: st.DrawFn) -> Send:
    """Any SEND, each number of which may be extreme for its type."""
    view = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for name in draw(st.lists(st.sampled_from(sorted(ENDS)), max_size=4)):
        setattr(view, name, draw(ENDS[name]))
    view.replicate_to.extend(draw(REGIONS))
    said = view.num_messages_in_batch
    count = draw(st.sampled_from((said, said, *I32)))
    payload = draw(st.sampled_from((b"", b"x", batch_of(b"", 2), bytes(6 * 3))))
    return send(view, payload, count, is_chunk=draw(st.booleans()))


def send(view: pb.MessageMetadata, payload: bytes = b"x", count: int = 1, *, is_chunk: bool = False) -> Send:
    body = build_body(view.SerializeToString(), payload)
    return Send(SEND, 1, view.sequence_id, None, count, is_chunk, False, None, None, False, True, body)


def plain(**fields: Any) -> pb.MessageMetadata:
    said: dict[str, Any] = {"producer_name": "p", "sequence_id": 1, "publish_time": 1_700_000_000_000, **fields}
    return pb.MessageMetadata(**said)


def judged(asked: Send) -> MetadataView | None:
    """The parsed view, or None if it is refused; the reason contains only a few numbers."""
    try:
        return validation.message(asked, LARGEST, UNLIMITED)
    except (NotAllowed, BodyError) as refusal:
        assert 0 < len(str(refusal)) < 300
        return None


@THOROUGH
@given(sends())
def test_what_is_accepted_can_be_stored_read_back_and_sent_to_another_region(asked: Send) -> None:
    view = judged(asked)
    if view is None:
        return
    entry = own_entry(0, view, asked.body)
    flags, count, key_hash, checksum, publish_ms, extras, body = entry
    header = unpack(pack_own(flags, count, key_hash, checksum, publish_ms, 1, -1, -1, extras, body))
    assert header.messages == asked.num_messages == view.num_messages
    assert 1 <= header.messages <= BATCH_MESSAGES
    assert header.publish_time_ms == view.publish_time_ms <= LATEST_TIME_MS
    assert header.deliver_at_ms == view.deliver_at_ms
    assert header.replicate_to == view.replicate_to
    there = header._replace(region="r" * 255, origin=Position(1, 1))
    assert unpack(pack_foreign(there) + body).replicate_to == view.replicate_to


@THOROUGH
@given(sends(), st.sampled_from(U64), st.sampled_from((0, 1, 1 << 20, 1 << 31, (1 << 32) - 1)))
def test_what_an_older_region_accepted_is_stored_with_sound_numbers(asked: Send, publish_ms: int, count: int) -> None:
    stamp = peer_pb2.OriginStamp(
        region="r" * 255, messages=count, publish_time_ms=publish_ms, flags=(1 << 32) - 1, key_hash=(1 << 32) - 1
    )
    made = foreign_header(asked, stamp, EARLIEST, Position(3, 4), 1)
    # from memory until it is durable, and then from the disk
    for header in (made, unpack(pack_foreign(made) + asked.body)):
        assert header.messages == (count if 1 <= count <= BATCH_LIMIT else 1)
        assert header.publish_time_ms == min(publish_ms, LATEST_TIME_MS)
        assert header.deliver_at_ms is None or 0 < header.deliver_at_ms <= LATEST_TIME_MS
        assert header.origin == Position(3, 4)


@THOROUGH
@given(
    st.sampled_from((0, 1, 2, BATCH_LIMIT, BATCH_LIMIT + 1, (1 << 32) - 1)),
    st.sampled_from(U64),
    st.sampled_from((None, *U64)),
)
def test_what_an_older_version_stored_is_read_with_sound_numbers(
    count: int, at_ms: int, deliver_ms: int | None
) -> None:
    entry = pack_own(0, count, 0, 0, at_ms, 1, -1, -1, pack_extras(None, deliver_ms), b"body")
    header = unpack(entry)
    sound = count if 1 <= count <= BATCH_LIMIT else 1
    assert (header.messages, messages(entry)) == (sound, sound)
    assert header.publish_time_ms == min(at_ms, LATEST_TIME_MS)
    assert publish_time_ms(entry) == (header.publish_time_ms or 1)
    assert header.deliver_at_ms == (None if deliver_ms is None else min(deliver_ms, LATEST_TIME_MS))
    assert deliver_at_ms(entry) == (header.deliver_at_ms or 0)
    index = LedgerIndex(1, RegionCodes("here"), EARLIEST)
    index.add_all([count, header])
    assert [index.messages(0), index.messages(1)] == [sound, sound]


@THOROUGH
@given(st.integers(1, 2000), st.binary(max_size=8), st.sampled_from((0, 2)), st.sampled_from(U64[:3]))
def test_batches_as_clients_send_them_are_accepted(count: int, payload: bytes, codec: int, event_ms: int) -> None:
    batch = batch_of(payload, count)
    fields = {"num_messages_in_batch": count, "uncompressed_size": len(batch), "compression": codec}
    view = plain(**fields, event_time=event_ms, partition_key="k")
    if codec:
        batch = b"compressed"
    let_in = validation.message(send(view, batch, count), LARGEST, UNLIMITED)
    assert (let_in.num_messages, let_in.is_batch, let_in.event_time_ms) == (count, True, event_ms)


def test_chunks_of_a_compressed_message_may_name_the_size_of_the_whole() -> None:
    """Clients compress first and split afterwards; each chunk names the total size."""
    view = plain(compression=2, uncompressed_size=(1 << 32) - 1, chunk_id=1, num_chunks_from_msg=90, uuid="u")
    view.total_chunk_msg_size = 1 << 30
    assert validation.message(send(view, is_chunk=True), LARGEST, UNLIMITED).chunk_id == 1


TWO = batch_of(b"", 2)
REFUSED: dict[str, Send] = {
    "more messages than its metadata": send(plain(), count=2),
    "fewer messages than its metadata": send(plain(num_messages_in_batch=2), TWO),
    "no message": send(plain(num_messages_in_batch=0), count=0),
    "less than no message": send(plain(num_messages_in_batch=-1), count=-1),
    "more messages than its bytes can hold": send(plain(num_messages_in_batch=3), TWO, 3),
    "more messages than a batch may have": send(
        plain(num_messages_in_batch=BATCH_MESSAGES + 1, compression=2, uncompressed_size=UNCOMPRESSED_BYTES),
        count=BATCH_MESSAGES + 1,
    ),
    "more messages than its uncompressed bytes can hold": send(
        plain(num_messages_in_batch=3, compression=2, uncompressed_size=17), count=3
    ),
    "a payload that unfolds to gigabytes": send(plain(compression=3, uncompressed_size=UNCOMPRESSED_BYTES + 1)),
    "published too late": send(plain(publish_time=LATEST_TIME_MS + 1)),
    "an event too late": send(plain(event_time=LATEST_TIME_MS + 1)),
    "delivered too late": send(plain(deliver_at_time=LATEST_TIME_MS + 1)),
    "too many regions": send(plain(replicate_to=["r" * REPLICATE_TO_BYTES])),
    "a chunk without a number": send(plain(), is_chunk=True),
    "a chunk behind the last one": send(plain(chunk_id=2, num_chunks_from_msg=2, uuid="u"), is_chunk=True),
    "a chunk before the first one": send(plain(chunk_id=-1, num_chunks_from_msg=2, uuid="u"), is_chunk=True),
    "too many chunks": send(plain(chunk_id=0, num_chunks_from_msg=CHUNKS + 1, uuid="u"), is_chunk=True),
    "a chunk whose message has a long id": send(
        plain(chunk_id=0, num_chunks_from_msg=2, uuid="u" * (NAME_BYTES + 1)), is_chunk=True
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_messages(what: str) -> None:
    with pytest.raises(NotAllowed):
        validation.message(REFUSED[what], LARGEST, UNLIMITED)


def test_refused_sizes() -> None:
    for asked in (
        send(plain(), b"x" * LARGEST),
        send(plain(partition_key="k" * MESSAGE_METADATA_BYTES)),
    ):
        with pytest.raises(MessageTooLarge):
            validation.message(asked, LARGEST, UNLIMITED)
    with pytest.raises(BodyError):
        validation.message(send(plain())._replace(body=b"\x0e\x01"), LARGEST, UNLIMITED)


def test_a_policy_on_delays_counts_from_the_publish_time() -> None:
    at = 1_700_000_000_000
    assert validation.message(send(plain(deliver_at_time=at + 1000)), LARGEST, 1000).deliver_at_ms == at + 1000
    with pytest.raises(NotAllowed, match="delayed by more than 1000 ms"):
        validation.message(send(plain(deliver_at_time=at + 1001)), LARGEST, 1000)


def ack(*ids: tuple[int, int, list[int]]) -> pb.CommandAck:
    named = [pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=words) for ledger, entry, words in ids]
    return pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=named)


WORD = st.integers(-(1 << 63), (1 << 63) - 1)
ID = st.tuples(st.sampled_from(U64), st.sampled_from(U64), st.lists(WORD, max_size=4))


@THOROUGH
@given(st.lists(ID, max_size=5))
def test_an_ack_leaves_the_bits_that_are_in_all_its_sets(ids: list[tuple[int, int, list[int]]]) -> None:
    expected: dict[Position, int] = {}
    whole = set()
    for one, (_, _, words) in zip(ack(*ids).message_id, ids, strict=True):
        at = validation.position(one)
        bits = sum((word % (1 << 64)) << 64 * number for number, word in enumerate(words))
        if words:
            expected[at] = bits & expected.get(at, bits)
        else:
            whole.add(at)
    assert validation.unacked_parts(ack(*ids)) == {at: bits for at, bits in expected.items() if at not in whole}


def test_an_ack_has_no_more_bits_than_batches_have() -> None:
    largest = [1] * ACK_SET_WORDS
    assert validation.unacked_parts(ack((1, 2, largest)))[Position(1, 2)].bit_length() == 64 * (ACK_SET_WORDS - 1) + 1
    for refused in (ack((1, 2, [*largest, 1])), ack(*((1, entry, largest) for entry in range(9)))):
        with pytest.raises(NotAllowed, match="words"):
            validation.unacked_parts(refused)


def test_numbers_beyond_positions_are_sentinels() -> None:
    places = [validation.position(pb.MessageIdData(ledgerId=ledger, entryId=entry)) for ledger in U64 for entry in U64]
    assert all(EARLIEST <= place <= LATEST for place in places)
    assert validation.end(7, (1 << 64) - 1) == Position(7, -1)


def named(size: int) -> list[pb.KeyValue]:
    """Properties of that many bytes."""
    return [pb.KeyValue(key="k", value="v" * (size - 1))]


NAMES = ("", "s", "a name/with:signs ✓", "n" * NAME_BYTES)
BAD_NAMES = (
    "n" * (NAME_BYTES + 1),
    "✓" * NAME_BYTES,
    "line\nbreak",
    "\x00",
    "\x1b[2J",
    "\x9b1A",
    "\x7f",
    "a\u2028b",
    "\u202egnp.exe",
    "\u2067",
    ".",
    "..",
)


def test_names_and_properties_that_can_be_read_back_are_accepted() -> None:
    for name in NAMES:
        fields: dict[str, Any] = {"topic": "t", "request_id": 1, "metadata": named(CLIENT_PROPERTIES_BYTES)}
        validation.producer(
            pb.CommandProducer(producer_id=1, producer_name=name, initial_subscription_name=name, **fields), 0
        )
        fields |= {"consumer_id": 1, "subType": 0, "subscription_properties": named(SUBSCRIPTION_PROPERTIES_BYTES)}
        validation.consumer(
            pb.CommandSubscribe(subscription=name, consumer_name=name, **fields), CLIENTS_PER_CONNECTION - 1
        )


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_unfit_for_records_and_terminals_are_refused(name: str) -> None:
    for refused in (pb.CommandProducer(producer_name=name), pb.CommandProducer(initial_subscription_name=name)):
        with pytest.raises(NotAllowed) as refusal:
            validation.producer(refused, 0)
        assert str(refusal.value).isprintable() and len(str(refusal.value)) < 400
    for asked in (pb.CommandSubscribe(subscription=name), pb.CommandSubscribe(consumer_name=name)):
        with pytest.raises(NotAllowed):
            validation.consumer(asked, 0)
    with pytest.raises(NotAllowed):
        validation.subscription(name, ())


def test_a_new_topics_name_must_print_as_it_is() -> None:
    for name in ("t", "a b", "ö✓", "...", "\u05e9\u05dc\u05d5\u05dd", "a\u200db"):
        validation.new_topic(topic_name.of("t", "n", name))
        validation.subscription(name, ())
    for name in ("a\x9bm", "a\x85b", "a\u2028b", "a\u202eb", "a\u2066b", ".", "..", "\ud800"):
        with pytest.raises(InvalidName) as refusal:
            validation.new_topic(topic_name.of("t", "n", name))
        assert str(refusal.value).isprintable()
        with pytest.raises(NotAllowed):
            validation.subscription(name, ())


def test_more_properties_or_clients_than_a_connection_may_have_are_refused() -> None:
    with pytest.raises(NotAllowed, match="properties of a producer"):
        validation.producer(pb.CommandProducer(metadata=named(CLIENT_PROPERTIES_BYTES + 1)), 0)
    with pytest.raises(NotAllowed, match="properties of a consumer"):
        validation.consumer(pb.CommandSubscribe(metadata=named(CLIENT_PROPERTIES_BYTES + 1)), 0)
    with pytest.raises(NotAllowed, match="properties of a subscription"):
        validation.subscription("s", [("k", "v" * SUBSCRIPTION_PROPERTIES_BYTES)])
    with pytest.raises(NotAllowed, match="close some"):
        validation.producer(pb.CommandProducer(), CLIENTS_PER_CONNECTION)
    with pytest.raises(NotAllowed, match="close some"):
        validation.consumer(pb.CommandSubscribe(), CLIENTS_PER_CONNECTION)


@THOROUGH
@given(st.text(min_size=1, max_size=40), st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=8))
def test_an_accepted_subscription_fits_into_its_records(name: str, properties: dict[str, str]) -> None:
    try:
        validation.subscription(name, properties.items())
    except NotAllowed:
        return
    created = Stamp(1_700_000_000_000, 3, "us-east")
    for record in (SubscriptionRecord(name, properties=properties), SubscriptionRecord(name, created=created)):
        encoded = encode_record(record)
        assert decode_record(changes.decode(changes.encode(Kind.SUBSCRIPTION, name, 1, encoded)).payload) == record
    fields = {"name": name, "replicated": False, "flag_stamp": [0, 0, ""], "created": created, "properties": {}}
    assert encoded == json.dumps(fields, separators=(",", ":")).encode()


def test_the_largest_subscription_fits_with_its_progress_into_a_message_to_another_region() -> None:
    name, properties = "n" * NAME_BYTES, {"": "\x01" * SUBSCRIPTION_PROPERTIES_BYTES}
    validation.subscription(name, properties.items())
    record = encode_record(SubscriptionRecord(name, properties=properties))
    limits = ExchangeLimits()
    assert limits.objection(b"", record) is None
    assert limits.item_bytes + limits.record_bytes + NAME_BYTES + TOPIC_NAME_CHARACTERS < FRAME_BYTES
