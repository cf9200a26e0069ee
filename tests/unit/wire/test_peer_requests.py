# SPDX-License-Identifier: Apache-2.0
"""Requests between regions: each is accepted once, by the region it is for, unaltered; and so are the answers."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.wire import peer_requests
from meridian_broker.wire.peer_proof import NONCE_BYTES, NotProven
from meridian_broker.wire.peer_requests import SCHEME, WINDOW_MS, Call, Caller, Guard

SECRET, OTHER = b"1" * 32, b"2" * 32
DELETE = Call("DELETE", "/admin/v2/persistent/public/default/t?stamp=1", b"")
numbers = itertools.count(1)


def random(count: int) -> bytes:
    return next(numbers).to_bytes(count, "big")


def caller(*secrets: bytes, to: str = "west", region: str = "east") -> Caller:
    return Caller(region, to, lambda: secrets or (SECRET,), random)


def guard(*secrets: bytes, region: str = "west") -> Guard:
    return Guard(region, random(NONCE_BYTES), lambda: secrets or (SECRET,))


def greet(one: Caller, other: Guard, *, here_ms: int = 0, there_ms: int = 0, binding: bytes = b"") -> None:
    header, nonce = one.greeting()
    asked = other.read(header)
    assert not other.is_current(asked, there_ms)
    one.challenged(other.challenge(asked, binding, there_ms), nonce, binding, here_ms)


def test_a_request_and_its_answer() -> None:
    one, other = caller(), guard()
    assert not one.has_greeted
    greet(one, other)
    signed = one.sign(DELETE, b"", 0)
    admitted = other.admit(other.read(signed.header), DELETE, b"", 0)
    assert admitted.region == "east"
    one.check(signed, 204, b"", other.answer(admitted, 204, b""))
    for status, body in ((200, b""), (204, b"x")):
        with pytest.raises(NotProven):
            one.check(signed, status, body, other.answer(admitted, 204, b""))
    with pytest.raises(NotProven):
        one.check(signed, 204, b"", "")
    again = one.sign(DELETE, b"", 0)
    with pytest.raises(NotProven, match="does not prove that it is from region west"):
        one.check(again, 204, b"", other.answer(admitted, 204, b""))


@pytest.mark.parametrize(("here_ms", "there_ms"), [(0, 10**12), (10**12, 0), (5, 5)])
def test_clocks_need_not_agree(here_ms: int, there_ms: int) -> None:
    one, other = caller(), guard()
    greet(one, other, here_ms=here_ms, there_ms=there_ms)
    for later in (0, WINDOW_MS // 2, 10**9):
        signed = one.sign(DELETE, b"", here_ms + later)
        asked = other.read(signed.header)
        assert other.is_current(asked, there_ms + later)
        other.admit(asked, DELETE, b"", there_ms + later)


def test_a_request_is_accepted_once_and_not_late() -> None:
    one, other = caller(), guard()
    greet(one, other)
    asked = other.read(one.sign(DELETE, b"", 0).header)
    other.admit(asked, DELETE, b"", 0)
    for now in (0, WINDOW_MS, WINDOW_MS + 1, 10**9):
        with pytest.raises(NotProven):
            other.admit(asked, DELETE, b"", now)
    ahead = other.read(one.sign(DELETE, b"", WINDOW_MS).header)
    other.admit(ahead, DELETE, b"", 0)
    for now in (WINDOW_MS, 2 * WINDOW_MS, 2 * WINDOW_MS + 1):
        with pytest.raises(NotProven):
            other.admit(ahead, DELETE, b"", now)


def test_a_restarted_broker_accepts_no_earlier_request() -> None:
    one, other, anew = caller(), guard(), guard()
    greet(one, other)
    asked = anew.read(one.sign(DELETE, b"", 0).header)
    assert not anew.is_current(asked, 0)
    with pytest.raises(NotProven):
        anew.admit(asked, DELETE, b"", 0)


def test_the_memory_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "NONCES_MAX", 3)
    one, other = caller(), guard()
    greet(one, other)
    for _ in range(3):
        other.admit(other.read(one.sign(DELETE, b"", 0).header), DELETE, b"", 0)
    with pytest.raises(NotProven, match="more than 3 requests"):
        other.admit(other.read(one.sign(DELETE, b"", 0).header), DELETE, b"", 0)
    later = 2 * WINDOW_MS + 1
    other.admit(other.read(one.sign(DELETE, b"", later).header), DELETE, b"", later)


def test_while_a_secret_is_changed() -> None:
    for here, there in (((OTHER, SECRET), (SECRET,)), ((SECRET,), (OTHER, SECRET)), ((SECRET, OTHER), (OTHER, SECRET))):
        one, other = caller(*here), guard(*there)
        greet(one, other)
        other.admit(other.read(one.sign(DELETE, b"", 0).header), DELETE, b"", 0)
    with pytest.raises(NotProven, match="different peer secrets"):
        guard(OTHER).read(caller().greeting()[0])


def test_a_removed_secret_is_no_longer_used() -> None:
    secrets = [SECRET]
    one, other = Caller("east", "west", lambda: tuple(secrets), random), guard(SECRET, OTHER)
    greet(one, other)
    secrets[:] = [OTHER]
    with pytest.raises(NotProven):
        one.sign(DELETE, b"", 0)
    one.forget()
    greet(one, other)
    other.admit(other.read(one.sign(DELETE, b"", 0).header), DELETE, b"", 0)


def test_a_false_region_cannot_challenge() -> None:
    one = caller()
    header, nonce = one.greeting()
    false = guard(OTHER, SECRET)
    challenge = false.challenge(false.read(header)._replace(secret=OTHER), b"", 0)
    with pytest.raises(NotProven):
        one.challenged(challenge, nonce, b"", 0)
    right = guard()
    with pytest.raises(NotProven, match="did not prove that it is region west"):
        one.challenged(right.challenge(right.read(header), b"relayed", 0), nonce, b"", 0)
    with pytest.raises(NotProven, match="did not prove"):
        one.challenged(right.challenge(right.read(caller().greeting()[0]), b"", 0), nonce, b"", 0)
    assert not one.has_greeted


CALLS = st.builds(
    Call,
    st.sampled_from(["GET", "DELETE"]),
    st.sampled_from(["/a", "/a?stamp=1", "/b"]),
    st.sampled_from([b"", b"{}", b"1"]),
)
WORLDS = st.tuples(
    st.sampled_from([SECRET, OTHER]),
    st.sampled_from(["east", "eas"]),
    st.sampled_from(["west", "twest"]),
    st.sampled_from([b"", b"one connection", b"another"]),
    CALLS,
)


@settings(max_examples=500)
@given(WORLDS, WORLDS)
def test_a_request_is_valid_only_for_its_own_content(first: Any, second: Any) -> None:
    """A request's header is presented with another connection, region or content."""
    secret, here, there, binding, call = first
    other_secret, _, elsewhere, other_binding, other_call = second
    one, other = caller(secret, region=here, to=there), guard(secret, region=there)
    greet(one, other, binding=binding)
    signed = one.sign(call, binding, 0)
    same = (binding, call) == (other_binding, other_call)
    if not same:
        with pytest.raises(NotProven):
            other.admit(other.read(signed.header), other_call, other_binding, 0)
    if there != elsewhere or secret != other_secret:
        with pytest.raises(NotProven):
            guard(other_secret, region=elsewhere).read(signed.header)
    asked = other.read(signed.header)
    for part in ("nonce", "run", "time", "proof"):
        changed = bytearray(getattr(asked, part))
        changed[-1] ^= 1
        with pytest.raises(NotProven):
            other.admit(asked._replace(**cast("Any", {part: bytes(changed)})), call, binding, 0)
    with pytest.raises(NotProven):
        other.admit(asked._replace(names=(b"else", asked.names[1])), call, binding, 0)
    other.admit(asked, call, binding, 0)


@settings(max_examples=500)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: SCHEME + data.hex()))
def test_noise_is_refused(header: str) -> None:
    one = caller()
    with pytest.raises(NotProven):
        guard().read(header)
    with pytest.raises(NotProven):
        one.challenged(header, bytes(32), b"", 0)
