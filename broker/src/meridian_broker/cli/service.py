# SPDX-License-Identifier: Apache-2.0
"""Shared by ``meridian produce`` and ``meridian consume``: finding the broker of a topic, Ctrl-C, and exit codes.

The exit codes are those of all commands (``output``): 1 if the broker refuses, 2 for a request that never reached
it or was never answered.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import click

from meridian_broker.cli.output import COULD_NOT_TELL, NO, error, token_file_option, trust_option, trusting
from meridian_broker.cli.rest import AdminUnreachable, read_token
from meridian_broker.gateway.authentication import METHOD
from meridian_broker.gateway.client import MAX_REDIRECTS, PulsarClientConnection
from meridian_broker.gateway.client_errors import ClientError, ConnectFailed, RequestRefused
from meridian_broker.gateway.client_options import ClientOptions, split_url

_ADMIN_SCHEMES: Final = ("http://", "https://")


def service_url(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """A service URL as typed.

    :raises click.BadParameter: it is something else; the message recognises the admin address of other commands.
    """
    if text.startswith(_ADMIN_SCHEMES):
        raise click.BadParameter(
            f"{text} is an admin address. Messages go over the service URL, as in pulsar://127.0.0.1:6650; "
            "`meridian regions list` shows both"
        )
    try:
        split_url(text)
    except ValueError as failure:
        raise click.BadParameter(str(failure)) from failure
    return text


@dataclass(frozen=True, slots=True)
class Access:
    """A region, and how to authenticate there."""

    url: str
    token: str | None
    authorities: Path | None
    """CA certificates to trust; None: the system's."""
    listener: str | None
    """Name of the brokers' advertised listener to use; None: the default one."""

    def options(self) -> ClientOptions:
        """Options of the connections.

        :raises click.BadParameter: the file contains no certificates.
        """
        options = ClientOptions(client_version="meridian-cli", tls=trusting(self.authorities))
        if self.token is None:
            return options
        return replace(options, auth_method=METHOD, auth_data=self.token.encode())


def service_option(command: Callable[..., None]) -> Callable[..., None]:
    """``--url``, ``--token-file`` and ``--tls-trust-certs`` as the commands that move messages take them; all come as
    one ``access``."""

    @trust_option
    @click.option(
        "--url",
        envvar="MERIDIAN_SERVICE_URL",
        default="pulsar://127.0.0.1:6650",
        show_default=True,
        show_envvar=True,
        callback=service_url,
        help="Service URL of a region.",
    )
    @token_file_option
    @click.option("--listener-name", help="Which advertised address to use, if brokers have several.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        url: str,
        token_file: Path | None,
        tls_trust_certs: Path | None,
        listener_name: str | None,
        **kwargs: Any,
    ) -> None:
        try:
            token = read_token(token_file) if token_file else None
        except AdminUnreachable as problem:
            error(problem)
            raise SystemExit(COULD_NOT_TELL) from None
        command(*args, access=Access(url, token, tls_trust_certs, listener_name), **kwargs)

    return wrapped


class Service:
    """Connections to the brokers of a region, one per broker. Use it with ``async with``."""

    def __init__(self, access: Access) -> None:
        """:raises click.BadParameter: the file of CA certificates contains none."""
        self.url = access.url
        self._options = access.options()
        self._listener = access.listener
        self._connections: dict[str, PulsarClientConnection] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._connect(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def topics(self, topic: str) -> list[str]:
        """The topic itself, or its partitions. A missing topic is created if its namespace allows it."""
        count = await self._connections[self.url].partitions(topic, create=True)
        return [f"{topic}-partition-{number}" for number in range(count)] or [topic]

    async def owner(self, topic: str) -> PulsarClientConnection:
        """A connection to the broker that serves the topic.

        :raises ClientError: no broker serves it, or the brokers redirect in a loop.
        """
        connection, authoritative = self._connections[self.url], False
        for _ in range(MAX_REDIRECTS):
            answer = await connection.lookup(topic, authoritative=authoritative, listener=self._listener)
            if not answer.through_proxy:
                connection = await self._connect(answer.url)
            if not answer.redirect:
                return connection
            authoritative = answer.authoritative
        raise ConnectFailed(f"the brokers redirect the lookup of {topic} in a loop ({MAX_REDIRECTS} redirects)")

    async def _connect(self, url: str) -> PulsarClientConnection:
        if url not in self._connections:
            made = await PulsarClientConnection.connect(url, self._options)
            self._stack.push_async_callback(made.close)
            self._connections[url] = made
        return self._connections[url]


async def until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` until it ends or is interrupted (Ctrl-C, SIGTERM); True: it was cut short.

    A second Ctrl-C, while the caller cleans up, ends the process the hard way.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    asked = False

    def stop() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return asked


def finish(program: Coroutine[Any, Any, int]) -> None:
    """Run a command's asynchronous half and exit with its code, or with that of its failure.

    :raises SystemExit: always.
    """
    try:
        code = asyncio.run(program)
    except RequestRefused as refusal:
        error(refusal)
        code = NO
    except ConnectFailed as failure:
        error(f"{failure}. Is the region up? `meridian up` starts one; --url or MERIDIAN_SERVICE_URL selects another")
        code = COULD_NOT_TELL
    except ClientError as failure:
        error(failure)
        code = COULD_NOT_TELL
    raise SystemExit(code)
