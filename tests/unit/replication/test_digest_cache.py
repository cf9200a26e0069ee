# SPDX-License-Identifier: Apache-2.0
"""The digest cache: it recomputes only what changed, with the same result as recomputing everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.digests import DigestCache
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

    def open_topics(self) -> list[str]:
        return list({topic for topic, _ in self.held})

    def is_replicated(self, topic: str) -> bool:
        return bool(self.replicated_in(topic))

    def replicated_in(self, topic: str) -> list[str]:
        return [name for other, name in self.held if other == topic]


def refresh(cache: DigestCache) -> None:
    for _ in cache.follow():
        pass
    for topic in cache.topics():
        cache.refresh(topic)


def test_only_changes_are_recomputed() -> None:
    source = Source()
    cache = DigestCache(source, ExchangeLimits(), source.regions_of)
    for number in range(100):
        source.held["t", f"s{number}"] = Progress()
    refresh(cache)
    cache.topic("t")
    assert len(source.asked) == 100
    source.asked.clear()
    cache.mark("t", "s7")
    refresh(cache)
    cache.topic("t")
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
def test_the_cache_equals_a_new_cache(steps: list[tuple[str, str, str, int]]) -> None:
    """Kept up to date by marks, it gives the same as recomputing everything."""
    source = Source()
    cache = DigestCache(source, ExchangeLimits(), source.regions_of)
    cache.summary("eu")  # from a link's first round on
    closed: dict[tuple[str, str], Progress] = {}
    for what, topic, name, entry in steps:
        if what == "put":
            source.held[topic, name] = Progress()
            source.held[topic, name].raise_floor("us", (1, entry))  # type: ignore[arg-type]
            cache.mark(topic, name)
        elif what == "load":  # its topic is reopened unchanged: nobody marks anything
            source.held.setdefault((topic, name), closed.pop((topic, name), Progress()))
        elif what == "drop" and (topic, name) in source.held:
            closed[topic, name] = source.held.pop((topic, name))
        elif what == "one":
            cache.subscription(topic, name)
        elif what == "sum":
            cache.summary("eu").work_out()
        elif what == "read":
            cache.topic(topic)
        else:
            refresh(cache)
    refresh(cache)
    fresh = DigestCache(source, ExchangeLimits(), source.regions_of)
    refresh(fresh)
    assert sorted(cache.topics()) == sorted(fresh.topics())
    for topic in "tu":
        assert cache.topic(topic) == fresh.topic(topic)
        assert list(cache.listing(topic, None)) == list(fresh.listing(topic, None))
    anew = fresh.summary("eu")
    for topic in fresh.topics():
        anew.changed(topic)
    assert cache.summary("eu").work_out() == anew.work_out()
