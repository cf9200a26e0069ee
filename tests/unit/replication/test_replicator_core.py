# SPDX-License-Identifier: Apache-2.0
"""What the replicator's core decides, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers import entry as entries
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.skipped import KEPT, Skipped, extended, kept_before, stretches
from meridian_broker.replication.entries.replicator import RemotePlace, Replicator
from meridian_broker.replication.entries.replicator_status import State, StopReason
from meridian_broker.replication.entries.sending import SendWriter, Stamp, schema_version_of
from meridian_broker.wire.pulsar import metadata, origin_fields
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send
from support.worlds.replicator_model import LOCAL, REMOTE, THIRD, LocalLog, RemoteTopic, Wire, body_of

OLD, NEW = (3).to_bytes(8, "big"), (8).to_bytes(8, "big")


def wire(queue_size: int = 100, queue_bytes: int = 1 << 20) -> Wire:
    core = Replicator("topic", LOCAL, REMOTE, "", queue_size=queue_size, queue_bytes=queue_bytes)
    return Wire(core, LocalLog(), RemoteTopic())


def hold(one: Wire) -> StopReason | None:
    return one.core.hold


def serve(one: Wire) -> None:
    while one.pump():
        one.deliver(1000)
        one.confirm(1000)


positions = st.builds(Position, st.integers(0, (1 << 53) - 1), st.integers(0, (1 << 40) - 1))
numbers = st.integers(0, (1 << 32) - 1)


@settings(max_examples=500, deadline=None)
@given(
    position=positions,
    prev=st.one_of(positions, st.just(EARLIEST)),
    sent_prev=st.one_of(positions, st.just(EARLIEST)),
    key_hash=numbers,
    times=st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)),
    messages=st.integers(1, 1 << 20),
    flags=st.sampled_from([0, entries.BATCH, entries.CHUNK]),
    payload=st.binary(max_size=300),
    schema_version=st.sampled_from([None, NEW]),
    front=st.binary(max_size=20),
)
def test_a_hand_written_send_equals_the_wire_rooms(
    position: Position,
    prev: Position,
    sent_prev: Position,
    key_hash: int,
    times: tuple[int, int],
    messages: int,
    flags: int,
    payload: bytes,
    schema_version: bytes | None,
    front: bytes,
) -> None:
    body = metadata.build_body(body_of(4)[10:25], payload)
    checksum = origin_fields.origin_checksum(body, 0)
    stamp = Stamp(position, prev, sent_prev, checksum, messages, key_hash, times[0], times[1], flags)
    buffers = SendWriter(LOCAL).send(3, 17, stamp, front + body, len(front), schema_version)
    (send,) = FrameDecoder().feed(b"".join(buffers))
    expected, appended = origin_fields.append_replication(body, LOCAL, *position, schema_version)
    assert isinstance(send, Send)
    assert send.checksum_ok
    assert send.body == expected
    assert (send.producer_id, send.sequence_id, send.num_messages) == (3, 17, messages)
    assert send.is_chunk == bool(flags & entries.CHUNK)
    origin = send.origin
    assert origin.region == LOCAL
    assert (origin.ledger, origin.entry) == position
    assert (origin.prev_ledger, origin.prev_entry) == prev
    assert (origin.sent_prev_ledger, origin.sent_prev_entry) == sent_prev
    assert (origin.checksum, origin.appended_metadata_bytes) == (checksum, appended)
    assert (origin.messages, origin.key_hash, origin.flags) == (messages, key_hash, flags)
    assert (origin.publish_time_ms, origin.stored_time_ms) == times


def test_the_window_bounds_entries_and_bytes() -> None:
    one = wire(queue_size=3)
    for _ in range(8):
        one.log.append()
    one.connect()
    assert one.pump()
    assert len(one.sends) == 3
    assert one.core.next_read() is None
    one.deliver(3)
    one.confirm(2)
    assert one.pump()
    assert [send.origin.entry for send in one.sends] == [3, 4]

    one = wire(queue_bytes=100)
    one.log.append(size=500)
    one.log.append(size=500)
    one.connect()
    one.pump()
    assert len(one.sends) == 1, "one entry is always sent, however large"
    assert one.core.next_read() is None


def test_it_continues_after_the_remotes_last_entry() -> None:
    one = wire()
    for _ in range(5):
        one.log.append()
    one.remote.stored = one.log.wanted[:3]
    one.connect()
    assert one.core.confirmed == one.log.wanted[2]
    serve(one)
    assert one.remote.stored == one.log.wanted
    assert one.core.status(0, one.now).messages_out == 4  # two entries of two messages


def test_a_log_of_other_regions_entries_is_not_read_again() -> None:
    one = wire()
    for _ in range(50):
        one.log.append(entries.FOREIGN)
    one.connect()
    assert one.core.confirmed == one.log.end
    assert not one.pump()


def test_skipped_entries_are_not_read_again_after_a_reconnect() -> None:
    one = wire()
    one.log.append()
    for _ in range(5):
        one.log.append(entries.FOREIGN)
    one.connect()
    serve(one)
    one.log.append()
    one.disconnect()
    one.connect()
    want = one.core.next_read()
    assert want is not None
    assert want.after == Position(7, 5)


def test_a_remote_ahead_of_the_whole_log_means_we_were_rolled_back() -> None:
    one = wire()
    one.log.append()
    one.remote.stored = [Position(7, 9)]
    assert not one.connect()
    assert hold(one) is StopReason.ROLLED_BACK
    assert "7:9" in str(one.core.last_error)


def test_the_chain_shows_a_rollback_even_if_new_entries_have_higher_positions() -> None:
    one = wire()
    one.log.append()
    one.remote.stored = [Position(7, 9)]
    one.log.roll()
    one.log.append()  # 9:0, after 7:0; the remote has 7:9
    assert one.connect()
    one.pump()
    assert hold(one) is StopReason.ROLLED_BACK
    assert not one.sends
    assert one.core.state is State.DISCONNECTING


def test_entries_lost_in_a_rollback_are_fetched_back_before_we_go_on() -> None:
    asked: list[tuple[str, Position, Position]] = []

    def came_back(remote: str, after: Position, before: Position) -> bool:
        asked.append((remote, after, before))
        return len(asked) > 1

    one = Wire(Replicator("topic", LOCAL, REMOTE, "", came_back=came_back), LocalLog(), RemoteTopic())
    one.log.append()
    one.remote.stored = [Position(7, 9)]
    one.log.roll()
    one.log.append()
    one.connect()
    one.pump()
    assert hold(one) is StopReason.ROLLED_BACK
    one.disconnect()
    one.connect()
    serve(one)
    assert asked == [(REMOTE, Position(7, 0), Position(9, 0))] * 2
    assert hold(one) is None
    assert one.remote.stored == [Position(7, 9), Position(9, 0)]


def test_a_gap_is_shown_even_if_nothing_is_stored_any_more() -> None:
    one = wire()
    for _ in range(4):
        one.log.append()
    one.remote.stored = one.log.wanted[:2]
    one.log.trim(one.log.end)
    one.connect()
    one.pump()
    assert hold(one) is StopReason.GAP
    one.disconnect()
    assert one.core.status(0, one.now).hold is StopReason.GAP

    one.remote.stored = list(one.log.wanted)  # another region delivered the rest (R6)
    one.connect()
    one.pump()
    assert hold(one) is None


def test_another_incarnation_waits() -> None:
    one = wire()
    one.core.starting("170-us-west")
    assert not one.core.connected(1, RemotePlace(EARLIEST, ""), EARLIEST, EARLIEST, 5)
    assert hold(one) is StopReason.INCARNATION
    assert one.core.next_read() is None
    one.core.disconnected(None, 6)
    one.core.starting("170-us-west")
    assert one.core.connected(1, RemotePlace(EARLIEST, "170-us-west"), EARLIEST, EARLIEST, 7)


def test_a_refused_entry_is_resent_from_the_remotes_position_and_shown_if_refused_twice() -> None:
    one = wire()
    one.log.append()
    one.connect()
    one.pump()
    one.core.send_error(0, "gap: out of order")
    assert one.core.state is State.DISCONNECTING
    assert hold(one) is None
    one.disconnect()
    one.connect()
    one.pump()
    one.core.send_error(0, "gap: out of order")
    one.disconnect()
    assert hold(one) is StopReason.REFUSED
    one.finish()
    assert hold(one) is None
    assert one.remote.stored == one.log.wanted


def test_a_receipt_out_of_order_is_rejected() -> None:
    one = wire()
    one.log.append()
    one.log.append()
    one.connect()
    one.pump()
    assert not one.core.receipt(1)
    assert one.core.confirmed == EARLIEST
    assert "confirmed send 1, expected 0" in str(one.core.last_error)


def test_schema_versions_are_rewritten_if_the_remote_numbers_them_differently() -> None:
    one = wire()
    one.log.append()
    one.log.append(schema_version=OLD)
    one.log.append(schema_version=OLD)
    one.connect()
    one.pump()
    assert len(one.sends) == 1
    assert one.core.wanted_schema == OLD
    assert one.core.next_read() is None
    one.core.schema_known(OLD, NEW)
    one.pump()
    assert [metadata.scan(send.body).schema_version for send in one.sends] == [None, NEW, NEW]
    one.deliver(3)
    one.confirm(3)
    assert one.remote.stored == one.log.wanted


def test_a_schema_the_remote_refuses_stops_everything_after_it() -> None:
    one = wire()
    one.log.append(schema_version=OLD)
    one.log.append()
    one.connect()
    one.pump()
    one.core.schema_refused(OLD, "incompatible")
    assert hold(one) is StopReason.SCHEMA
    assert not one.sends
    assert not one.pump()


def test_bytes_that_only_look_like_a_schema_version_are_ignored() -> None:
    body = metadata.build_body(body_of(1)[10:25], b"payload with \x82\x01\x08 in it")
    assert schema_version_of(b"hdr" + body, 3) is None
    body = body_of(1, schema_version=OLD)
    assert schema_version_of(b"hdr" + body, 3) == OLD


def test_the_status_says_how_long_the_oldest_entry_has_waited() -> None:
    one = wire()
    one.log.append()
    assert one.core.status(0, 1000).delay_ms == 0
    one.core.new_entries(1000)
    assert one.core.status(1, 1500).delay_ms == 500
    one.connect()
    one.pump()
    status = one.core.status(1, 2012)
    assert (status.delay_ms, status.pending, status.connected) == (2000, 1, True)  # stored at 12
    one.disconnect()
    assert one.core.status(1, 3012).delay_ms == 3000
    one.finish()
    assert one.core.status(0, 4000).delay_ms == 0


def test_joining_with_older_entries_gone_is_shown() -> None:
    one = wire()
    for _ in range(4):
        one.log.append()
    one.log.trim(Position(7, 1))
    one.connect()
    serve(one)
    assert one.remote.stored == one.log.wanted[2:]
    assert one.core.status(0, 0).joined_at == Position(7, 2)


def test_termination_ends_replication() -> None:
    one = wire()
    one.log.append()
    one.core.terminated()
    one.core.starting("")
    assert not one.connect()
    assert one.core.state is State.TERMINATED
    assert one.core.next_read() is None


@pytest.mark.parametrize("flags", [entries.MARKER, entries.FOREIGN, entries.NO_ORIGIN])
def test_entries_that_are_not_ours_are_skipped(flags: int) -> None:
    one = wire()
    one.log.append(flags)
    one.log.append()
    one.connect()
    serve(one)
    assert one.remote.stored == [Position(7, 1)]


def skip(one: Wire, count: int, *, after: Position = EARLIEST) -> Skipped:
    """Skip everything up to the ``count``-th entry of the log."""
    own = one.log.stored[count - 1][0]
    skipped = extended(None, one.core.remote_last or after, own, own)
    one.core.skip(skipped)
    return skipped


def cut_off() -> tuple[Wire, list[Position], list[Position]]:
    """The link broke after the remote got three entries, and four were stored since."""
    one = wire()
    first = [one.log.append() for _ in range(3)]
    one.connect()
    serve(one)
    one.disconnect()
    return one, first, [one.log.append() for _ in range(4)]


def test_skipped_entries_are_not_sent_and_the_chain_continues_after_them() -> None:
    one, first, away = cut_off()
    skip(one, 7)
    assert one.core.confirmed == one.core.trimmable == away[-1]
    assert one.core.status(0, one.now).delay_ms == 0
    one.log.trim(one.core.trimmable)
    after = [one.log.append() for _ in range(2)]
    one.connect()
    assert one.pump()
    sent = one.sends[0].origin
    assert (sent.prev_ledger, sent.prev_entry) == away[-1], "nothing is claimed about skipped entries (R3)"
    assert (sent.sent_prev_ledger, sent.sent_prev_entry) == first[-1], "the remote refuses anything else (R4)"
    one.deliver(2)
    one.confirm(2)
    assert one.remote.stored == [*first, *after]
    assert hold(one) is None


def test_skipped_entries_stay_skipped_after_a_restart_of_the_sender() -> None:
    one, first, away = cut_off()
    skipped = skip(one, 7)
    one.log.append(replicate_to=(THIRD,))
    one.core = wire().core
    one.core.skip(skipped)
    assert one.core.confirmed == one.core.trimmable == away[-1], "nothing waits for the remote's return"
    one.log.trim(one.core.trimmable)
    last = one.log.append()
    one.connect()
    serve(one)
    assert one.remote.stored == [*first, last]


def test_a_part_of_the_backlog_is_skipped() -> None:
    one = wire()
    stored = [one.log.append() for _ in range(6)]
    skip(one, 2)
    one.connect()
    serve(one)
    assert one.remote.stored == stored[2:]
    assert one.core.joined_at == stored[2]


def test_a_skip_with_entries_in_flight_continues_after_them() -> None:
    one = wire()
    stored = [one.log.append() for _ in range(6)]
    one.connect()
    one.pump()
    one.deliver(2)
    one.confirm(2)
    one.deliver(1)  # stored there, but its receipt has not arrived
    skip(one, 5)
    assert one.core.state is State.DISCONNECTING
    assert one.core.next_read() is None
    one.confirm(1)
    assert one.core.confirmed == stored[4], "a late receipt does not bring the backlog back"
    one.finish()
    assert one.remote.stored == [*stored[:3], stored[5]]


def test_an_empty_remote_begins_after_what_was_skipped_in_two_steps() -> None:
    one = wire()
    one.log.append()
    skip(one, 1)
    one.connect()
    one.log.append(replicate_to=(THIRD,))
    serve(one)
    one.disconnect()
    stored = [one.log.append() for _ in range(2)]
    skip(one, 3)
    one.finish()
    assert hold(one) is None
    assert one.remote.stored == stored[1:]


def test_a_skip_passes_a_gap() -> None:
    one = wire()
    stored = [one.log.append() for _ in range(4)]
    one.connect()
    serve(one)
    one.remote.stored = one.remote.stored[:2]
    one.disconnect()
    stored += [one.log.append() for _ in range(2)]
    one.log.trim(stored[4])
    one.connect()
    one.pump()
    assert hold(one) is StopReason.GAP
    one.disconnect()
    one.core.skip(Skipped(stored[1], stored[5], stored[5]))
    assert one.core.missing is None
    stored.append(one.log.append())
    one.finish()
    assert one.remote.stored == [*stored[:2], stored[6]]
    assert hold(one) is None


def test_a_remote_that_lost_its_entries_is_sent_what_is_still_stored() -> None:
    one = wire()
    for _ in range(3):
        one.log.append()
    one.connect()
    serve(one)
    one.disconnect()
    one.log.append()
    skip(one, 4)
    one.remote.stored.clear()
    one.log.append()
    one.finish()
    assert one.remote.stored == one.log.wanted


def test_skips_add_up_until_the_remote_is_past_them() -> None:
    one, two, three, four = (Position(7, number) for number in range(4))
    skipped = extended(None, None, one, one)
    assert skipped == Skipped(EARLIEST, one, one)
    assert extended(skipped, None, two, two) == Skipped(EARLIEST, two, two)
    assert extended(skipped, EARLIEST, two, two) == Skipped(EARLIEST, two, two)
    assert extended(skipped, one, three, two) == Skipped(one, three, two)
    assert extended(Skipped(one, four, four), three, two, two) == Skipped(one, four, four), "an earlier request, late"


def test_a_skipped_range_stays_recorded_once_the_region_went_on_after_it() -> None:
    """A range that grew stays one range; it tells what the region lacks."""
    places = [Position(1, entry) for entry in range(10)]
    first = extended(None, places[0], places[2], places[2])
    grown = extended(first, places[0], places[4], places[4])
    assert kept_before((), None, first) == kept_before((), first, grown) == ()
    later = extended(grown, places[6], places[8], places[8])
    before = kept_before((), grown, later)
    assert stretches({"eu": later}, {"eu": before}) == [("eu", places[0], places[4]), ("eu", places[6], places[8])]
    many = [(Position(1, one), Position(1, one + 1)) for one in range(1000)]
    assert kept_before(many, grown, later) == [*many[1 - KEPT :], (grown.after, grown.own)]


def test_entries_read_before_are_not_taken_for_new_ones() -> None:
    one = wire()
    one.log.append()
    one.connect()
    serve(one)
    with pytest.raises(AssertionError, match="no entry is sent twice"):
        one.core.read(one.log.entries(EARLIEST, 10, 1000), one.log.own)


def wire_with_markers() -> Wire:
    log = LocalLog()
    marks = lambda: max((at for at, stored in log.stored if stored[1] & entries.MARKER), default=EARLIEST)  # noqa: E731
    return Wire(Replicator("topic", LOCAL, REMOTE, "", last_marker=marks), log, RemoteTopic())


def test_markers_are_sent_in_place_and_are_not_links_of_the_chain() -> None:
    one = wire_with_markers()
    first = one.log.append()
    marks = [one.log.append(entries.MARKER), one.log.append(entries.MARKER, replicate_to=(REMOTE,))]
    one.log.append(entries.MARKER, replicate_to=(THIRD,))
    second = one.log.append()
    last = one.log.append(entries.MARKER)
    one.connect()
    serve(one)
    assert one.remote.stored == [first, second]
    assert one.remote.markers == [*((at, first) for at in marks), (last, second)]
    assert one.core.confirmed == one.core.trimmable == last
    assert one.remote.refused == []


def test_an_unconfirmed_marker_is_sent_again_when_the_remote_returns() -> None:
    one = wire_with_markers()
    one.log.append()
    one.connect()
    serve(one)
    mark = one.log.append(entries.MARKER)
    one.pump()
    one.disconnect()
    assert one.remote.markers == []
    one.connect()
    serve(one)
    assert [at for at, _ in one.remote.markers] == [mark]


def test_after_a_restart_of_the_sender_earlier_markers_are_not_sent() -> None:
    one = wire_with_markers()
    one.log.append()
    one.connect()
    serve(one)
    one.log.append(entries.MARKER)
    again = Wire(Replicator("topic", LOCAL, REMOTE, "", last_marker=lambda: EARLIEST), one.log, one.remote)
    again.connect()
    serve(again)
    assert one.remote.markers == []


def test_a_marker_proves_nothing_about_entries_withheld_before_it() -> None:
    """Those entries have to stay: after a restart only they show that no entry is missing."""
    one = wire_with_markers()
    first = one.log.append()
    one.log.append(replicate_to=(THIRD,))
    one.log.append(entries.MARKER)
    one.connect()
    serve(one)
    assert one.core.trimmable == first
