# SPDX-License-Identifier: Apache-2.0
"""Names of topics, in every form a client may write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError, ServerError


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("t/n/orders", "persistent://t/n/orders"),
        ("persistent://t/n/orders", "persistent://t/n/orders"),
        ("non-persistent://t/n/orders", "non-persistent://t/n/orders"),
        ("t-1/n.2:x=_/a b%2Fc+ü", "persistent://t-1/n.2:x=_/a b%2Fc+ü"),
        ("orders-partition-3", "persistent://public/default/orders-partition-3"),
        ("__change_events", "persistent://public/default/__change_events"),
    ],
)
def test_forms(text: str, full: str) -> None:
    topic = topic_name.parse(text)
    assert str(topic) == full
    assert topic_name.parse(full) == topic
    assert topic_name.of(topic.tenant, topic.namespace, topic.local_name, topic.domain) == topic


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a/b", "not a topic name"),
        ("persistent://a", "not a topic name"),
        ("persistent://a/b", "not a topic name"),
        ("persistent://t/cluster/n/x", "four parts"),
        ("a/b/c/d/e", "not a topic name"),
        ("http://t/n/x", "not a domain"),
        ("://t/n/x", "not a domain"),
        ("persistent:///n/x", "not a valid tenant name"),
        ("persistent://t//x", "not a valid namespace name"),
        ("t/n?/x", "not a valid namespace name"),
        ("tä/n/x", "not a valid tenant name"),
        ("../n/x", "not a valid tenant name"),
        ("t/./x", "not a valid namespace name"),
        ("t/n/", "blank"),
        ("t/n/x\n", "control character"),
        ("-partition-3", "without a name"),
        ("x" * 3000, "limit is 2048"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidTopicNameError, match=words) as caught:
        topic_name.parse(text)
    assert caught.value.code is ServerError.INVALID_TOPIC_NAME


@pytest.mark.parametrize(
    ("name", "partition", "base"),
    [
        ("x", -1, "x"),
        ("x-partition-0", 0, "x"),
        ("x-partition-12", 12, "x"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition--1", -1, "x-partition--1"),
        ("x-partition-", -1, "x-partition-"),
        ("x-partition-3-retry", -1, "x-partition-3-retry"),
        ("x-partition-9999999999", -1, "x-partition-9999999999"),
    ],
)
def test_partitions(name: str, partition: int, base: str) -> None:
    topic = topic_name.parse(name)
    assert (topic.partition, topic.base.local_name) == (partition, base)
    if partition >= 0:
        assert topic.base.partition >= 0 or topic.base.with_partition(partition) == topic
        with pytest.raises(ValueError, match="partition already"):
            topic.with_partition(1)
    else:
        assert topic.with_partition(7).base == topic


def test_no_negative_partition() -> None:
    with pytest.raises(ValueError, match="-1"):
        topic_name.parse("x").with_partition(-1)


def test_namespaces() -> None:
    assert topic_name.parse_namespace("t/n") == ("t", "n")
    assert topic_name.parse("t/n/x").namespace_name == "t/n"
    for text in ("t", "t/", "/n", "t/n/x", "", "t /n", "../n", "t/."):
        with pytest.raises(InvalidTopicNameError, match="tenant/namespace"):
            topic_name.parse_namespace(text)


@settings(max_examples=500)
@given(st.text(max_size=40))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        topic = topic_name.parse(text)
    except InvalidTopicNameError:
        return
    assert topic_name.parse(str(topic)) == topic


def test_each_part_of_a_name_is_one_path_segment() -> None:
    assert topic_name.in_path("persistent://t/n/a/b c%") == "persistent/t/n/a%2Fb%20c%25"
