# SPDX-License-Identifier: Apache-2.0
"""Two real regions, ``east`` and ``west``, that require tokens and authenticate each other with a secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pulsar
from click.testing import CliRunner
from meridian_broker.cli.tokens import tokens
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http
from support.brokers.free_ports import free_port
from support.protocol.raw_connection import RawConnection, T


class Guarded:
    """Two regions that require tokens."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """:param settings: in addition to those that tokens need."""
        self.directory = directory
        self.keys = directory / "keys"
        self.keys.mkdir()
        self.key = self.keys / "first.key"
        tokens_command("create-secret-key", str(self.key))
        self.private = directory / "private.pem"
        tokens_command("create-key-pair", str(self.private), str(self.keys / "pair.pem"), "--algorithm", "ES256")
        self.admin = self.token("admin")
        self.app = self.token("app")
        self.peer = "only the brokers of these regions know this"
        self.peer_files = {name: directory / f"{name}.peer" for name in ("east", "west")}
        for file in self.peer_files.values():
            file.write_text(self.peer)
            file.chmod(0o600)
        ports = {name: (free_port(), free_port()) for name in self.peer_files}
        regions = directory / "regions.json"
        listed = [
            {"name": name, "service_url": f"pulsar://127.0.0.1:{port}", "admin_url": f"http://127.0.0.1:{web}"}
            for name, (port, web) in ports.items()
        ]
        regions.write_text(json.dumps({"regions": listed}))
        self.brokers = {
            name: BrokerProcess(
                name,
                directory / name,
                port=port,
                http_port=web,
                regions_file=regions,
                peer_token_file=self.peer_files[name],
                settings={
                    "authenticationEnabled": "true",
                    "tokenSecretKey": f"file://{self.keys}",
                    "tokenPublicKey": str(self.keys),
                    "tokenPublicAlg": "ES256",
                    "superUserRoles": "admin,other",
                    **settings,
                },
            )
            for name, (port, web) in ports.items()
        }

    def token(self, subject: str, *options: str, key: Path | None = None) -> str:
        return tokens_command("create", "--secret-key", str(key or self.key), "--subject", subject, *options).strip()

    def client(self, region: str, token: str | Callable[[], str] | None) -> pulsar.Client:
        return pulsar.Client(
            self.brokers[region].service_url,
            authentication=None if token is None else pulsar.AuthenticationToken(token),
            operation_timeout_seconds=60,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def ask(self, path: str, token: str | None = None, method: str = "GET", *, of: str = "east") -> int:
        """The HTTP status of a region's answer."""
        return self.answer(path, token, method, of=of).status

    def answer(
        self, path: str, token: str | None = None, method: str = "GET", body: Any = ..., *, of: str = "east"
    ) -> HttpAnswer:
        """A region's answer."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return http(method, self.brokers[of].admin_url + path, body, headers=headers)


async def shown_by(port: int, token: str, *, can_refresh: bool = False) -> tuple[RawConnection, Any]:
    """Connect with this token; return the connection and the answer."""
    connection = RawConnection(*await asyncio.open_connection("127.0.0.1", port))
    flags = pb.FeatureFlags(supports_auth_refresh=can_refresh)
    shown = pb.CommandConnect(
        client_version="raw", auth_method_name="token", auth_data=token.encode(), feature_flags=flags
    )
    connection.say(T.CONNECT, shown)
    return connection, await connection.hear_any()


def new_token(token: str) -> pb.CommandAuthResponse:
    return pb.CommandAuthResponse(response=pb.AuthData(auth_method_name="token", auth_data=token.encode()))


def tokens_command(*arguments: str) -> str:
    """What ``meridian tokens`` prints, run in this process: starting one would cost more than the command itself."""
    made = CliRunner().invoke(tokens, arguments, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    return made.stdout


def guarded_regions(directory: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Guarded]:
    """Regions that run until the iterator is resumed."""
    regions = Guarded(directory, settings)
    with contextlib.ExitStack() as stack:
        for broker in regions.brokers.values():
            stack.enter_context(broker.start(wait=False))
        for broker in regions.brokers.values():
            broker.wait_healthy()
        yield regions
