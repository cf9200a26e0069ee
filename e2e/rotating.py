# SPDX-License-Identifier: Apache-2.0
"""The token key and the peer secret are replaced by the commands of docs/operations.md; clients come and go."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import pulsar
from clusters import Cluster
from printed import printed
from traffic import Traffic, auditing, drain

TOPIC: Final = "persistent://public/default/rotated"
REGIONS: Final = ("us-east", "us-west", "eu-central")
Connect = Callable[[str, str | Callable[[], str]], pulsar.Client]
"""A client's region, and its token or a function that returns it at each login."""


class Newcomers:
    """Clients that connect to every region in turn, each with the same token, and publish a message each."""

    def __init__(self, connect: Connect, token: str) -> None:
        self.came = 0
        self.refused: list[str] = []
        self._connect = connect
        self._token = token
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._come)
        self._thread.start()

    def __enter__(self) -> Newcomers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _come(self) -> None:
        for region in itertools.cycle(REGIONS):
            client = self._connect(region, self._token)
            try:
                client.create_producer(f"{TOPIC}-newcomers").send(b"hello")
            except pulsar.PulsarException as error:
                self.refused.append(f"{region}: {error!r}")
            finally:
                client.close()
            self.came += 1
            if self._over.wait(0.1):
                return


class Rotation:
    """One walk through the printed commands, with a pause in which regions start to use the new key by themselves."""

    def __init__(self, cluster: Cluster, connect: Connect, clients: Mapping[str, pulsar.Client]) -> None:
        """:param clients: one per region; they read the token's file at each login."""
        self._cluster = cluster
        self._connect = connect
        self._clients = clients
        self._add, self._issue, self._is_issued, self._finish, self._both, self._new, self._by_hand = printed(
            "Replacing keys, tokens and passwords"
        )
        self._token = cluster.directory / "tokens/admin.jwt"
        self._published = 0
        self._stored: set[int] = set()
        for region in REGIONS:
            auditing(clients[region], TOPIC).close()

    def begin(self) -> int:
        """Put the new key beside the old one. Returns how many clients connected meanwhile, none of which was refused.

        Regions use it for the operator's tokens once brokers have had three minutes to read it.
        """
        with self._traffic(), Newcomers(self._connect, self._token.read_text().strip()) as newcomers:
            self._until(self._add, "2 in force")
            self._sync_issuers()
            self._more(newcomers)
        assert not newcomers.refused
        return newcomers.came

    def finish(self) -> int:
        """Replace the key, and the peer secret. Returns how many clients connected, none of which was refused."""
        old = self._token.read_text().strip()
        with self._traffic(), ExitStack() as all_clients:
            with Newcomers(self._connect, old) as with_old:
                with_new = all_clients.enter_context(Newcomers(self._connect, self._new_tokens()))
                self._more(with_new)
            self._end_of_old_key()
            self._until(self._both, "2 in force")
            self._cluster.run(self._new)
            self._wait_for("peer secrets reloaded", "1 in force")
            self._more(with_new)
        assert not with_old.refused and not with_new.refused
        self._are_refused(old)
        self._cluster.run(self._by_hand)
        for region in REGIONS:
            consumer = auditing(self._clients[region], TOPIC)
            came = set(drain(consumer, self._stored))
            assert self._stored <= came, f"{region} does not get what the others publish"
            consumer.close()
        return with_old.came + with_new.came

    @contextmanager
    def _traffic(self) -> Iterator[None]:
        """Messages are published and consumed in all regions meanwhile; none is refused or redelivered."""
        traffic = Traffic(self._clients, TOPIC, REGIONS, consumer="us-west", begin=self._published)
        try:
            yield
        finally:
            traffic.stop()
        assert not traffic.refused and not traffic.repeated
        self._published = traffic.published
        self._stored |= set.union(*traffic.stored.values())

    def _new_tokens(self) -> str:
        """Issue the new tokens, and wait until regions have issued the operator's. Returns that of clients."""
        self._cluster.run(self._issue)
        self._sync_issuers()

        def is_issued() -> bool:
            lines = self._last_lines(self._is_issued)
            return len(lines) == len(REGIONS) and all(line.endswith("key 2026-11") for line in lines)

        self._cluster.wait(is_issued, "every region to issue the operator's token with the new key")
        self._cluster.run(
            ".venv/bin/meridian tokens create --secret-key 2026-11.key --key-id 2026-11 --subject admin --expires 90d "
            "--to admin.new && mv admin.new tokens/admin.jwt"
        )
        return self._token.read_text().strip()

    def _more(self, clients: Newcomers) -> None:
        """Wait until some more of them have come to every region."""
        came = clients.came
        self._cluster.wait(lambda: clients.came > came + 2 * len(REGIONS), "clients with new tokens to connect")

    def _end_of_old_key(self) -> None:
        patch, is_there, delete = self._finish.splitlines()
        self._cluster.run(patch)
        self._sync_brokers()
        self._again(is_there, "the new key under the old one's name")
        self._cluster.run(delete)
        self._wait_for("token keys reloaded", "1 in force")

    def _until(self, block: str, said: str) -> None:
        """Run a block, and repeat its last command, which shows all regions' logs, until each log has this line."""
        *commands, shows = block.splitlines()
        self._cluster.run("\n".join(commands))
        self._sync_brokers()

        def is_said() -> bool:
            lines = self._last_lines(shows)
            return len(lines) == len(REGIONS) and all(said in line for line in lines)

        self._cluster.wait(is_said, f"every region to log {said!r}")

    def _wait_for(self, line: str, said: str) -> None:
        self._sync_brokers()
        for region in REGIONS:
            shows = f"kubectl -n {region} logs meridian-broker-0 -c broker | grep '{line}' | tail -n 1"
            self._cluster.wait(partial(self._prints, shows, said), f"{region} to log {said!r}")

    def _prints(self, shows: str, said: str) -> bool:
        return any(said in line for line in self._last_lines(shows))

    def _last_lines(self, shows: str) -> list[str]:
        """What a block that ends in ``grep`` and ``tail`` prints: nothing, as long as a log has no such line."""
        return self._cluster.run(f"set +o pipefail; {shows}").splitlines()

    def _again(self, command: str, what: str) -> None:
        """Run a command until it prints nothing."""
        self._cluster.wait(lambda: not self._cluster.run(f"{{ {command.strip()}; }} 2>&1 || true"), what)

    def _sync_brokers(self) -> None:
        for region in REGIONS:
            self._sync(region, "meridian-broker-0")

    def _sync_issuers(self) -> None:
        for region in REGIONS:
            self._sync(region, "-l app.kubernetes.io/component=token-issuer")

    def _sync(self, namespace: str, pods: str) -> None:
        """Make the kubelet update the pods' Secrets now. Otherwise it does so about once a minute."""
        self._cluster.run(f'kubectl -n {namespace} annotate --overwrite pod {pods} looked-at="$(date +%s%N)"')

    def _are_refused(self, token: str) -> None:
        """Clients with this token, in every region."""
        (self._cluster.directory / "old.jwt").write_text(token)
        ask = "cat >/tmp/old.jwt && ! meridian tenants list --url http://127.0.0.1:8080 --token-file /tmp/old.jwt 2>&1"
        for region in REGIONS:
            told = self._cluster.run(
                f"kubectl -n {region} exec -i meridian-broker-0 -c broker -- sh -c '{ask}' < old.jwt"
            )
            assert "not signed with this region's key" in told
