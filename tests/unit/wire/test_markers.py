# SPDX-License-Identifier: Apache-2.0
"""Markers of replicated subscriptions: as Pulsar writes them, and any other bytes."""

from __future__ import annotations

import struct
from itertools import product

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.clients import NAME_BYTES
from meridian_broker.bounds.snapshots import MARKER_BYTES, MARKER_REGIONS, SNAPSHOT_ID_BYTES
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.proto import markers_pb2 as pb
from meridian_broker.wire.proto import pulsar_pb2
from meridian_broker.wire.pulsar.markers import (
    PRODUCER_NAME,
    Marker,
    MarkerError,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
    marker_body,
    read,
)
from meridian_broker.wire.pulsar.metadata import BodyError, scan

REQUEST, RESPONSE, SNAPSHOT, UPDATE = 10, 11, 12, 13

texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20).filter(
    lambda text: text not in (".", "..")
)
numbers = st.integers(-1, (1 << 63) - 1) | st.integers(-1, 300)
positions = st.builds(Position, numbers, numbers)
several_places = st.dictionaries(texts, positions, max_size=5).map(
    lambda found: tuple(Place(region, position) for region, position in found.items())
)
markers: st.SearchStrategy[Marker] = st.one_of(
    st.builds(SnapshotRequest, texts, texts),
    st.builds(SnapshotResponse, texts, st.builds(Place, texts, positions)),
    st.builds(Snapshot, texts, positions, several_places),
    st.builds(SubscriptionUpdate, texts, several_places),
)


def body(kind: int, content: bytes, **fields: object) -> bytes:
    """An entry with any content."""
    metadata = pulsar_pb2.MessageMetadata(
        producer_name="pulsar.marker",
        sequence_id=0,
        publish_time=1,
        marker_type=kind,
        **fields,  # type: ignore[arg-type]
    ).SerializeToString()
    covered = struct.pack(">I", len(metadata)) + metadata + content
    return struct.pack(">HI", 0x0E01, crc32c(covered)) + covered


def parsed(data: bytes) -> Marker | None:
    return read(data, scan(data))


# Written out field by field: tag, length, value. The numbers are those of PIP-33 as Pulsar ships it.
METADATA = "0a 0d 70756c7361722e6d61726b6572  10 00  18 e807  {only_to}  a001 {kind}"
GOLDEN: dict[Marker, tuple[int, str, str | None]] = {
    SnapshotRequest("id-1", "us"): (REQUEST, "0a 04 69642d31  12 02 7573", None),
    SnapshotResponse("id-1", Place("eu", Position(1234, 45678))): (
        RESPONSE,
        "0a 04 69642d31  12 0d  0a 02 6575  12 07 08 d209 10 eee402",
        "us",
    ),
    Snapshot("id-1", Position(192, 123123), (Place("eu", Position(1234, 45678)), Place("ap", Position(7655, 0)))): (
        SNAPSHOT,
        """0a 04 69642d31  12 07 08 c001 10 f3c107
        1a 0d 0a 02 6575 12 07 08 d209 10 eee402  1a 0b 0a 02 6170 12 05 08 e73b 10 00""",
        "us",
    ),
    SubscriptionUpdate("s", (Place("eu", Position(1234, 45678)),)): (
        UPDATE,
        "0a 01 73  12 0d 0a 02 6575 12 07 08 d209 10 eee402",
        None,
    ),
    SnapshotResponse("i", Place("eu", Position(7, -1))): (
        RESPONSE,
        "0a 01 69  12 13 0a 02 6575 12 0d 08 07 10 ffffffffffffffffff01",
        "us",
    ),
}


@pytest.mark.parametrize("marker", GOLDEN, ids=lambda marker: type(marker).__name__)
def test_markers_are_written_as_pulsar_writes_them(marker: Marker) -> None:
    kind, content, only_to = GOLDEN[marker]
    named = "" if only_to is None else f"3a {len(only_to):02x} {only_to.encode().hex()}"
    metadata = bytes.fromhex(METADATA.format(only_to=named, kind=f"{kind:02x}"))
    covered = struct.pack(">I", len(metadata)) + metadata + bytes.fromhex(content)
    expected = b"\x0e\x01" + struct.pack(">I", crc32c(covered)) + covered
    assert marker_body(marker, 1000, only_to) == expected
    assert parsed(expected) == marker


@settings(max_examples=500)
@given(markers, st.integers(0, 1 << 45), st.none() | texts)
def test_markers_are_read_back_as_written(marker: Marker, time_ms: int, only_to: str | None) -> None:
    encoded = marker_body(marker, time_ms, only_to)
    view = scan(encoded)
    assert (view.producer_name, view.sequence_id, view.publish_time_ms) == (PRODUCER_NAME, 0, time_ms)
    assert view.replicate_to == (None if only_to is None else (only_to,))
    assert read(encoded, view) == marker == read(memoryview(encoded), view)


def test_other_entries_are_not_our_markers() -> None:
    assert all(parsed(body(kind, b"\xff" * 9)) is None for kind in (0, 9, 14, 20, 21, 22, 1000))
    message = pulsar_pb2.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    covered = struct.pack(">I", len(message)) + message
    assert parsed(struct.pack(">HI", 0x0E01, crc32c(covered)) + covered) is None


@settings(max_examples=500)
@given(markers, st.data())
def test_hostile_content_is_refused_or_read(marker: Marker, data: st.DataObject) -> None:
    """Truncated, with changed bytes, or of another type: a marker that can be rewritten, or a ``MarkerError``."""
    encoded = bytearray(marker_body(marker, 1000))
    start = scan(bytes(encoded)).payload_offset
    content = encoded[start : data.draw(st.integers(start, len(encoded)))]
    for place in data.draw(st.lists(st.integers(0, max(len(content) - 1, 0)), max_size=3)) if content else []:
        content[place] = data.draw(st.integers(0, 255))
    try:
        found = parsed(body(data.draw(st.integers(9, 14)), bytes(content)))
    except MarkerError:
        return
    assert found is None or parsed(marker_body(found, 1000)) == found


@settings(max_examples=500)
@given(st.integers(10, 13), st.binary(max_size=60))
def test_random_bytes_are_refused_or_read(kind: int, noise: bytes) -> None:
    try:
        found = parsed(body(kind, noise))
    except BodyError:
        return
    assert found is not None and parsed(marker_body(found, 1000)) == found


def test_nothing_is_left_out() -> None:
    for marker in GOLDEN:
        whole = marker_body(marker, 1000)
        start = scan(whole).payload_offset
        kind = GOLDEN[marker][0]
        for end in range(start, len(whole)):
            try:
                found = parsed(body(kind, whole[start:end]))
            except MarkerError:
                continue
            assert found is not None and found != marker  # cut between two regions


def place(region: str, ledger: int = 1, entry: int = 1) -> pb.ClusterMessageId:
    return pb.ClusterMessageId(
        cluster=region, message_id=pb.MarkersMessageIdData(ledger_id=ledger % (1 << 64), entry_id=entry % (1 << 64))
    )


def update(*places: pb.ClusterMessageId, name: str = "s") -> bytes:
    return pb.ReplicatedSubscriptionsUpdate(subscription_name=name, clusters=places).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        (UPDATE, update(name="x" * (NAME_BYTES + 1)), "subscription"),
        (UPDATE, update(name=""), "subscription"),
        (UPDATE, update(name="line\nbreak"), r"line\\nbreak"),
        (UPDATE, update(place("x" * (NAME_BYTES + 1))), "region"),
        (UPDATE, update(place("eu\u202e")), "region"),
        (UPDATE, update(place("eu"), place("ap"), place("eu")), "eu twice"),
        (UPDATE, update(*(place(str(n)) for n in range(MARKER_REGIONS + 1))), "regions"),
        (UPDATE, update(place("eu", -2)), "not a position"),
        (UPDATE, update(place("eu", 1, 1 << 63)), "not a position"),
        (UPDATE, update() + b"\xfa\x01" + b"\x80\x80\x04" + b"x" * (1 << 16), "65541 bytes|6554"),
        (REQUEST, b"\x0a\x01i", "region"),
        (REQUEST, b"\x12\x02us", "lacks a required field"),
        (REQUEST, b"\x0a\x00\x12\x02us", "id of a snapshot"),
        (REQUEST, b"\x0a\x02\xff\xff\x12\x02us", "not UTF-8"),
        (
            REQUEST,
            pb.ReplicatedSubscriptionsSnapshotRequest(
                snapshot_id="i" * (SNAPSHOT_ID_BYTES + 1), source_cluster="us"
            ).SerializeToString(),
            "id of a snapshot",
        ),
        (REQUEST, b"\x0a\x09i", "are not a"),
        (RESPONSE, b"\x0a\x01i", "without a position"),
        (RESPONSE, b"\x0a\x01i\x12\x04\x0a\x02eu", "lacks a required field"),
        (SNAPSHOT, b"\x0a\x01i", "without a position"),
    ],
)
def test_markers_beyond_a_limit_are_refused_with_the_reason(kind: int, content: bytes, reason: str) -> None:
    with pytest.raises(MarkerError, match=reason):
        parsed(body(kind, content))


@pytest.mark.parametrize("field", [{"compression": 1}, {"num_messages_in_batch": 2}, {"uuid": "u", "chunk_id": 0}])
def test_a_marker_is_a_message_as_it_is(field: dict[str, object]) -> None:
    with pytest.raises(MarkerError, match="neither"):
        parsed(body(UPDATE, update(), **field))


def test_limits_admit_what_regions_write() -> None:
    names = [f"{number:03}".ljust(64, "r") for number in range(MARKER_REGIONS)]
    most = Snapshot("i" * 50, EARLIEST, tuple(Place(name, Position(1 << 60, 1 << 40)) for name in names))
    encoded = marker_body(most, 1000)
    assert len(encoded) < MARKER_BYTES and parsed(encoded) == most


def test_positions_are_unchanged() -> None:
    for ledger, entry in product((-1, 0, (1 << 63) - 1), repeat=2):
        marker = SnapshotResponse("i", Place("eu", Position(ledger, entry)))
        assert parsed(marker_body(marker, 1)) == marker
