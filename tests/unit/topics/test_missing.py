# SPDX-License-Identifier: Apache-2.0
"""Which topics ask other regions for entries, and how often: a bounded number a second, each in its turn (R6).

Where regions compare what they have, topics of which another region has more ask; polls are few then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Set
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.progress import exchange, high_watermarks, links, topic_order
from meridian_broker.replication.progress.high_watermarks import ROUND_MS, TOPICS
from meridian_broker.replication.progress.messages import SUMMARY_VERSION, Digest, State
from meridian_broker.topics.backfill.backfill import Due, Look
from meridian_broker.topics.backfill.questions import Found, Want
from meridian_broker.topics.service.backfill_rounds import (
    LOOKS,
    POLLS,
    POLLS_BESIDE,
    QUIET_LOOKS,
    QUIET_ROUND,
    STARTS,
    BackfillRounds,
    StoredEnds,
)
from simulation.replication_links import ReplicationLinks
from simulation.story import Story
from support.worlds.exchange_world import ExchangeWorld


class Asking:
    """The part of a topic that is used here."""

    def __init__(self, due: Due) -> None:
        self._due = due
        self.seen: tuple[object, ...] | None = None
        self.looks = self.asked = 0

    def look(self) -> Look:
        self.looks += 1
        return Look(self._due, {"us"}, {"eu"}, self.seen)

    def start(self) -> None:
        self.asked += 1


def service(**counts: int) -> tuple[Any, list[Asking]]:
    asking = [Asking(Due[name]) for name, count in counts.items() for _ in range(count)]
    remotes = {"us", "eu"}
    topics = {f"t{n}": SimpleNamespace(failure=None, backfill=one, remotes=remotes) for n, one in enumerate(asking)}
    return SimpleNamespace(topics=topics), asking


class Exchange:
    """The part of the exchange that is used here."""

    def __init__(self, *able: str) -> None:
        self._able = able
        self.compared: list[set[str]] = []

    def compares_ends_with(self, region: str) -> bool:
        return region in self._able

    def compare_ends(self, origins: Collection[str]) -> None:
        self.compared.append(set(origins))


def rounds_of(
    broker: Any,
    exchange: Exchange | None = None,
    now_ms: Callable[[], int] = lambda: 0,
    jitter: Callable[[], float] = lambda: 1.0,
) -> tuple[BackfillRounds, StoredEnds]:
    """The rounds over these topics, and the topics of which others have more, as the exchange finds."""
    ends = StoredEnds(broker)
    return BackfillRounds(broker, ends, exchange or Exchange(), now_ms, jitter), ends


class Seconds:
    """Rounds over one topic, a look a second, and the seconds in which it asked."""

    def __init__(self, due: Due, *able: str, jitter: float = 1.0) -> None:
        """:param able: regions that compare ends."""
        self.broker, (self.topic,) = service(**{due.name: 1})
        self._exchange = Exchange(*able)
        self.rounds, self.ends = rounds_of(self.broker, self._exchange, lambda: 1000 * self.now, lambda: jitter)
        self.now = 0

    def run(self, seconds: int) -> list[int]:
        """Counted from now; the regions whose ends are compared stay the same, whether it asks or not."""
        asked = list[int]()
        for second in range(seconds):
            before = self.topic.asked
            self.rounds.look()
            assert self._exchange.compared[-1] == {"us"}
            if self.topic.asked > before:
                asked.append(second)
            self.now += 1
        return asked


@pytest.mark.parametrize("count", [1, 50, POLLS, POLLS + 1, 3 * POLLS, LOOKS, 2 * LOOKS + 7])
def test_polls_are_bounded_and_every_topic_gets_its_turn(count: int) -> None:
    broker, asking = service(POLL=count)
    (missing, _), before = rounds_of(broker), 0
    rounds = -(-count // POLLS)
    for _ in range(2 * rounds + 1):
        missing.look()
        now = sum(one.asked for one in asking)
        assert now - before <= POLLS
        before = now
    assert min(one.asked for one in asking) >= 1


def test_known_missing_entries_do_not_wait_for_polls() -> None:
    broker, asking = service(POLL=3 * POLLS, NOW=50, NEVER=50)
    rounds_of(broker)[0].look()
    assert all(one.asked == 1 for one in asking if one._due is Due.NOW)
    assert all(one.asked == 0 for one in asking if one._due is Due.NEVER)


def test_a_few_topics_are_checked_each_time() -> None:
    broker, asking = service(POLL=3, NEVER=3)
    missing, _ = rounds_of(broker)
    for _ in range(4):
        missing.look()
    assert [one.looks for one in asking] == [4] * 6


def test_each_topic_is_checked_within_five_seconds_and_faster_once_something_is_missing() -> None:
    broker, asking = service(NEVER=LOOKS)
    missing, _ = rounds_of(broker)
    missing.look()
    assert [one.looks for one in asking] == [1] * LOOKS, "after a start nothing is known"
    for _ in range(QUIET_ROUND):
        missing.look()
    assert [one.looks for one in asking] == [2] * LOOKS
    for one in asking:
        one._due = Due.POLL
    missing.look()
    missing.look()
    assert min(one.looks for one in asking) == 3, "a region went down: all topics are checked at once"


@pytest.mark.parametrize("count", [1, QUIET_LOOKS, QUIET_LOOKS + 1, 10 * LOOKS])
def test_a_check_without_findings_is_bounded(count: int) -> None:
    broker, asking = service(NEVER=count)
    missing, _ = rounds_of(broker)
    missing.look()
    before = sum(one.looks for one in asking)
    missing.look()
    most = min(count, max(QUIET_LOOKS, -(-count // QUIET_ROUND)), LOOKS)
    assert sum(one.looks for one in asking) - before == most


@pytest.mark.parametrize(("able", "polls"), [((), POLLS), (("us",), POLLS), (("eu",), POLLS_BESIDE)])
def test_polls_are_few_where_ends_are_compared(able: tuple[str, ...], polls: int) -> None:
    broker, asking = service(POLL=3 * POLLS, NEVER=5)
    compared = Exchange(*able)
    missing, _ = rounds_of(broker, compared)
    missing.look()  # no topic was checked before
    before = sum(one.asked for one in asking)
    missing.look()
    assert sum(one.asked for one in asking) - before == polls
    assert compared.compared[-1] == {"us"}


def test_a_region_that_is_back_is_not_compared_forever() -> None:
    broker, asking = service(POLL=5)
    compared = Exchange("eu")
    missing, _ = rounds_of(broker, compared)
    missing.look()
    for one in asking:
        one._due = Due.NEVER
    for _ in range(3):
        missing.look()
    assert compared.compared == [{"us"}, {"us"}, set(), set()]


def test_topics_of_which_others_have_more_ask_in_turn() -> None:
    broker, asking = service(NEVER=2 * STARTS + 5)
    missing, ends = rounds_of(broker)
    for name in (*broker.topics, "gone"):
        ends.more_elsewhere(name)
        ends.more_elsewhere(name)
    missing.look()
    assert sum(one.asked for one in asking) == STARTS
    for _ in range(2):
        missing.look()
    assert all(one.asked == 1 for one in asking)


@pytest.mark.parametrize("due", [Due.POLL, Due.NOW])
def test_a_topic_that_asks_in_vain_while_a_region_is_away_asks_less_and_less(due: Due) -> None:
    one = Seconds(due, "eu")
    one.topic.seen = ("us is away",)
    assert one.run(130) == [0, 1, 3, 7, 15, 31, 61, 91, 121]


def test_pauses_are_partly_random() -> None:
    one = Seconds(Due.POLL, "eu", jitter=0.0)
    one.topic.seen = ("us is away",)
    assert one.run(80) == [0, 1, 2, 4, 8, 16, 31, 46, 61, 76]


def test_a_topic_asks_at_once_when_something_changed() -> None:
    one = Seconds(Due.POLL, "eu")
    one.topic.seen = ("us is away",)
    one.run(40)
    one.topic.seen = ("us is back",)
    assert one.run(10) == [0, 1, 3, 7], "and pauses grow from the first one again"


def test_the_next_absence_begins_with_the_first_pause() -> None:
    one = Seconds(Due.POLL, "eu")
    one.topic.seen = ("us is away",)
    one.run(40)
    one.topic._due = Due.NEVER
    one.rounds.look()
    one.topic._due = Due.POLL
    assert one.run(10) == [0, 1, 3, 7]


def test_a_topic_of_which_another_region_has_more_does_not_pause() -> None:
    one = Seconds(Due.POLL, "eu")
    one.topic.seen = ("us is away",)
    one.run(40)
    one.ends.more_elsewhere("t0")
    assert one.run(1) == [0]


def test_a_topic_that_waits_for_regions_that_can_answer_does_not_pause() -> None:
    assert Seconds(Due.NOW, "eu").run(20) == list(range(20))


def test_where_polls_are_the_only_way_they_do_not_pause() -> None:
    one = Seconds(Due.POLL)
    one.topic.seen = ("us is away",)
    assert one.run(20) == list(range(20))


def test_questions_become_few_while_a_region_is_down_and_its_return_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three real regions, one of them down for ten minutes."""
    asked, ask = list[str](), ReplicationLinks.ask

    async def noted(links: ReplicationLinks, region: str, want: Want) -> Found:
        asked.append(region)
        return await ask(links, region, want)

    monkeypatch.setattr(ReplicationLinks, "ask", noted)
    story = Story()

    def told(*lines: str) -> Counter[str]:
        asked.clear()
        for line in lines:
            for _ in story.run(line):
                pass
        return Counter(asked)

    told("regions us eu ap", "produce us t x3", "tick 5000", "crash us", "crash eu", "start eu", "tick 120000")
    few = told("tick 480000")
    assert few["eu"] + few["ap"] <= 4 * 2 * 480 // 15, "two regions ask for two origins, at least twice a minute"
    assert few["eu"] + few["ap"] >= 2 * 480 // 30
    assert told("start us", "tick 2000")["us"], "for what eu may have lost"


def test_pauses_of_closed_topics_are_forgotten() -> None:
    one = Seconds(Due.POLL, "eu")
    one.topic.seen = ("us is away",)
    one.run(40)
    closed = one.broker.topics.pop("t0")
    one.broker.topics["t1"] = SimpleNamespace(failure=None, backfill=None)
    one.rounds.look()
    one.broker.topics["t0"] = closed
    assert one.run(2) == [0, 1]


class Open(Set[str]):
    """Open topics, and how often one was looked up."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def __contains__(self, topic: object) -> bool:
        self._stored.looked_up += 1
        return topic in self._stored.ends

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.ends)

    def __len__(self) -> int:
        return len(self._stored.ends)


class Stored:
    """The ends of one region's topics."""

    def __init__(self) -> None:
        self.ends: dict[str, Position] = {}
        self.found: set[str] = set()
        self.looked_up = 0

    def open_topics(self) -> Set[str]:
        return Open(self)

    def end(self, topic: str, origin: str) -> Position:
        self.looked_up += 1
        return self.ends.get(topic, EARLIEST) if origin == "us" else EARLIEST

    def more_elsewhere(self, topic: str) -> None:
        self.found.add(topic)


class Comparison:
    """eu and ap, while us is down."""

    def __init__(self, ends: dict[str, tuple[int, int]]) -> None:
        """:param ends: each topic's end at eu and ap; negative: they do not have the topic."""
        self.world = ExchangeWorld(["eu", "ap", "us"])
        self.stored = {name: Stored() for name in ("eu", "ap")}
        for topic, both in ends.items():
            for one, entry in zip(self.stored.values(), both, strict=True):
                if entry >= 0:
                    one.ends[topic] = Position(1, entry - 1) if entry else EARLIEST
        for name, one in self.stored.items():
            region = self.world.regions[name]
            region.exchange = exchange.ProgressExchange(region, ends=one)
            for other in self.world.names:
                region.exchange.add_peer(other)
        self.heard = self.world.listen()
        for link in (("eu", "ap"), ("ap", "eu")):
            self.world.connect(*link)
        self.world.run(100)

    def seconds(self, count: int) -> None:
        for _ in range(count):
            for name in self.stored:
                self.world.regions[name].exchange.compare_ends({"us"}, self.world.now_ms)
            self.world.run(1000)


@given(
    st.dictionaries(st.text("abc", max_size=4), st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
    st.integers(1, 6),
)
def test_a_region_finds_topics_of_which_another_has_more(ends: dict[str, tuple[int, int]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(high_watermarks, "TOPICS", at_once)
        patched.setattr(high_watermarks, "STEPS", at_once)
        patched.setattr(topic_order, "HASHED", at_once)
        patched.setattr(topic_order, "LOOKED", 1000 * at_once)
        comparison = Comparison(ends)
        comparison.seconds(8 + 4 * len(ends))
    assert comparison.stored["eu"].found == {topic for topic, (eu, ap) in ends.items() if 0 <= eu < ap}
    assert comparison.stored["ap"].found == {topic for topic, (eu, ap) in ends.items() if 0 <= ap < eu}


def test_ten_thousand_topics_cost_little_and_one_that_differs_is_found_in_seconds() -> None:
    comparison = Comparison({f"topic {number}": (5, 5) for number in range(10_000)})
    comparison.world.sent_bytes.clear()
    comparison.seconds(20)
    assert comparison.world.sent_bytes["Digest"] < 20 * 2 * 3000
    assert "State" not in comparison.world.sent
    comparison.stored["ap"].ends["topic 7"] = Position(1, 9)
    seconds = 0
    while comparison.stored["eu"].found != {"topic 7"}:
        comparison.seconds(1)
        seconds += 1
        assert seconds <= 2 * (10_000 // TOPICS)
    assert not comparison.stored["ap"].found
    told = [message.ends.topics for *_, message in comparison.heard if isinstance(message, State) and message.ends]
    assert all(len(topics) < 20 for topics in told)


def test_a_hundred_thousand_topics_are_never_walked_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region with one topic asks a region with many: its slice covers them all."""
    comparison = Comparison({"t": (1, 3), **{f"topic {number}": (-1, 0) for number in range(100_000)}})
    many, turns = comparison.stored["ap"], list[int]()
    asked = comparison.world.regions["ap"].exchange

    def counted(turn: Callable[..., Any]) -> Callable[..., Any]:
        def count(*what: Any) -> Any:
            before = many.looked_up
            try:
                return turn(*what)
            finally:
                turns.append(many.looked_up - before)

        return count

    for name in ("tick", "received", "compare_ends"):
        monkeypatch.setattr(asked, name, counted(getattr(asked, name)))
    comparison.seconds(60)
    assert comparison.stored["eu"].found == {"t"}
    assert sum(turns) > 300_000, "it went through all of them, more than once"
    assert max(turns) <= high_watermarks.STEPS + topic_order.LOOKED + topic_order.HASHED


def test_another_incarnation_of_a_topic_is_not_compared() -> None:
    comparison = Comparison({"t": (1, 3)})
    comparison.world.regions["eu"].delete_topic("t")  # it is another topic now (R8)
    comparison.seconds(10)
    assert not comparison.stored["eu"].found


def test_few_topics_are_compared_every_few_seconds() -> None:
    comparison = Comparison({"t": (1, 1)})
    comparison.seconds(30)
    slices = [m for _, source, _, m in comparison.heard if source == "eu" and isinstance(m, Digest) and m.ends]
    assert len(slices) == 30_000 // ROUND_MS


def test_a_region_of_an_earlier_version_is_not_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PROTOCOL_VERSION", SUMMARY_VERSION)
    comparison = Comparison({"t": (1, 3)})
    comparison.seconds(10)
    assert not comparison.world.regions["eu"].exchange.compares_ends_with("ap")
    assert not [m for *_, m in comparison.heard if isinstance(m, Digest) and m.ends]
