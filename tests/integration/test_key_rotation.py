# SPDX-License-Identifier: Apache-2.0
"""Keys that are replaced while regions run and clients publish: nobody who holds a good token is turned away, and a key
that was removed is no longer accepted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.region_calls import CallFailed
from support.brokers.broker_process import BrokerProcess, http, wait_until
from support.brokers.guarded_regions import Guarded, guarded_regions, new_token, shown_by, tokens_command
from support.brokers.peers import as_region, calls_as
from support.protocol.raw_connection import T

TOPIC = "persistent://public/default/published-all-the-time"
TENANTS = "/admin/v2/tenants"
STATS = "/admin/v2/persistent/public/default/between-regions/stats"
READ_AGAIN = "peer secrets reloaded"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded_regions(tmp_path_factory.mktemp("rotated"))


class Traffic:
    """Publishes in both regions and asks their admin APIs, again and again, with the token of the moment."""

    def __init__(self, guarded: Guarded, token: Callable[[], str], topic: str) -> None:
        self._topic = topic
        self.refusals: list[str] = []
        self.turns = dict.fromkeys(guarded.brokers, 0)
        self._guarded = guarded
        self._token = token
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(region,)) for region in guarded.brokers]

    def _run(self, region: str) -> None:
        client = self._guarded.client(region, self._token)
        try:
            producer = client.create_producer(self._topic)
            while not self._stop.is_set():
                producer.send(f"{region}-{self.turns[region]}".encode())
                status = self._guarded.ask(TENANTS, self._token(), of=region)
                if status != 200:
                    self.refusals.append(f"{region} answered {status}")
                self.turns[region] += 1
                self._stop.wait(0.02)
        except Exception as error:
            self.refusals.append(f"{region}: {error!r}")
        finally:
            client.close()

    @property
    def sent(self) -> list[str]:
        """Everything that was published."""
        return [f"{region}-{number}" for region, turns in self.turns.items() for number in range(turns)]

    def goes_on(self) -> bool:
        """Wait until every client and admin caller has had an answer since this call."""
        before = dict(self.turns)
        wait_until(
            lambda: self.refusals or all(self.turns[one] > before[one] + 1 for one in before),
            "every client to have another answer",
        )
        return not self.refusals

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def received(guarded: Guarded, topic: str, token: str, count: int) -> list[str]:
    """The messages in the west, sorted: exactly this many."""
    client = guarded.client("west", token)
    consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    came = sorted(consumer.receive(60_000).data().decode() for _ in range(count))
    with contextlib.suppress(pulsar.Timeout):
        came.append(consumer.receive(1).data().decode())
    client.close()
    return came


def test_messages_go_between_regions_while_their_secret_is_replaced(guarded: Guarded) -> None:
    old, new = guarded.peer, "what the brokers of these regions know from now on"
    topic = "persistent://public/default/between-regions"

    def write(region: str, *secrets: str) -> None:
        broker, file = guarded.brokers[region], guarded.peer_files[region]
        before = broker.log().count(READ_AGAIN)
        beside = file.with_suffix(".new")
        beside.write_text("\n".join(secrets) + "\n")
        beside.chmod(0o600)
        beside.rename(file)
        wait_until(lambda: broker.log().count(READ_AGAIN) > before, f"{region} to read its secret again")

    with Traffic(guarded, lambda: guarded.admin, topic) as traffic:
        assert traffic.goes_on()
        asyncio.run(_replace(guarded, write, old, new, traffic))
    assert traffic.refusals == []
    assert received(guarded, topic, guarded.admin, len(traffic.sent)) == sorted(traffic.sent), "each once"


async def _replace(guarded: Guarded, write: Callable[..., None], old: str, new: str, traffic: Traffic) -> None:
    east = guarded.brokers["east"]
    options = as_region("west", "east", old.encode())
    spy = await PulsarClientConnection.connect(east.service_url, options)
    for secrets in ((new, old), (new,)):
        for region in guarded.brokers:
            await asyncio.to_thread(write, region, *secrets)
            assert await asyncio.to_thread(traffic.goes_on)
            if secrets == (new, old):
                assert spy.is_open, "the old secret is still good"
    await asyncio.wait_for(spy.wait_lost(), 60)
    await spy.close()
    with pytest.raises(ClientError, match="different peer secrets"):
        await PulsarClientConnection.connect(east.service_url, options)
    for secret, answered in ((new, True), (old, False)):
        calls = calls_as("west", east.admin_url, secret.encode())
        with contextlib.nullcontext() if answered else pytest.raises(CallFailed):
            assert (await calls.ask("east", "GET", STATS, seconds=30))[0] == 200
    await asyncio.to_thread(wait_until, lambda: all(map(linked, guarded.brokers.values())), "the links to be back")


def linked(broker: BrokerProcess) -> bool:
    """The log's last line about each link says that it is up."""
    last = dict(re.findall(r"(\w+ link to \w+) is (up|down)", broker.log()))
    return last != {} and set(last.values()) == {"up"}


def test_clients_publish_while_the_key_of_their_tokens_is_replaced(guarded: Guarded, tmp_path: Path) -> None:
    old_admin, old_app = guarded.admin, guarded.app
    current = old_admin
    second = guarded.keys / "second.key"
    with Traffic(guarded, lambda: current, TOPIC) as traffic:
        assert traffic.goes_on()
        tokens_command("create-secret-key", str(second))
        new = guarded.token("admin", "--key-id", "second", key=second)
        for region in guarded.brokers:
            wait_until(lambda of=region: guarded.ask(TENANTS, new, of=of) == 200, "the new key to be in force")
        assert traffic.goes_on(), "old tokens are valid as long as their key exists"
        current = new
        assert traffic.goes_on()
        asyncio.run(_remove_the_old_key(guarded, old_app, new))
        assert traffic.goes_on(), "the clients were asked for new tokens"
    assert traffic.refusals == []
    for region in guarded.brokers:
        assert guarded.ask(TENANTS, old_admin, of=region) == 401
    assert received(guarded, TOPIC, new, len(traffic.sent)) == sorted(traffic.sent)


async def _remove_the_old_key(guarded: Guarded, old: str, new: str) -> None:
    port = guarded.brokers["east"].port
    deaf, able, other = [
        (await shown_by(port, token, can_refresh=can))[0] for token, can in ((old, False), (old, True), (new, False))
    ]
    guarded.key.unlink()
    assert await deaf.ended()
    await able.hear(T.AUTH_CHALLENGE)
    refused, answer = await shown_by(port, old)
    assert answer[0] == T.ERROR
    assert "not signed with this region's key" in answer[1].message
    await other.producer("persistent://public/default/stays", user_provided_producer_name=False)
    able.say(T.AUTH_RESPONSE, new_token(old))
    assert "not signed with this region's key" in (await able.hear(T.ERROR)).message
    assert await able.ended()
    for one in (deaf, able, other, refused):
        await one.close()


def test_keys_that_cannot_be_used_change_nothing_and_are_reported(guarded: Guarded) -> None:
    broken = guarded.keys / "broken.key"
    token = guarded.token("admin", key=guarded.keys / "second.key")
    broken.write_bytes(b"too short")
    try:
        log = guarded.brokers["east"].log
        wait_until(lambda: f"{broken} holds 9 bytes" in log(), "the broker to log what is wrong")
        headers = {"Authorization": f"Bearer {token}"}
        health = http("GET", f"{guarded.brokers['east'].admin_url}/meridian/v1/health", headers=headers)
        assert f"{broken} holds 9 bytes" in health.text
        assert guarded.ask(TENANTS, token) == 200
    finally:
        broken.unlink()
