# SPDX-License-Identifier: Apache-2.0
"""``meridian-operator``: the process. One replica acts; the others stand by."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from meridian_operator.api.settings import Settings, parsed
from meridian_operator.handlers import watching
from meridian_operator.handlers.desk import Desk
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import KubeClient
from meridian_operator.kube.leases import LeaseObject
from meridian_operator.plan.budget import Budget
from meridian_operator.process import logs
from meridian_operator.process.leading import Leadership
from meridian_operator.process.metrics import KUBERNETES, Metrics
from meridian_operator.process.web import served
from meridian_operator.regions.directory import Authorities, Tokens

_HANDLERS = watching
"""Importing the module registers the handlers."""
NUMBERS_PER_SECOND = 3.0
"""Status writes per second in which only numbers changed, over all objects."""


def main() -> None:
    """Run until SIGTERM or until the Lease is lost. Kubernetes then restarts the container, which stands by."""
    arguments = _arguments()
    logs.set_up(arguments.log_level)
    sys.exit(asyncio.run(_run(arguments)))


async def _run(arguments: argparse.Namespace) -> int:
    """Return the exit code."""
    settings, memo, stop = kopf.OperatorSettings(), kopf.Memo(settings=arguments.settings), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # kopf installs its own handlers once it runs
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        leading = None
        if arguments.lease is not None:
            leading = await stack.enter_async_context(_candidacy(settings, *arguments.lease))
        tokens = Tokens(arguments.tokens, issuers(arguments.settings))
        metrics = Metrics(
            acts=lambda: leading is None or leading.acts,
            objects=lambda: memo.desk.ready() if "desk" in memo else {},
            expiries=partial(tokens.expiries, arguments.settings.regions),
        )
        if arguments.port is not None:
            await stack.enter_async_context(served(arguments.port, metrics))
        if leading is None:
            await _operate(arguments, settings, memo, stop, metrics, tokens)
            return 0
        if not await _before(stop, leading.stand_by()):
            return 0
        keeping = asyncio.create_task(leading.keep(), name="lease")
        keeping.add_done_callback(lambda _: stop.set())
        await _operate(arguments, settings, memo, stop, metrics, tokens, leading)
        await leading.release()
        keeping.cancel()
        await asyncio.wait([keeping])
        return 0 if leading.released else 1


@contextlib.asynccontextmanager
async def _candidacy(settings: kopf.OperatorSettings, namespace: str, name: str) -> AsyncIterator[Leadership]:
    """A candidate for the Lease."""
    kube = KubeClient(partial(_connection, settings))
    me = f"{socket.gethostname()}_{secrets.token_hex(8)}"
    leading = Leadership(LeaseObject(kube, namespace, name), me, time.monotonic, partial(datetime.now, UTC))
    try:
        yield leading
    finally:
        await kube.close()


async def _before(stop: asyncio.Event, what: Coroutine[Any, Any, None]) -> bool:
    """Run ``what`` until it completes or the process is told to stop. Returns whether it completed first."""
    tasks = [asyncio.create_task(what), asyncio.create_task(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    if not tasks[0].cancelled():
        tasks[0].result()
    return not stop.is_set()


async def _operate(
    arguments: argparse.Namespace,
    settings: kopf.OperatorSettings,
    memo: kopf.Memo,
    stop: asyncio.Event,
    metrics: Metrics,
    tokens: Tokens,
    leading: Leadership | None = None,
) -> None:
    """Watch and act until told to stop."""
    fences = () if leading is None else (leading.fence(),)

    @kopf.on.login()
    def login(**_: Any) -> kopf.ConnectionInfo | None:
        return _connection(settings)

    @kopf.on.startup()
    async def begin(memo: Any, **_: Any) -> None:
        kube = KubeClient(partial(_connection, settings), (*fences, metrics.counting(KUBERNETES)))
        memo.world = world(arguments.settings, tokens, arguments.authorities, kube, (*fences, metrics.counting()))
        memo.desk = Desk(memo.world, arguments.namespace)

    @kopf.on.cleanup()
    async def end(memo: Any, **_: Any) -> None:
        await memo.desk.close()
        await memo.world.close()
        if leading is not None:
            await leading.release()  # kopf takes seconds to exit, but does no more work

    await kopf.operator(
        settings=settings,
        memo=memo,
        clusterwide=not arguments.namespace,
        namespaces=arguments.namespace,
        stop_flag=stop,
        standalone=True,
    )


def world(
    settings: Settings,
    tokens: Tokens,
    authorities: Path | None,
    kube: KubeClient,
    traces: Sequence[aiohttp.TraceConfig] = (),
) -> World:
    """Everything outside the process, as the operator uses it."""
    # Each region limits its own concurrent calls and their duration: nothing waits for a connection.
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    http = aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=list(traces))
    numbers = Budget(NUMBERS_PER_SECOND, NUMBERS_PER_SECOND, time.monotonic)
    return World(http, tokens, kube, random.random, numbers, settings, Authorities(authorities))


def issuers(settings: Settings) -> dict[str, str]:
    """Regions that issue the operator's token -> the service account that issues it there."""
    return {name: one.token_issuer for name, one in settings.regions.items() if one.token_secret}


def _connection(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    """The API server, as this process may use it."""
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if not isinstance(found, kopf.ConnectionInfo):
        raise kopf.LoginError("found neither a service account nor a kubeconfig")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="meridian-operator",
        description="Reconciles every region with the GeoTopic and ReplicatedSubscription objects.",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch only this namespace; repeatable. Default: all namespaces",
    )
    parser.add_argument(
        "--settings",
        type=_settings,
        default=Settings(),
        metavar="FILE",
        help="JSON: regions (name to url), tenantsByNamespace (namespace to tenants, * for all), verdictsNamespace and "
        "verifiers",
    )
    parser.add_argument(
        "--tokens",
        type=Path,
        metavar="DIR",
        help="directory of bearer tokens for the regions' admin API: one file per region, or one named default",
    )
    parser.add_argument(
        "--authorities",
        type=Path,
        metavar="DIR",
        help="directory of certificate authorities, PEM, for regions at https addresses: one file per region, or one "
        "named default. Default: the system's authorities",
    )
    parser.add_argument(
        "--lease",
        type=_names,
        metavar="NAMESPACE/NAME",
        help="act only while holding this Lease, which all replicas share. Default: act at once",
    )
    parser.add_argument("--port", type=int, help="serve /healthz and /metrics on this port")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser.parse_args()


def _settings(path: str) -> Settings:
    try:
        return parsed(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error


def _names(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form NAMESPACE/NAME")
    return namespace, name


if __name__ == "__main__":
    main()
