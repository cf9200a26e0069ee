# SPDX-License-Identifier: Apache-2.0
"""The book of digests: it works out what changed and nothing else, and says what working everything out would say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.digests import DigestBook
from meridian_broker.replication.progress.messages import ExchangeLimits


class Source:
    """Progress by name; records are constant."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], Progress] = {}
        self.asked: list[str] = []

    def progress(self, topic: str, subscription: str) -> Progress | None:
        self.asked.append(subscription)
        return self.held.get((topic, subscription))

    def record(self, topic: str, subscription: str) -> bytes | None:
        return b"r" if (topic, subscription) in self.held else None

    def incarnation(self, topic: str) -> str:
        return ""

    def regions_of(self, topic: str) -> frozenset[str]:
        return frozenset(("us", "eu"))

    def replicated_topics(self) -> list[str]:
        return [topic for topic, _ in self.held]

    def replicated_in(self, topic: str) -> list[str]:
        return [name for other, name in self.held if other == topic]


def refresh(book: DigestBook) -> None:
    book.refresh_topics()
    for topic in book.topics():
        book.refresh(topic)


def test_only_what_changed_is_looked_at() -> None:
    source = Source()
    book = DigestBook(source, ExchangeLimits())
    for number in range(100):
        source.held["t", f"s{number}"] = Progress()
    refresh(book)
    book.topic("t")
    assert len(source.asked) == 100
    source.asked.clear()
    book.mark("t", "s7")
    refresh(book)
    book.topic("t")
    assert source.asked == ["s7"]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "load", "drop", "read", "one", "sum", "refresh"]),
            st.sampled_from("tu"),
            st.sampled_from("abc"),
            st.integers(0, 5),
        )
    )
)
def test_the_book_is_what_a_new_book_would_be(steps: list[tuple[str, str, str, int]]) -> None:
    """Kept up to date by marks, it says what working everything out says."""
    source = Source()
    book = DigestBook(source, ExchangeLimits())
    book.summary("eu")  # from the first round of a link on
    closed: dict[tuple[str, str], Progress] = {}
    for what, topic, name, entry in steps:
        if what == "put":
            source.held[topic, name] = Progress()
            source.held[topic, name].raise_floor("us", (1, entry))  # type: ignore[arg-type]
            book.mark(topic, name)
        elif what == "load":  # its topic is opened again, as it was: nobody marks anything
            source.held.setdefault((topic, name), closed.pop((topic, name), Progress()))
        elif what == "drop" and (topic, name) in source.held:
            closed[topic, name] = source.held.pop((topic, name))
        elif what == "one":
            book.subscription(topic, name)
        elif what == "sum":
            book.summary("eu").work_out()
        elif what == "read":
            book.topic(topic)
        else:
            refresh(book)
    refresh(book)
    fresh = DigestBook(source, ExchangeLimits())
    refresh(fresh)
    assert sorted(book.topics()) == sorted(fresh.topics())
    for topic in "tu":
        assert book.topic(topic) == fresh.topic(topic)
        assert list(book.listing(topic, None)) == list(fresh.listing(topic, None))
    anew = fresh.summary("eu")
    for topic in fresh.topics():
        anew.changed(topic)
    assert book.summary("eu").work_out() == anew.work_out()
