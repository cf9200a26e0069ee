# SPDX-License-Identifier: Apache-2.0
"""What the replicator to a region of Apache Pulsar sends, and where it continues."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers import entry as entries
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.pulsar_replicator import PulsarReplicator
from meridian_broker.replication.entries.pulsar_sending import PulsarSendWriter
from meridian_broker.replication.entries.replicator import Reached
from meridian_broker.replication.entries.replicator_status import StopReason
from meridian_broker.replication.entries.sending import Stamp
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import markers, metadata
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send
from support.worlds.replicator_model import LOCAL, REMOTE, THIRD, LocalLog

NOWHERE = Reached(EARLIEST, EARLIEST)


class Pulsar:
    """The region: what it was sent by successive replicators."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.got: list[Position] = []
        """Source positions, those of markers included."""
        self.began = EARLIEST
        """The end of the log when the replicator was created."""
        self.carries = False
        self.unconfirmed: list[Send] = []

    def connect(self, reached: Reached, *, largest: int = 0) -> PulsarReplicator:
        last_marker = (lambda: self.log.end) if self.carries else None
        self.core = PulsarReplicator("topic", LOCAL, REMOTE, "", last_marker=last_marker, end=self.began)
        return self.connect_again(reached, largest=largest)

    def connect_again(self, reached: Reached, *, largest: int = 0) -> PulsarReplicator:
        """The same replicator with another producer."""
        self.core.disconnected(None, 0)
        self.core.starting("")
        self.unconfirmed.clear()
        assert self.core.resume(1, reached, largest, self.log.end, self.log.own, 0)
        return self.core

    def pump(self) -> None:
        while (want := self.core.next_read()) is not None:
            batch = self.log.entries(want.after, want.max_entries, want.max_bytes)
            for send in FrameDecoder().feed(b"".join(self.core.read(batch, self.log.own))):
                assert isinstance(send, Send) and send.checksum_ok
                assert send.origin is None, "nothing of ours is sent"
                said = {one.key: one.value for one in metadata.parse(send.body).properties}
                ledger, _, entry = said[metadata.SOURCE_POSITION_PROPERTY].partition(":")
                self.got.append(Position(int(ledger), int(entry)))
                self.unconfirmed.append(send)
            if not batch:
                return

    def confirm(self, count: int) -> None:
        for send in self.unconfirmed[:count]:
            assert self.core.receipt(send.sequence_id)
        del self.unconfirmed[:count]


kinds = st.sampled_from(["own", "foreign", "marker", "kept", "roll"])


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(kinds, st.integers(0, 3), st.booleans()), max_size=40))
def test_a_restart_loses_nothing_and_repeats_only_what_was_not_recorded(
    steps: list[tuple[str, int, bool]],
) -> None:
    log = LocalLog()
    remote = Pulsar(log)
    remote.connect(NOWHERE)
    on_record = NOWHERE
    for kind, confirmed, restarts in steps:
        if kind == "roll":
            log.roll()
        elif kind == "own":
            log.append()
        elif kind == "kept":
            log.append(replicate_to=(LOCAL,))
        else:
            log.append(entries.FOREIGN if kind == "foreign" else entries.MARKER)
        remote.pump()
        remote.confirm(confirmed)
        reached = remote.core.reached
        assert reached.chain <= reached.scanned
        confirmed_all = [place for place in log.wanted if place <= reached.scanned]
        assert set(confirmed_all) <= set(remote.got), "nothing unsent counts as served"
        on_record = reached
        if restarts:
            before = len(remote.got)
            remote.connect(on_record)
            remote.pump()
            assert all(place > on_record.scanned for place in remote.got[before:]), "what is recorded is not repeated"
    remote.pump()
    assert remote.core.hold is None
    assert set(remote.got) == set(log.wanted)
    remote.confirm(len(remote.unconfirmed))
    assert remote.core.reached.scanned == (log.end if log.stored else EARLIEST)


def test_messages_from_pulsar_are_not_sent_on() -> None:
    log = LocalLog()
    place = log.append()
    extras = entries.pack_extras((LOCAL, REMOTE), None, (THIRD, Position(3, 4)))
    place, stored = log.stored[0]
    header = entries.unpack(stored)
    body = stored[header.body_offset :]
    log.stored[0] = place, entries.pack_own(0, 1, 0, 0, 1, 1, -1, -1, extras, body)
    assert entries.unpack(log.stored[0][1]).came_from == (THIRD, Position(3, 4))
    remote = Pulsar(log)
    remote.connect(NOWHERE)
    remote.pump()
    assert remote.got == []
    assert remote.core.reached == (place, place)


def test_receipts_that_name_the_source() -> None:
    log = LocalLog()
    first, second = log.append(), log.append()
    remote = Pulsar(log)
    core = remote.connect(NOWHERE)
    remote.pump()
    assert core.receipt_by_source(first)
    assert core.reached == (first, first)
    assert not core.receipt_by_source(Position(9, 9)), "a receipt that matches nothing ends the connection"
    assert core.receipt_by_source(second)
    assert not core.receipt_by_source(second), "no receipt is expected any more"


def test_a_message_that_is_too_large_stops_the_replicator_before_it() -> None:
    log = LocalLog()
    log.append()
    large = log.append(size=30_000)
    log.append()
    remote = Pulsar(log)
    core = remote.connect(NOWHERE, largest=1000)
    want = core.next_read()
    assert want is not None
    assert core.read(log.entries(want.after, 10, 1 << 20), log.own), "earlier messages are sent"
    want = core.next_read()
    assert want is not None
    assert core.read(log.entries(want.after, 10, 1 << 20), log.own) == []
    assert core.hold is StopReason.REFUSED
    assert str(large) in str(core.last_error)


def test_an_existing_source_position_of_a_message_is_replaced() -> None:
    message = pb.MessageMetadata(producer_name="p", sequence_id=4, publish_time=1)
    message.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value="1:0")
    message.properties.add(key="colour", value="red")
    body = metadata.build_body(message.SerializeToString(), b"payload")
    stamp = Stamp(Position(7, 3), EARLIEST, EARLIEST, 0, 1, 0, 1, 1, 0)
    (send,) = FrameDecoder().feed(b"".join(PulsarSendWriter(LOCAL).send(1, 0, stamp, body, 0)))
    assert isinstance(send, Send) and send.checksum_ok
    said = metadata.parse(send.body)
    pairs = [(one.key, one.value) for one in said.properties]
    assert pairs == [("colour", "red"), (metadata.SOURCE_POSITION_PROPERTY, "7:3")]
    assert said.replicated_from == LOCAL
    assert bytes(send.body).endswith(b"payload")


def marker_of(marker: markers.Marker, only_to: str | None = None) -> dict[str, Any]:
    """A marker in the form that ``LocalLog.append`` needs."""
    to = None if only_to is None else (only_to,)
    return {"flags": entries.MARKER, "body": markers.marker_body(marker, 1, only_to), "replicate_to": to}


REQUEST = marker_of(markers.SnapshotRequest("id", LOCAL))
UPDATE = marker_of(markers.SubscriptionUpdate("s", (markers.Place(REMOTE, Position(1, 1)),)))
ANSWER = marker_of(markers.SnapshotResponse("id", markers.Place(LOCAL, Position(7, 1))), REMOTE)
ANSWER_TO_ANOTHER = marker_of(markers.SnapshotResponse("id", markers.Place(LOCAL, Position(7, 1))), THIRD)
SNAPSHOT = marker_of(markers.Snapshot("id", Position(7, 1), ()), LOCAL)


def carrying(log: LocalLog) -> Pulsar:
    remote = Pulsar(log)
    remote.carries = True
    return remote


def test_markers_are_carried_as_pulsar_carries_its_own() -> None:
    log = LocalLog()
    first = log.append()
    remote = carrying(log)
    core = remote.connect(NOWHERE)
    request, update = log.append(**REQUEST), log.append(**UPDATE)
    log.append(**SNAPSHOT)
    log.append(**ANSWER_TO_ANOTHER)
    remote.pump()
    assert remote.got == [first, request, update]
    sends = remote.unconfirmed
    assert [send.marker for send in sends] == [False, True, True]
    said = metadata.parse(sends[1].body)
    assert (said.marker_type, said.replicated_from, said.producer_name) == (10, LOCAL, "pulsar.marker")
    assert not core.receipt_of_marker(sends[1].sequence_id), "the first is not a marker"
    assert core.receipt_by_source(first)
    assert not core.receipt_by_source(first), "earlier entries do not name a marker"
    assert core.receipt_of_marker(sends[1].sequence_id) and core.receipt_of_marker(sends[2].sequence_id)
    assert core.reached == (log.end, first)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["own", "request", "answer", "answer"]), st.integers(0, 3), st.sampled_from("-----cr")
        ),
        max_size=40,
    )
)
def test_an_answer_is_sent_at_most_once_and_after_everything_before_it(steps: list[tuple[str, int, str]]) -> None:
    """Else the remote would rely on messages it does not have, or on an answer to another request."""
    log = LocalLog()
    remote = carrying(log)
    remote.connect(NOWHERE)
    answers: set[Position] = set()
    stored: list[Position] = []
    sent = 0
    for kind, confirmed, then in steps:
        match kind:
            case "own":
                log.append()
            case "request":
                log.append(**REQUEST)
            case _:
                answers.add(log.append(**ANSWER))
        remote.pump()
        remote.confirm(confirmed)
        remote.pump()
        for place in remote.got[sent:]:
            if place in answers:
                assert stored.count(place) == 0, "it was already sent"
                reached = remote.core.reached.scanned
                assert all(own <= reached for own in log.wanted if own < place), "earlier messages are not confirmed"
            stored.append(place)
        sent = len(remote.got)
        if then == "c":
            remote.connect_again(remote.core.reached)
        elif then == "r":
            remote.began = log.end
            remote.connect(remote.core.reached)
    remote.pump()
    while remote.unconfirmed:
        remote.confirm(1)
        remote.pump()
    assert set(log.wanted) <= set(remote.got)
    assert remote.core.reached.scanned == log.end
    if all(then == "-" for *_, then in steps):
        assert answers <= set(remote.got), "as long as nothing breaks, each is sent"
