# SPDX-License-Identifier: Apache-2.0
"""What a shadow replicator tells, against a broker that reads what it is told when it likes."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.shadow_replicator import WINDOW, Notice, ShadowReplicator, producer_name

SHADOW = "persistent://public/default/view"


def place(number: int) -> Position:
    """The position of the entry with this number: ledgers have ten."""
    return Position(number // 10, number % 10)


def connected() -> ShadowReplicator:
    made = ShadowReplicator("persistent://public/default/source", "b")
    made.connected(SHADOW, EARLIEST, 0)
    return made


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 40)),
        st.tuples(st.just("lose"), st.just(0)),
        st.tuples(st.just("limit"), st.integers(0, 30)),
    ),
    max_size=120,
)


@settings(max_examples=500)
@given(steps)
def test_what_it_says_is_confirmed_and_what_it_counts_as_read_was_read(taken: list[tuple[str, int]]) -> None:
    core = connected()
    end = -1
    read = -1
    on_the_way = deque[Notice]()
    resets = 0
    for what, count in [*taken, ("send", 0), ("read", 1000), ("send", 0), ("read", 1000)]:
        if what == "append":
            end += count
        elif what == "send" and end >= 0:
            notice = core.next(place(end), now_ms=0)
            if notice is not None:
                assert notice.confirmed == place(end), "an id stands for everything before it"
                assert not on_the_way or notice.confirmed > on_the_way[-1].confirmed
                on_the_way.append(notice)
            assert core.next(place(end), now_ms=0) is None, "nothing is said twice"
            assert len(on_the_way) <= WINDOW
        elif what == "read":
            for _ in range(min(count, len(on_the_way))):
                notice = on_the_way.popleft()
                read = max(read, notice.confirmed.ledger * 10 + notice.confirmed.entry)
                assert core.receipt(notice.sequence_id)
        elif what == "lose":
            core.disconnected("the connection was lost")
            assert core.next(place(end + 1), now_ms=0) is None
            on_the_way.clear()
            core.connected(SHADOW, place(end) if end >= 0 else EARLIEST, 0)
        elif what == "limit" and core.confirmed is not None:
            backlog = end - (core.confirmed.ledger * 10 + core.confirmed.entry)
            if core.keep_within(count, backlog, place(end)):
                assert 0 < count < backlog
                resets += 1
                read = end
            else:
                assert not 0 < count < backlog
        assert core.confirmed == (None if read < 0 else place(read))
    assert core.resets == resets
    assert core.confirmed == (place(end) if end >= 0 else None), "in the end all was said and read"


def test_the_window_fills_and_empties() -> None:
    core = connected()
    sent = [core.next(place(number), now_ms=number) for number in range(WINDOW + 5)]
    assert sum(one is not None for one in sent) == WINDOW
    assert core.status(None, now_ms=WINDOW + 5).delay_ms == WINDOW + 5, "the oldest has waited since 0"
    assert core.receipt(1)
    following = core.next(place(WINDOW + 4), now_ms=WINDOW + 5)
    assert following == Notice(WINDOW + 1, place(WINDOW + 4)), "with everything that could not be said meanwhile"


def test_a_receipt_out_of_turn_ends_the_session() -> None:
    core = connected()
    assert not core.receipt(1)
    core.next(place(0), now_ms=0)
    core.next(place(1), now_ms=0)
    assert not core.receipt(2)
    assert core.confirmed is None
    core.disconnected(None)
    status = core.status(None, now_ms=9)
    assert (status.is_connected, status.delay_ms, status.confirmed) == (False, 0, None)
    assert status.last_error is not None and "receipt for 2" in status.last_error


def test_an_empty_source_has_nothing_to_tell() -> None:
    assert connected().next(EARLIEST, now_ms=0) is None


def test_its_producer_has_the_name_that_pulsar_gives() -> None:
    assert producer_name("persistent://a/b/c", SHADOW) == f"pulsar.repl-persistent://a/b/c-->{SHADOW}"
