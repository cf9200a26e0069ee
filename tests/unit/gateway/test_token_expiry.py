# SPDX-License-Identifier: Apache-2.0
"""When tokens expire: who is asked for a new one, who is disconnected, and that nobody else is examined."""

from __future__ import annotations

from meridian_broker.gateway.pulsar.expiry import ANSWER_SECONDS, Expiries
from meridian_broker.gateway.token_keys import secret_key

OLD, NEW = secret_key(b"o" * 32), secret_key(b"n" * 32)


class Client:
    """A connection that records what happens to it."""

    def __init__(self, *, can_refresh: bool = True) -> None:
        self.can_refresh = can_refresh
        self.told: list[str] = []

    def ask_for_token(self) -> None:
        self.told.append("asked")

    def end(self, reason: str) -> None:
        self.told.append(reason)


def test_a_client_is_asked_and_then_disconnected() -> None:
    expiries, client = Expiries(), Client()
    expiries.watch(client, 100)
    expiries.look(99)
    assert client.told == []
    for now in (100, 101, 100 + ANSWER_SECONDS - 1):
        expiries.look(now)
        assert client.told == ["asked"]
        assert expiries.was_asked(client)
    expiries.look(100 + ANSWER_SECONDS)
    assert client.told == ["asked", "its token has expired"]
    expiries.look(1000)
    assert len(client.told) == 2


def test_a_client_that_answers_stays_until_its_new_token_expires() -> None:
    expiries, client = Expiries(), Client()
    expiries.watch(client, 100)
    expiries.look(100)
    expiries.watch(client, 200)
    assert not expiries.was_asked(client)
    expiries.look(199)
    assert client.told == ["asked"]
    expiries.look(200)
    expiries.watch(client, None)
    expiries.look(10**9)
    assert client.told == ["asked", "asked"]


def test_a_client_that_cannot_answer_is_disconnected_at_once() -> None:
    expiries, client, gone = Expiries(), Client(can_refresh=False), Client()
    expiries.watch(client, 100)
    expiries.watch(gone, 100)
    expiries.forget(gone)
    expiries.look(100)
    assert client.told == ["its token has expired"]
    assert gone.told == []


def test_the_earliest_expiry_is_handled_first_in_any_order() -> None:
    expiries, clients = Expiries(), [Client(can_refresh=False) for _ in range(3)]
    for client, until in zip(clients, (300, 100, 200), strict=True):
        expiries.watch(client, until)
    for now, ended in ((99, 0), (100, 1), (199, 1), (200, 2), (300, 3)):
        expiries.look(now)
        assert sum(bool(client.told) for client in clients) == ended


def test_a_removed_key_ends_what_it_signed_and_nothing_else() -> None:
    expiries = Expiries()
    deaf, able, other, gone = Client(can_refresh=False), Client(), Client(), Client()
    for client, until, key in ((deaf, None, OLD), (able, 1000, OLD), (other, None, NEW), (gone, None, OLD)):
        expiries.watch(client, until, key)
    expiries.forget(gone)
    expiries.keep_only((OLD, NEW), 100)
    expiries.look(100)
    assert not any(client.told for client in (deaf, able, other))
    expiries.keep_only((NEW,), 100)
    expiries.look(100)
    assert deaf.told == ["the key of its token was removed"]
    assert able.told == ["asked"]
    expiries.keep_only((NEW,), 105)
    expiries.look(100 + ANSWER_SECONDS - 1)
    assert able.told == ["asked"], "it keeps its deadline for an answer"
    expiries.watch(able, None, NEW)
    expiries.look(10**9)
    assert (able.told, other.told, gone.told) == (["asked"], [], [])


def test_removing_a_key_does_not_extend_the_time_to_answer() -> None:
    expiries, client = Expiries(), Client()
    expiries.watch(client, 100, OLD)
    expiries.look(100)
    expiries.keep_only((NEW,), 105)
    expiries.look(100 + ANSWER_SECONDS)
    assert client.told == ["asked", "its token has expired"]
