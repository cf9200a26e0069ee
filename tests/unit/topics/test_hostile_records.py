# SPDX-License-Identifier: Apache-2.0
"""Subscription records come from other regions as JSON: each is a record that can be stored, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import Progress, Stamp
from meridian_broker.topics.journal.changes import Kind, decode, encode
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord, decode_record, encode_record
from support.worlds.topic_of_one_region import region

GOOD: dict[str, Any] = json.loads(encode_record(SubscriptionRecord("s", True, created=Stamp(1, 0, "eu"))))
NUMBERS = st.sampled_from((-1, 0, 1, (1 << 64) - 1, 1 << 64, 10**4000, 0.5, float("inf"), float("nan"), True))
TEXTS = st.sampled_from(("", "s", "n" * 70_000, "\ud800", "\x1b[2J", "12"))
LEAVES = st.one_of(st.none(), NUMBERS, TEXTS)
STAMPS = st.lists(LEAVES, min_size=2, max_size=4)
VALUES = st.one_of(LEAVES, STAMPS, st.lists(STAMPS, max_size=2), st.dictionaries(TEXTS, LEAVES, max_size=2))
FIELDS = (*GOOD, "deleted", "forced", "scope", "homes", "scope_stamp", "witness", "voters")


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_an_accepted_record_can_be_stored_and_passed_on(odd: dict[str, Any]) -> None:
    try:
        record = decode_record(json.dumps({**GOOD, **odd}).encode())
    except ValueError as refusal:
        assert len(str(refusal)) < 500
        return
    kept = decode(encode(Kind.SUBSCRIPTION, record.name, 1, encode_record(record))).payload
    assert encode_record(decode_record(kept)) == kept
    for stamp in (record.created, record.deleted, record.flag_stamp, record.scope_stamp):
        assert Stamp.decode(stamp.encode()) == stamp


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"name":' * 50_000, b"\xff", b"null", b"[]", b"1" * 5000], ids=lambda data: data[:9]
)
def test_invalid_records_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not a subscription record"):
        decode_record(data)


async def test_a_region_that_sends_no_record_or_one_of_another_name_gets_an_error() -> None:
    one = await region(shared=True)
    before = dict(one.topic.subscriptions)
    told: list[str | None] = []
    for data in (b"[" * 200_000, encode_record(SubscriptionRecord("other", True, created=Stamp(1, 0, "eu")))):
        one.topic.subscription_registry.merge("shared", Progress(), data, told.append)
        await one.settle()
    assert [reason is not None for reason in told] == [True, True]
    assert one.topic.subscriptions == before
