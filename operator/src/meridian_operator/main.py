# SPDX-License-Identifier: Apache-2.0
"""``meridian-operator``: the process. One replica at a time."""

from __future__ import annotations

import argparse
import logging
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from meridian_operator.handlers import watching
from meridian_operator.handlers.budget import Budget
from meridian_operator.handlers.desk import Desk
from meridian_operator.handlers.world import PARALLEL_REGIONS, World
from meridian_operator.kube.client import KubeClient
from meridian_operator.regions.client import CALL_SECONDS
from meridian_operator.regions.directory import Tokens

_HANDLERS = watching
"""Importing it registered them."""
NUMBERS_PER_SECOND = 3.0
"""Statuses in which only numbers moved that are written a second, of all objects together."""


def main() -> None:
    """Run until SIGTERM."""
    arguments = _arguments()
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # the desk says what happens to an object
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # each probe would be a line

    @kopf.on.login()
    def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        return _connection(settings)

    @kopf.on.startup()
    async def begin(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
        memo.world = world(arguments.tokens, KubeClient(partial(_connection, settings)))
        memo.desk = Desk(memo.world)

    @kopf.on.cleanup()
    async def end(memo: Any, **_: Any) -> None:
        await memo.desk.close()
        await memo.world.close()

    kopf.run(
        clusterwide=not arguments.namespace,
        namespaces=arguments.namespace,
        liveness_endpoint=arguments.liveness or None,
        standalone=True,
    )


def world(tokens: Path | None, kube: KubeClient) -> World:
    """Everything outside of the process, as the operator uses it."""
    connector = aiohttp.TCPConnector(limit=4 * PARALLEL_REGIONS, limit_per_host=8)
    timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
    http = aiohttp.ClientSession(connector=connector, timeout=timeout)
    return World(http, Tokens(tokens), kube, random.random, Budget(NUMBERS_PER_SECOND, time.monotonic))


def _connection(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    """The API server, as this process may use it."""
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if not isinstance(found, kopf.ConnectionInfo):
        raise kopf.LoginError("there is neither a service account nor a kubeconfig")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="meridian-operator",
        description="Turns GeoTopic and ReplicatedSubscription objects into what every region's brokers hold.",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch this namespace only; may be given again. Default: all namespaces",
    )
    parser.add_argument(
        "--tokens",
        type=Path,
        metavar="DIR",
        help="directory of bearer tokens for the regions' admin API: one file per region's name, or one named default",
    )
    parser.add_argument(
        "--liveness", default="", metavar="URL", help="answer probes there, for example http://0.0.0.0:8081/healthz"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser.parse_args()


if __name__ == "__main__":
    main()
