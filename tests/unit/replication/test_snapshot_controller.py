# SPDX-License-Identifier: Apache-2.0
"""Snapshots of one topic in one region, call by call: what is requested, answered, refused and rewritten (PIP-33)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.controller import PAUSE_MAX_MS, SnapshotController
from meridian_broker.replication.snapshots.ports import SnapshotRules, could_have_had
from meridian_broker.replication.snapshots.taking import FOLLOW_UP, PENDING_MAX
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)


class Host:
    """A topic in region us."""

    region = "us"

    def __init__(self, *others: str) -> None:
        self.now = 1000
        self.known = frozenset(others)
        self.unconnected: set[str] = set()
        self.lost: set[str] = set()
        self.pulsar: set[str] = set()
        self.is_exact = False
        """Meridian regions know what each other acknowledged."""
        self.linked = EARLIEST
        self.end = 0
        self.ids = 0
        self.written: list[tuple[Marker, str | None]] = []
        self.writing: list[Callable[[Position | None], None]] = []
        """Writes held back from being durable, if ``holds``."""
        self.holds = self.fails = False
        self.moved: list[tuple[str, Position, str, set[str]]] = []

    def now_ms(self) -> int:
        return self.now

    def new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def others(self) -> frozenset[str]:
        return self.known

    def given_up(self) -> frozenset[str]:
        return frozenset(self.lost)

    def without_records(self) -> frozenset[str]:
        return frozenset(self.pulsar)

    def is_moved_by(self, region: str) -> bool:
        return not self.is_exact or region in self.pulsar

    def linked_at(self, region: str) -> Position:
        return self.linked

    def is_connected(self, region: str) -> bool:
        return region not in self.unconnected

    def last_position(self) -> Position:
        return Position(1, self.end)

    def entries_before(self, position: Position) -> int:
        return position.entry

    def write(self, marker: Marker, only_to: str | None, done: Callable[[Position | None], None]) -> None:
        self.written.append((marker, only_to))
        self.end += 1
        if self.holds:
            self.writing.append(done)
        else:
            done(None if self.fails else Position(1, self.end))

    def acknowledge(self, subscription: str, position: Position, sender: str, unknown: frozenset[str]) -> None:
        self.moved.append((subscription, position, sender, set(unknown)))

    def take(self) -> list[tuple[Marker, str | None]]:
        """What was written since the last call."""
        written, self.written = self.written, []
        return written


def ticked(controller: SnapshotController, host: Host, ms: int) -> None:
    """Let time pass, and do everything that is due."""
    end = host.now + ms
    while (due := controller.deadline_ms) is not None and due <= end:
        host.now = max(host.now, due)
        controller.tick()
    host.now = end


def begun(host: Host, rules: SnapshotRules | None = None) -> tuple[SnapshotController, str]:
    """A controller with a replicated subscription, and the id of its first snapshot."""
    controller = SnapshotController(host, rules)
    controller.follow("s", EARLIEST)
    ticked(controller, host, 0)
    ((request, only_to),) = host.take()
    assert isinstance(request, SnapshotRequest) and only_to is None and request.source == "us"
    return controller, request.snapshot_id


def answer(controller: SnapshotController, host: Host, snapshot_id: str, region: str, entry: int = 7) -> None:
    host.end += 1
    controller.received(SnapshotResponse(snapshot_id, Place(region, Position(9, entry))), region, host.last_position())


def take_snapshot(controller: SnapshotController, host: Host) -> list[Marker]:
    """Take a snapshot in two rounds, answered by eu and apache. Returns what follows."""
    for _ in range(2):
        ticked(controller, host, 1000)
        asked = [one for one, _ in host.take() if isinstance(one, SnapshotRequest)]
        if asked:
            break
    for _ in range(2):
        for region in ("eu", "apache"):
            answer(controller, host, asked[-1].snapshot_id, region)
        written = [one for one, _ in host.take()]
        asked = [one for one in written if isinstance(one, SnapshotRequest)]
    return [one for one in written if not isinstance(one, Snapshot)]


def test_a_snapshot_of_two_regions_takes_one_round() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    host.now += 40
    answer(controller, host, snapshot_id, "eu")
    snapshot = Snapshot(snapshot_id, Position(1, 2), (Place("eu", Position(9, 7)),))
    assert host.take() == [(snapshot, "us")]
    assert (controller.pending, controller.counts.completed, controller.counts.last_ms) == (0, 1, 40)
    controller.moved("s", Position(1, 1))
    assert host.take() == []
    controller.moved("s", Position(1, 2))
    assert host.take() == [(SubscriptionUpdate("s", snapshot.places), None)]
    controller.moved("s", Position(1, 3))
    assert host.take() == [] and controller.updates_written == 1
    assert controller.deadline_ms is None


def test_a_snapshot_of_three_regions_has_the_positions_of_the_first_round() -> None:
    host = Host("eu", "ap")
    controller, snapshot_id = begun(host)
    answer(controller, host, snapshot_id, "eu", 10)
    answer(controller, host, snapshot_id, "eu", 11)
    assert host.take() == []
    answer(controller, host, snapshot_id, "ap", 20)
    ((request, _),) = host.take()
    assert isinstance(request, SnapshotRequest) and request.snapshot_id != snapshot_id
    answer(controller, host, snapshot_id, "ap", 21)
    answer(controller, host, request.snapshot_id, "ap", 30)
    assert host.take() == []
    answer(controller, host, request.snapshot_id, "eu", 31)
    at = Position(1, host.end - 1)
    places = (Place("ap", Position(9, 20)), Place("eu", Position(9, 10)))
    assert host.take() == [(Snapshot(snapshot_id, at, places), "us")]


def test_a_region_that_is_asked_answers_with_its_end_and_follows_up_once() -> None:
    host = Host("eu")
    controller = SnapshotController(host)
    controller.received(SnapshotRequest("theirs", "eu"), "eu", Position(1, 5))
    assert host.take() == [(SnapshotResponse("theirs", Place("us", Position(1, 0))), "eu")]
    assert controller.deadline_ms is None  # no subscription is replicated here
    controller, snapshot_id = begun(host)
    answer(controller, host, snapshot_id, "eu")
    ticked(controller, host, 5000)
    host.take()
    controller.received(SnapshotRequest("theirs", "eu"), "eu", Position(1, 5))
    ticked(controller, host, 0)
    (_, (follow_up, _)) = host.take()
    assert isinstance(follow_up, SnapshotRequest) and follow_up.snapshot_id.startswith(FOLLOW_UP)
    answer(controller, host, follow_up.snapshot_id, "eu")
    host.take()
    controller.received(SnapshotRequest(FOLLOW_UP + "theirs", "eu"), "eu", Position(1, 5))
    ticked(controller, host, 60_000)
    ((marker, _),) = host.take()
    assert isinstance(marker, SnapshotResponse)


def test_an_answer_that_cannot_be_stored_is_retried_while_it_is_waited_for() -> None:
    host = Host("eu", "ap")
    controller = SnapshotController(host)
    host.fails = True
    controller.received(SnapshotRequest("early", "eu"), "eu", Position(1, 5))
    controller.received(SnapshotRequest("theirs", "eu"), "eu", Position(1, 5))
    controller.received(SnapshotRequest("other", "ap"), "ap", Position(1, 6))
    host.take()
    ticked(controller, host, 999)
    assert host.take() == []
    host.known, host.fails = frozenset({"eu"}), False  # ap left the topic
    ticked(controller, host, 1)
    ((response, only_to),) = host.take()
    assert (response, only_to) == (SnapshotResponse("theirs", Place("us", Position(1, 3))), "eu")
    assert controller.deadline_ms is None
    host.fails = True
    controller.received(SnapshotRequest("never", "eu"), "eu", Position(1, 7))
    ticked(controller, host, 60_000)
    assert len(host.take()) == 30  # one a second until eu gives up
    assert controller.deadline_ms is None


def test_a_region_can_answer_only_for_itself() -> None:
    host = Host("eu", "ap")
    controller, snapshot_id = begun(host)
    end = Position(1, host.end)
    markers: list[tuple[Marker, str]] = [
        (SnapshotRequest("x", "ap"), "eu"),
        (SnapshotRequest("x", "us"), "eu"),
        (SnapshotRequest("x", "za"), "za"),
        (SnapshotResponse(snapshot_id, Place("ap", end)), "eu"),
        (SubscriptionUpdate("s", (Place("us", end),)), "za"),
        (Snapshot("x", end, (Place("us", end),)), "eu"),
        (SubscriptionUpdate("s", (Place("us", Position(1, host.end + 1)),)), "eu"),
    ]
    for marker, sender in markers:
        before = controller.refused
        controller.received(marker, sender, end)
        assert controller.refused == before + 1, marker
    controller.received(SnapshotResponse("unknown", Place("eu", end)), "eu", end)
    controller.received(SubscriptionUpdate("s", (Place("ap", end),)), "eu", end)
    assert not host.take() and not host.moved
    controller.received(SubscriptionUpdate("s", (Place("ap", end), Place("us", end))), "eu", end)
    controller.received(SubscriptionUpdate("s", (Place("us", end),)), "eu", end)
    assert host.moved == [("s", end, "eu", set()), ("s", end, "eu", {"ap"})]


def test_no_snapshot_without_a_replicated_subscription() -> None:
    host = Host("eu")
    controller = SnapshotController(host)
    controller.published()
    controller.consumer_left()
    controller.moved("s", Position(1, 0))
    controller.unfollow("s")
    assert controller.deadline_ms is None
    controller.follow("s", EARLIEST)
    controller.unfollow("s")
    assert controller.deadline_ms is None and host.take() == []


@pytest.mark.parametrize("others", [(), ("eu",), ("eu", "ap")])
def test_no_snapshot_without_every_region(others: tuple[str, ...]) -> None:
    host = Host(*others)
    host.unconnected = set(others[:1])
    controller = SnapshotController(host)
    controller.follow("s", EARLIEST)
    ticked(controller, host, 10_000)
    assert host.take() == [] and controller.missing == sorted(others[:1])


def test_while_no_region_answers_there_is_one_request() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    for _ in range(29):
        controller.published()
        ticked(controller, host, 1000)
    assert host.take() == [] and controller.pending == 1
    ticked(controller, host, 1000)
    assert controller.counts.timed_out == 1
    answer(controller, host, snapshot_id, "eu")
    ticked(controller, host, 2000)
    ((request, _),) = host.take()
    assert isinstance(request, SnapshotRequest) and request.snapshot_id != snapshot_id


def test_an_idle_topic_tries_less_and_less_often() -> None:
    host = Host("eu")
    controller, _ = begun(host)
    ticked(controller, host, 24 * 3_600_000)
    assert len(host.take()) <= 24 * 3_600_000 // PAUSE_MAX_MS + 10
    controller.published()
    ticked(controller, host, 31_000)
    assert 1 <= len(host.take()) <= 2


def test_snapshots_in_progress_are_bounded() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host, SnapshotRules(interval_ms=10))
    answer(controller, host, snapshot_id, "eu")
    host.take()
    for _ in range(100):
        controller.published()
        ticked(controller, host, 10)
    assert controller.pending == len(host.take()) == PENDING_MAX


def test_a_snapshot_counts_once_its_marker_is_durable() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    controller.moved("s", Position(1, 100))
    host.holds = True
    answer(controller, host, snapshot_id, "eu")
    answer(controller, host, snapshot_id, "eu", 8)
    assert len(host.take()) == 1 and controller.counts.completed == 0
    host.writing.pop()(None)
    assert controller.counts.failed == 1 and host.take() == []
    ticked(controller, host, 5000)
    ((request, _),) = host.take()
    assert isinstance(request, SnapshotRequest)
    host.writing.pop()(Position(1, 50))
    answer(controller, host, request.snapshot_id, "eu")
    ticked(controller, host, 60_000)  # it ends while the marker is being written
    host.writing.pop(0)(Position(1, 51))
    assert controller.counts.completed == 0 and controller.counts.timed_out == 1


def test_a_region_that_joins_ends_snapshots_in_progress() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    host.known = frozenset(("eu", "ap"))
    answer(controller, host, snapshot_id, "eu")
    assert host.take() == [] and controller.counts.failed == 1


def test_snapshots_from_before_a_region_joined_are_not_used() -> None:
    host = Host("eu", "ap")
    controller, _ = begun(host)
    controller.found(Snapshot("old", Position(1, 0), (Place("eu", Position(9, 1)),)))
    both = (Place("ap", Position(8, 1)), Place("eu", Position(9, 2)), Place("za", Position(7, 1)))
    controller.moved("s", Position(1, 1))
    assert host.take() == []
    controller.found(Snapshot("new", Position(1, 1), both))
    assert host.take() == [(SubscriptionUpdate("s", both), None)]


def test_partial_snapshots_are_not_used_once_the_region_is_back() -> None:
    host = Host("eu", "ap")
    host.unconnected = host.lost = {"ap"}
    controller, snapshot_id = begun(host)
    answer(controller, host, snapshot_id, "eu")
    partial = Snapshot(snapshot_id, Position(1, 2), (Place("eu", Position(9, 7)),))
    assert host.take() == [(partial, "us")] and controller.missing == []
    host.lost = set()
    controller.regions_changed()
    assert controller.missing == ["ap"]
    controller.moved("s", Position(1, 2))
    ticked(controller, host, 5000)
    assert host.take() == []
    host.unconnected = set()
    ticked(controller, host, 1000)
    assert [type(marker) for marker, _ in host.take()] == [SnapshotRequest]


def test_there_is_no_snapshot_of_one_region() -> None:
    host = Host("eu")
    host.lost = {"eu"}
    controller = SnapshotController(host)
    controller.follow("s", EARLIEST)
    ticked(controller, host, 60_000)
    assert host.take() == []


def test_an_update_that_cannot_be_stored_is_retried_unless_there_is_a_newer_one() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    answer(controller, host, snapshot_id, "eu")
    host.take()
    first, second, third = (Snapshot("x", Position(1, at), (Place("eu", Position(9, at)),)) for at in (100, 200, 300))
    for one in (first, second, third):
        controller.found(one)
    host.fails = True
    controller.moved("s", Position(1, 100))
    assert host.take() == [(SubscriptionUpdate("s", first.places), None)]
    host.fails, host.holds = False, True
    ticked(controller, host, 1000)
    assert host.take() == [(SubscriptionUpdate("s", first.places), None)]
    controller.moved("s", Position(1, 200))
    controller.moved("s", Position(1, 300))
    assert host.take() == []
    host.writing.pop()(None)
    ticked(controller, host, 1000)
    assert host.take() == [(SubscriptionUpdate("s", third.places), None)]
    host.writing.pop()(Position(1, 400))
    assert controller.deadline_ms is None and controller.updates_written == 1


def test_a_subscription_deleted_while_its_update_is_written() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    host.holds = True
    controller.moved("s", Position(1, 100))
    controller.found(Snapshot("x", Position(1, 50), (Place("eu", Position(9, 1)),)))
    controller.unfollow("s")
    host.writing.pop()(None)
    answer(controller, host, snapshot_id, "eu")
    host.writing.pop()(Position(1, 60))
    assert controller.deadline_ms is None


def test_consumers_that_come_and_go_cost_little() -> None:
    host = Host("eu")
    controller, snapshot_id = begun(host)
    answer(controller, host, snapshot_id, "eu")
    host.take()
    requests = 0
    for _ in range(1000):
        controller.published()
        controller.consumer_left()
        for marker, _ in host.take():
            if isinstance(marker, SnapshotRequest):
                requests += 1
                answer(controller, host, marker.snapshot_id, "eu")
        ticked(controller, host, 1)
    assert requests <= 11


def test_what_a_region_could_have_received() -> None:
    none, some = frozenset[str](), frozenset(("ap",))
    assert could_have_had("eu", none, "ap", None)
    assert could_have_had("eu", some, "eu", ("us",))
    assert could_have_had("eu", none, "ap", ("us", "eu"))
    assert could_have_had("eu", some, "us", None)
    assert not could_have_had("eu", none, "ap", ("us",))
    assert not could_have_had("eu", none, "us", ("us", "ap"))
    assert not could_have_had("eu", some, "ap", None)


def test_a_subscription_that_is_behind_is_announced_where_no_records_are_kept() -> None:
    """Otherwise the first consumer there would create it at the end, and skip what is owed here."""
    host = Host("eu", "apache")
    host.pulsar = {"apache"}
    controller = SnapshotController(host)
    host.fails = False
    named = SubscriptionUpdate("s", (Place("apache", EARLIEST),))
    controller.follow("s", EARLIEST)
    assert take_snapshot(controller, host) == [named]
    controller.published()
    assert take_snapshot(controller, host) == [], "once is enough"
    controller.moved("s", host.last_position())
    ((update, _),) = host.take()
    assert isinstance(update, SubscriptionUpdate) and len(update.places) == 2


BEHIND, THERE = Position(1, 10), Position(1, 11)
"""Positions here: the end when apache's link began, and one after it."""
HELD = SubscriptionUpdate("s", (Place("apache", EARLIEST), Place("eu", Position(9, 7))))
TOLD = SubscriptionUpdate("s", (Place("apache", Position(9, 7)), Place("eu", Position(9, 7))))


def joined_late(*, is_exact: bool = True) -> tuple[SnapshotController, Host]:
    """A topic to which apache began to send a moment ago, with a fully acknowledged subscription."""
    host = Host("eu", "apache")
    host.pulsar, host.is_exact, host.linked, host.end = {"apache"}, is_exact, BEHIND, 20
    controller = SnapshotController(host)
    controller.follow("s", Position(1, 1000))
    return controller, host


def test_pulsar_is_told_nothing_that_another_region_may_owe() -> None:
    controller, host = joined_late()
    assert take_snapshot(controller, host) == [HELD]
    assert controller.held_back("s") == {"apache": {"eu"}}
    update = SubscriptionUpdate("s", (Place("apache", EARLIEST), Place("us", THERE)))
    controller.received(update, "eu", host.last_position())
    assert host.take() == [(TOLD, None)], "what was held back is sent"
    assert host.moved == [], "eu reports by itself what is acknowledged"
    controller.published()
    assert take_snapshot(controller, host) == [TOLD] and controller.held_back("s") == {}
    controller.pause("s")
    controller.follow("s", Position(1, 1000))
    controller.published()
    assert take_snapshot(controller, host) == [TOLD], "once is enough"
    host.linked = host.last_position()
    controller.published()
    assert take_snapshot(controller, host) == [HELD], "apache had left, and its link started over"
    host.linked = BEHIND
    controller.unfollow("s")
    controller.follow("s", Position(1, 1000))
    assert take_snapshot(controller, host) == [HELD], "it is another subscription"


@pytest.mark.parametrize(
    ("places", "sender"),
    [
        ((Place("apache", EARLIEST), Place("us", BEHIND)), "eu"),  # us may have said so before the link started
        ((Place("us", THERE),), "eu"),  # apache was given up there
        ((Place("apache", EARLIEST), Place("us", Position(1, 1000))), "eu"),  # an entry that was lost here
        ((Place("us", BEHIND),), "apache"),
        ((Place("us", EARLIEST),), "apache"),
    ],
)
def test_a_region_without_earlier_knowledge_does_not_vouch(places: tuple[Place, ...], sender: str) -> None:
    controller, host = joined_late()
    assert take_snapshot(controller, host) == [HELD]
    controller.received(SubscriptionUpdate("s", places), sender, host.last_position())
    assert host.take() == [] and controller.held_back("s") == {"apache": {"eu"}}


def test_pulsar_vouches_for_itself() -> None:
    controller, host = joined_late()
    assert take_snapshot(controller, host) == [HELD]
    controller.received(SubscriptionUpdate("s", (Place("us", THERE),)), "apache", host.last_position())
    assert host.take() == [(TOLD, None)]


def test_an_abandoned_region_is_not_waited_for() -> None:
    controller, host = joined_late()
    assert take_snapshot(controller, host) == [HELD]
    host.lost = {"eu"}
    controller.regions_changed()
    assert host.take() == [(TOLD, None)] and controller.held_back("s") == {}


def test_in_snapshot_mode_pulsar_is_told_at_once() -> None:
    """Only it tells the Meridian regions which of its messages are acknowledged."""
    controller, host = joined_late(is_exact=False)
    assert take_snapshot(controller, host) == [TOLD]


def test_nobody_vouches_for_messages_that_their_sender_held_back() -> None:
    controller, host = joined_late(is_exact=False)
    controller.received(HELD._replace(places=(*HELD.places, Place("us", THERE))), "eu", host.last_position())
    assert host.moved == [("s", THERE, "eu", {"apache"})]
