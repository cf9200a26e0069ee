# SPDX-License-Identifier: Apache-2.0
"""The handshake between regions: sharing a secret is required, and a proof is valid nowhere else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from meridian_broker.wire.peer_proof import (
    LINK,
    NONCE_BYTES,
    WITHIN,
    Answering,
    Dialling,
    NotProven,
    key_id,
    pack,
    unpack,
)

SECRET, OTHER, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
numbers = itertools.count()


def nonce() -> bytes:
    return next(numbers).to_bytes(NONCE_BYTES, "big")


def dialling(*secrets: bytes, to: str = "west", binding: bytes = b"", purpose: bytes = LINK) -> Dialling:
    return Dialling(secrets or (SECRET,), "east", to, nonce(), binding, purpose)


def answering(*secrets: bytes, region: str = "west", binding: bytes = b"", purpose: bytes = LINK) -> Answering:
    return Answering(secrets or (SECRET,), region, nonce(), binding, purpose)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ((SECRET,), (SECRET,)),
        ((OTHER, SECRET), (SECRET,)),
        ((SECRET,), (OTHER, SECRET)),
        ((OTHER, SECRET), (SECRET, OTHER)),
    ],
)
def test_regions_that_share_a_secret_authenticate_each_other(here: tuple[bytes, ...], there: tuple[bytes, ...]) -> None:
    """Also during a change of the secret, whichever region has which secret already."""
    one, other = dialling(*here), answering(*there)
    assert other.check(one.respond(other.challenge(one.opening()))) == "east"


def test_no_message_contains_the_secret() -> None:
    one, other = dialling(), answering()
    said = [one.opening()]
    said.append(other.challenge(said[0]))
    said.append(one.respond(said[1]))
    assert not any(SECRET[:8] in message for message in said)


def test_regions_with_different_secrets_report_it_before_any_proof() -> None:
    with pytest.raises(NotProven, match="different peer secrets"):
        answering(OTHER).challenge(dialling(SECRET).opening())


def test_a_region_without_the_secret_proves_nothing() -> None:
    """It invents a challenge for the key id that it was shown."""
    one = dialling()
    with pytest.raises(NotProven, match="did not prove that it is region west"):
        one.respond(pack(key_id(SECRET), nonce(), bytes(32)))
    other = answering()
    other.challenge(dialling().opening())
    with pytest.raises(NotProven, match="the proof is wrong"):
        other.check(bytes(32))


def test_a_connecting_region_gets_one_attempt() -> None:
    one, other = dialling(), answering()
    challenge = other.challenge(one.opening())
    for attempt in (bytes(32), one.respond(challenge)):
        with pytest.raises(NotProven):
            other.check(attempt)
    with pytest.raises(NotProven, match="a second challenge"):
        one.respond(challenge)
    with pytest.raises(NotProven, match="a second opening"):
        again = answering()
        again.challenge(dialling().opening())
        again.challenge(dialling().opening())


def test_a_proof_sent_back_to_its_maker_is_refused() -> None:
    """An impostor that east connects to connects to east at the same time, and returns east's own messages."""
    one = dialling()
    mirror = answering(region="east")
    with pytest.raises(NotProven, match="not 'west'"):
        mirror.challenge(one.opening())
    back = Dialling((SECRET,), "west", "east", nonce(), b"")
    east = answering(region="east")
    challenge = east.challenge(back.opening())
    with pytest.raises(NotProven):
        one.respond(challenge)
    with pytest.raises(NotProven, match="itself"):
        east = answering(region="east")
        east.challenge(Dialling((SECRET,), "east", "east", nonce(), b"").opening())


def of_broker(own: str, *secrets: bytes, purpose: bytes = LINK) -> Answering:
    return Answering(secrets or (SECRET,), "east", nonce(), b"", purpose, own)


def within(dialler: str, answerer: str, secret: bytes = SECRET) -> Dialling:
    return Dialling((secret,), dialler, answerer, nonce(), b"", WITHIN)


def test_brokers_of_one_region_prove_that_they_are() -> None:
    one, other = within("east/a", "east/b"), of_broker("east/b")
    assert other.check(one.respond(other.challenge(one.opening()))) == "east/a"
    assert other.purpose == WITHIN
    with pytest.raises(NotProven, match="different peer secrets"):
        of_broker("east/b").challenge(within("east/a", "east/b", OTHER).opening())


@pytest.mark.parametrize(
    ("dialler", "answerer", "problem"),
    [
        ("east/a", "east/c", "this is broker east/b"),
        ("east/a", "east", "this is broker east/b"),
        ("east/b", "east/b", "itself"),
        ("west/a", "east/b", "not a broker of region east"),
        ("west", "east/b", "not a broker of region east"),
        ("east", "east/b", "not a broker of region east"),
    ],
)
def test_nobody_else_passes_for_one(dialler: str, answerer: str, problem: str) -> None:
    """Not even a broker to itself: an impostor could return its own messages."""
    with pytest.raises(NotProven, match=problem):
        of_broker("east/b").challenge(within(dialler, answerer).opening())


def test_the_only_broker_of_a_region_has_no_such_connections() -> None:
    with pytest.raises(NotProven, match="another purpose"):
        answering(region="east").challenge(within("east/a", "east").opening())


def test_another_region_stays_one_where_there_are_several_brokers() -> None:
    link, several = Dialling((SECRET,), "west", "east", nonce(), b""), of_broker("east/b")
    assert several.check(link.respond(several.challenge(link.opening()))) == "west"
    assert several.purpose == LINK


def test_a_man_in_the_middle_of_two_tls_connections_fails() -> None:
    """It relays every message unchanged, but the connections on its two sides differ."""
    one, other = dialling(binding=b"first connection"), answering(binding=b"second connection")
    challenge = other.challenge(one.opening())
    with pytest.raises(NotProven):
        one.respond(challenge)


worlds = st.tuples(
    st.sampled_from([SECRET, OTHER, THIRD]),
    st.sampled_from(["east", "west", "eas", "twest", ""]),
    st.sampled_from(["east", "west", "eas", "twest", ""]),
    st.sampled_from([b"", b"one connection", b"another"]),
    st.sampled_from([LINK, b"something else"]),
)


@settings(max_examples=500)
@given(worlds, worlds, st.booleans())
def test_no_message_of_one_handshake_is_accepted_in_another(
    first: tuple[bytes, str, str, bytes, bytes], second: tuple[bytes, str, str, bytes, bytes], repeats: bool
) -> None:
    """Whatever the two have in common, even if only the nonces differ, or one side's nonce is repeated."""

    def sides(world: tuple[bytes, str, str, bytes, bytes], nonces: tuple[bytes, bytes]) -> tuple[Dialling, Answering]:
        secret, dialler, answerer, binding, purpose = world
        return (
            Dialling((secret,), dialler, answerer, nonces[0], binding, purpose),
            Answering((secret,), answerer, nonces[1], binding, purpose),
        )

    assume(first[1] != first[2] and second[1] != second[2])
    mine = nonce()
    one, other = sides(first, (mine, nonce()))
    challenge = other.challenge(one.opening())
    response = one.respond(challenge)
    another, yet_another = sides(second, (mine if repeats and first != second else nonce(), nonce()))
    with pytest.raises(NotProven):
        another.respond(challenge)
    yet_another.challenge(another.opening())
    with pytest.raises(NotProven):
        yet_another.check(response)
    assert other.check(response) == first[1]


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6), st.binary(max_size=60), st.integers(1, 6))
def test_the_framing_of_messages(fields: list[bytes], noise: bytes, count: int) -> None:
    assert unpack(pack(*fields), len(fields)) == fields
    try:
        assert pack(*unpack(noise, count)) == noise
    except NotProven:
        pass


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else_happens(noise: bytes) -> None:
    for attempt in (answering().challenge, dialling().respond, answering().check):
        with pytest.raises(NotProven):
            attempt(noise)
