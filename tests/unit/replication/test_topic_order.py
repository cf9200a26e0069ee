# SPDX-License-Identifier: Apache-2.0
"""The order of open topics: after a pass it contains the open ones, and can be walked from any position."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.replication.progress.digest_tree import number_of
from meridian_broker.replication.progress.topic_order import HASH_BITS, Place, TopicOrder, following

names = st.text("abcd", max_size=3)


def place(topic: str) -> Place:
    return number_of(topic.encode()), topic


@settings(max_examples=500)
@given(st.lists(st.frozensets(names, max_size=12), min_size=1, max_size=4), names, names)
def test_after_a_pass_it_contains_the_open_topics_in_order(passes: list[frozenset[str]], first: str, end: str) -> None:
    topics = set[str]()
    order = TopicOrder(lambda: topics)
    for opened in passes:
        topics.clear()
        topics.update(opened)
        order.begin()
        while not order.step():
            pass
        everything = sorted(map(place, opened))
        assert len(order) == len(opened)
        assert list(order.between((0, ""), 1 << HASH_BITS)) == everything
        begin, limit = place(first), place(end)[0]
        assert list(order.between(begin, limit)) == [one for one in everything if begin <= one and one[0] < limit]
        behind = following(begin)
        assert list(order.between(behind, 1 << HASH_BITS)) == [one for one in everything if one > begin]
