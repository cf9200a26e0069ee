# SPDX-License-Identifier: Apache-2.0
"""The broker's side of the export without files: partitions, topic patterns, and acks as ranges."""

from __future__ import annotations

import itertools
import time
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.admin.export.child import SCHEMAS, record_batch
from meridian_broker.admin.export.plan import BYTES_PER_PARTITION, ENTRIES_PER_PARTITION, Planner, topic_filter
from meridian_broker.admin.export.rows import effective, epoch_text, rows_of
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.dropped import Cause, Dropped
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.progress import Progress
from meridian_verifier.report.words import when
from pyroaring import BitMap

ORIGIN = "us-east"
ENTRIES = 24


def line(topic: str, ledgers: list[tuple[int, int]]) -> dict[str, Any]:
    listed = [{"id": one, "entries": count, "size": 0, "sealed": True} for one, count in ledgers]
    return {"topic": topic, "region": ORIGIN, "ledgers": listed}


def test_what_an_administrator_gave_up_is_dropped_for_all() -> None:
    record = {"region": "eu", "topic": "t", "subscriptions": [], "given_up": [["us", "5:3", "7:1"]]}
    (row,) = rows_of("dropped")(record)
    assert row[:10] == ("eu", "t", "", "", "us", 5, 3, 7, 1, "lost")


def test_what_was_skipped_for_a_region_is_a_range_of_the_origins_entries() -> None:
    fields = {"ledgers": [], "subscriptions": [], "last_own": "-1:-1", "last_origin": {}, "trimmed_to": "-1:-1"}
    record = {"region": "us", "topic": "t", **fields, "skipped": [["eu", "-1:-1", "7:1"]]}
    (row,) = rows_of("topics")(record)
    bounds = {"after_ledger": -1, "after_entry": -1, "upto_ledger": 7, "upto_entry": 1}
    assert row[-3] == [{"remote": "eu", **bounds}]


def test_a_shadow_has_no_own_entries() -> None:
    planner = Planner()
    planner.add(line("orders", [(1, 5)]), 100)
    planner.add({**line("view", [(1, 5)]), "shadow_of": "orders"}, 100)
    assert [(one.topic, one.count) for part in planner.entries for one in part] == [("orders", 5)]
    fields = {"ledgers": [], "subscriptions": [], "last_own": "-1:-1", "last_origin": {}, "trimmed_to": "-1:-1"}
    (row,) = rows_of("topics")({"region": "us", "topic": "view", **fields, "shadow_of": "orders"})
    assert row[-2:] == ("orders", [])


def test_origins_without_a_chain_are_named() -> None:
    fields = {"ledgers": [], "subscriptions": [], "last_own": "-1:-1", "last_origin": {}, "trimmed_to": "-1:-1"}
    (row,) = rows_of("topics")({"region": "us", "topic": "orders", **fields, "unchained": ["apache"]})
    assert row[-1] == ["apache"]


def test_a_partition_of_entries_may_begin_inside_a_ledger() -> None:
    planner = Planner()
    planner.add(line("a", [(1, ENTRIES_PER_PARTITION - 10), (2, 30)]), 100)
    planner.add(line("b", [(3, ENTRIES_PER_PARTITION)]), 100)
    cut = [[(one.topic, one.ledger, one.first, one.last) for one in part] for part in planner.entries]
    assert cut == [
        [("a", 1, 0, ENTRIES_PER_PARTITION - 11), ("a", 2, 0, 9)],
        [("a", 2, 10, 29), ("b", 3, 0, ENTRIES_PER_PARTITION - 21)],
        [("b", 3, ENTRIES_PER_PARTITION - 20, ENTRIES_PER_PARTITION - 1)],
    ]
    assert planner.partitions()["entries"] == 3


def test_lines_are_grouped_by_bytes_and_never_split() -> None:
    planner = Planner()
    for size in (10, BYTES_PER_PARTITION - 10, 1, 2 * BYTES_PER_PARTITION, 5):
        planner.add(line("t", []), size)
    planner.add({"metadata": []}, 7)
    assert [planner.lines(at) for at in range(planner.partitions()["progress"])] == [
        range(2),
        range(2, 3),
        range(3, 4),
        range(4, 5),
    ]


def test_an_empty_snapshot_has_one_empty_partition_of_everything() -> None:
    planner = Planner()
    assert set(planner.partitions().values()) == {1}
    assert planner.lines(0) == range(0)
    assert planner.entries == [[]]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (None, True),
        ("", True),
        ("persistent://public/default/flights*", True),
        ("*/flights-?", True),
        ("flights-1", False),
        ("re:persistent://public/.*/flights-[0-9]", True),
        ("re:flights", False),
        ("*/flights-[0-9]", True),
        ("*/flights-[!0-9]", False),
        ("*/flights-[!^]", True),
        ("*/flights-[^1]", True),
        ("*/flights-[]1]", True),
        ("*/flights-[1", False),
        ("*/fligh[ts]s-1", True),
        ("*/flights.1", False),
        (r"*/flights[\-]1", True),
    ],
)
def test_topic_patterns(pattern: str | None, matches: bool) -> None:
    assert topic_filter(pattern)("persistent://public/default/flights-1") is matches


def test_an_invalid_expression_is_reported() -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression"):
        topic_filter("re:(")
    with pytest.raises(ValueError, match=r"is not a regular expression"):
        topic_filter("flights-[9-0]")
    with pytest.raises(ValueError, match=r"the limit is 1000"):
        topic_filter("*a" * 501)


@pytest.mark.parametrize("pattern", ["re:(a|a)+$", "re:(a+)+b", "*a" * 250 + "b"])
def test_no_export_pattern_takes_long(pattern: str) -> None:
    made = topic_filter(pattern)
    began = time.process_time()
    assert not made("a" * 2000 + "!")
    assert time.process_time() - began < 1


places = st.integers(0, ENTRIES - 1).map(lambda number: Position(number // 8, number % 8))


def prev(position: Position) -> Position:
    number = position.ledger * 8 + position.entry - 1
    return Position(number // 8, number % 8) if number >= 0 else EARLIEST


rewinds = st.tuples(places, places, st.sets(places, max_size=4)).filter(lambda one: prev(one[0]) < one[1])
steps = st.lists(st.one_of(places, rewinds), max_size=25)


@given(steps)
@settings(max_examples=500, deadline=None)
def test_ranges_agree_with_progress(history: list[Any]) -> None:
    progress = Progress()
    rewound = 0
    for step in history:
        if isinstance(step, Position):
            progress.ack(progress.epoch, ORIGIN, prev(step), step)
        elif rewound < 4:
            rewound += 1
            first, last, base = step
            kept = AckSet()
            for place in base:
                kept.claim(prev(place), place)
            progress.rewind(Stamp(rewound, 0, "us-west"), {ORIGIN: (prev(first), last)}, {ORIGIN: kept})
    ranges, batches = effective(progress, ORIGIN)
    assert batches == {}
    assert all(after < upto for after, upto in ranges)
    assert all(one[1] < two[0] or rewound for one, two in itertools.pairwise(ranges))
    for number in range(ENTRIES):
        place = Position(number // 8, number % 8)
        shown = any(after < place <= upto for after, upto in ranges)
        assert shown == progress.is_acked(ORIGIN, place), place


def test_a_batch_is_read_from_the_layer_that_rules_it() -> None:
    progress = Progress()
    place = Position(1, 5)
    progress.ack_batch(ZERO, ORIGIN, place, 5, 0b00111, Position(1, 4))
    assert effective(progress, ORIGIN) == ([], {place: (5, 0b00111)})
    epoch = Stamp(1, 0, ORIGIN)
    progress.rewind(epoch, {ORIGIN: (Position(1, 0), Position(1, 9))})
    progress.ack_batch(epoch, ORIGIN, place, 5, 0b10000, Position(1, 4))
    assert effective(progress, ORIGIN) == ([], {place: (5, 0b10000)})


kept_in_view = st.dictionaries(st.integers(1, 3), st.sets(st.integers(0, ENTRIES - 1)))


@given(kept_in_view, kept_in_view, st.integers(1, 4), st.integers(-1, ENTRIES - 1))
@settings(max_examples=500, deadline=None)
def test_entries_removed_by_compaction_become_ranges(
    kept: dict[int, set[int]], thinned: dict[int, set[int]], ledger: int, entry: int
) -> None:
    def encoded(some: dict[int, set[int]]) -> dict[str, str]:
        return {str(one): b64encode(BitMap(entries).serialize()).decode() for one, entries in some.items()}

    record = {
        **line("t", [(1, ENTRIES), (2, ENTRIES), (4, ENTRIES)]),
        "subscriptions": [
            {"name": "s", "mark_delete": "-1:-1", "thinned": encoded(thinned)},
            {"name": "reads the log", "mark_delete": "-1:-1"},
        ],
        "view": {"horizon": f"{ledger}:{entry}", "kept": encoded(kept)},
    }
    ranges = [row[3:] for row in rows_of("compacted")(record)]
    assert {row[:3] for row in rows_of("compacted")(record)} <= {(ORIGIN, "t", "s")}
    assert all(one[2:] < two[:2] for one, two in itertools.pairwise(ranges)), "disjoint, and joined where they touch"
    shown = {(first, at) for first, after, _, upto in ranges for at in range(after + 1, upto + 1)}
    covered = {(one, at) for one in (1, 2, 4) for at in range(ENTRIES) if (one, at) <= (ledger, entry)}
    expected = {(one, at) for one, at in covered if at not in kept.get(one, ())}
    expected |= {(one, at) for one, entries in thinned.items() for at in entries if one in (1, 2) and one <= ledger}
    assert shown == expected
    assert [row[0] for row in rows_of("ranges")(record)] == ["compacted"] * len(ranges)
    del record["view"]["kept"]
    assert list(rows_of("compacted")(record)) == []


def test_epochs_sort_as_text() -> None:
    stamps = [ZERO, Stamp(9, 0, "b"), Stamp(10, 2, "a"), Stamp(10, 11, "a"), Stamp(1_790_000_000_000, 0, "a")]
    assert [epoch_text(one) for one in stamps] == sorted(epoch_text(one) for one in stamps)


def test_a_topics_line_becomes_rows_of_every_table() -> None:
    progress, dropped = Progress(), Dropped()
    progress.ack(ZERO, ORIGIN, EARLIEST, Position(1, 3))
    progress.ack_batch(ZERO, ORIGIN, Position(1, 5), 9, 0b100000001, Position(1, 4))
    dropped.add(Cause.TTL, ORIGIN, Position(1, 3), Position(1, 4))
    encoded = b64encode(progress.encode()).decode()
    head = ("us-west", "t", "s")
    record = {
        **line("t", [(7, 20)]),
        "region": "us-west",
        "last_own": "-1:-1",
        "last_origin": {ORIGIN: "1:9"},
        "trimmed_to": "-1:-1",
        "trimmed_origins": {ORIGIN: "1:2"},
        "holes": [[ORIGIN, "1:5", "1:9"]],
        "subscriptions": [
            {
                "name": "s",
                "replicated": True,
                "durable": True,
                "type": "Shared",
                "mark_delete": "7:4",
                "read_position": "7:11",
                "individually_deleted": [["7:5", "7:8"]],
                "progress": encoded,
                "dropped": b64encode(dropped.encode()).decode(),
            }
        ],
        "ack_log": [{"subscription": "s", "received_ms": 12, "progress": encoded, "firsthand": False, "cause": "ack"}],
    }
    whole = (*head, "", ORIGIN, -1, -1, 1, 3)
    batch = (*head, "", ORIGIN, 1, 4, 1, 5)
    assert list(rows_of("progress")(record)) == [
        (*whole, None, None, None, None, None),
        (*batch, None, 9, b"\x01\x01", None, None),
    ]
    assert list(rows_of("acks")(record)) == [
        (*whole, "ack", None, None, 12, False),
        (*batch, "ack", 9, b"\x01\x01", 12, False),
    ]
    assert list(rows_of("dropped")(record)) == [(*head, "", ORIGIN, 1, 3, 1, 4, "ttl", None, None, None, None)]
    assert list(rows_of("passed")(record)) == [(*head, -1, -1, 7, 4), (*head, 7, 5, 7, 8)]
    assert list(rows_of("cursors")(record)) == [
        ("us-west", "t", "s", True, True, "Shared", 7, 4, 7, 11, None, ""),
    ]
    (topic,) = rows_of("topics")(record)
    assert topic[4] == [
        {"region": ORIGIN, "ledger": 1, "entry": 9},
        {"region": "us-west", "ledger": -1, "entry": -1},
    ]
    assert topic[10] == [{"region": ORIGIN, "ledger": 1, "entry": 2}]
    hole = {"after_ledger": 1, "after_entry": 5, "before_ledger": 1, "before_entry": 9}
    assert topic[11] == [{"region": ORIGIN, **hole}]
    assert topic[12:] == (-1, -1, [], [], "", [])
    shared = ["progress", "progress", "dropped", "passed", "passed"]
    assert [row[0] for row in rows_of("ranges")(record)] == shared
    record["ack_log"][0]["firsthand"] = True
    assert [row[0] for row in rows_of("ranges")(record)] == [*shared[:2], "acks", "acks", *shared[2:]]
    record["subscriptions"][0]["firsthand"] = encoded
    acks = [row for row in rows_of("ranges")(record) if row[0] == "acks"]
    assert [row[13] for row in acks] == [None, None]
    assert {len(row) for row in rows_of("ranges")(record)} == {15}


def test_a_row_with_numbers_out_of_range_does_not_end_its_partition(capsys: pytest.CaptureFixture[str]) -> None:
    """It is sent with the nearest numbers that fit, and the log says so; the other rows are unchanged."""
    names = SCHEMAS["entries"].names
    sound: dict[str, Any] = dict.fromkeys(names, 1) | dict.fromkeys(("region", "topic", "origin_region"), "x")
    sound |= {"marker": False, "replicate_to": ["x"]}
    wild = sound | {"publish_ms": (1 << 64) - 1, "prev_entry": -(1 << 70)}
    rows = [tuple(row[name] for name in names) for row in (sound, wild, sound)]
    got = record_batch(SCHEMAS["entries"], rows).to_pylist()
    assert got == [sound, sound | {"publish_ms": (1 << 63) - 1, "prev_entry": -(1 << 63)}, sound]
    assert "nearest" in capsys.readouterr().err


def test_a_moment_outside_of_dates_is_shown_as_a_number() -> None:
    assert when(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert when(253_402_300_799_999) == "9999-12-31 23:59:59 UTC"
    for moment in (253_402_300_800_000, (1 << 63) - 1, -1, -(1 << 63)):
        assert when(moment) == f"{moment} ms since 1970"
