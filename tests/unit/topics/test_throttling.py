# SPDX-License-Identifier: Apache-2.0
"""Token buckets and their promises: the rate holds over any span, and nobody waits longer than needed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.clients import RATE_DEBT_MS
from meridian_broker.ledgers.throttling import Rate, Throttle, TokenBucket

amounts = st.integers(1, 10_000)
periods = st.sampled_from([1, 10, 1000, 60_000])
steps = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 3000)), max_size=40)


def payable(count: int, amount: int, period: int) -> int:
    """At most the maximum debt."""
    return min(count, amount * max(period, RATE_DEBT_MS) // period)


@settings(max_examples=500)
@given(amounts, periods, steps)
def test_over_any_span_no_more_passes_than_the_rate_and_one_period_saved(
    amount: int, period: int, wanted: list[tuple[int, int]]
) -> None:
    """A client that waits as told uses at most (span / period + 1) * amount, plus the last use, paid for later."""
    now = 1_000_000
    bucket = TokenBucket(amount, period, now)
    begin, used = now, 0
    for pause, count in wanted:
        now += pause
        now += bucket.wait_ms(now)
        assert bucket.wait_ms(now) == 0, "after the wait it may come"
        assert used * period <= amount * (now - begin + period)
        count = payable(count, amount, period)
        bucket.take(count, now)
        used += count


@settings(max_examples=500)
@given(amounts, periods, st.integers(1, 100_000))
def test_a_debt_is_waited_for_no_longer_than_needed(amount: int, period: int, count: int) -> None:
    bucket, count = TokenBucket(amount, period, 0), payable(count, amount, period)
    bucket.take(amount + count, 0)
    wait = bucket.wait_ms(0)
    assert wait * amount >= count * period, "long enough"
    assert (wait - 1) * amount <= count * period, "a millisecond less would leave the debt"
    assert bucket.available(wait - 1) == 0 < bucket.available(wait)


@settings(max_examples=500)
@given(amounts, periods, st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5))
def test_nobody_waits_longer_than_for_the_maximum_debt(amount: int, period: int, uses: list[int]) -> None:
    """One client may incur the debt that all pay."""
    bucket = TokenBucket(amount, period, 0)
    for count in uses:
        bucket.take(count, 0)
    wait = bucket.wait_ms(0)
    assert wait <= max(period, RATE_DEBT_MS) + 1
    assert bucket.available(wait) > 0


@settings(max_examples=500)
@given(amounts, periods, st.lists(st.tuples(st.integers(-10_000, 10_000), st.integers(0, 500)), max_size=40))
def test_setting_the_clock_gives_at_most_one_period_saved(
    amount: int, period: int, moves: list[tuple[int, int]]
) -> None:
    """Set forward, it saves at most one period's amount; set back, it takes nothing away and delays nobody."""
    now = 50_000
    bucket = TokenBucket(amount, period, now)
    for move, count in moves:
        before = bucket.available(now)
        now += move
        after = bucket.available(now)
        assert min(before, amount) <= after <= amount
        if move <= 0:
            assert after == before
        bucket.take(count, now)


@settings(max_examples=500)
@given(st.integers(0, 50), st.integers(0, 50), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 999)), max_size=20))
def test_the_stricter_of_the_two_rules(messages: int, size: int, uses: list[tuple[int, int]]) -> None:
    throttle = Throttle(Rate(messages, size), 0)
    counts = TokenBucket(messages or 1 << 60, 1000, 0)
    sizes = TokenBucket(size or 1 << 60, 1000, 0)
    for now, (count, length) in enumerate(uses):
        counts.take(count, now)
        sizes.take(length, now)
        assert throttle.take(count, length, now) == max(counts.wait_ms(now), sizes.wait_ms(now))
        assert throttle.messages_available(now, 7) == min(7, counts.available(now))


def test_nothing_limited() -> None:
    assert not Rate(-1, 0).is_limited
    assert Throttle(Rate(), 0).take(10**9, 10**12, 0) == 0
