# SPDX-License-Identifier: Apache-2.0
"""``meridian-operator``: the process.

One replica at a time. kopf's own marks on objects (annotations, finalizer) carry our group's name from the first day
on, because changing them later would replay every handler.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from meridian_operator.api.shared import GROUP
from meridian_operator.handlers import geo_topics, replicated_subscriptions, world
from meridian_operator.handlers.world import PARALLEL_REGIONS, World
from meridian_operator.regions.client import CALL_SECONDS
from meridian_operator.regions.directory import Tokens

_HANDLERS = (geo_topics, replicated_subscriptions, world)
"""Importing them registered them."""


def main() -> None:
    """Run until SIGTERM."""
    arguments = _arguments()
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    @kopf.on.startup()
    async def begin(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
        settings.persistence.finalizer = f"{GROUP}/finalizer"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, key="last-handled")
        settings.execution.default_backoff = 5
        connector = aiohttp.TCPConnector(limit=4 * PARALLEL_REGIONS, limit_per_host=8)
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        memo.world = World(aiohttp.ClientSession(connector=connector, timeout=timeout), Tokens(arguments.tokens))

    @kopf.on.cleanup()
    async def end(memo: Any, **_: Any) -> None:
        await memo.world.http.close()

    kopf.run(
        clusterwide=not arguments.namespace,
        namespaces=arguments.namespace,
        liveness_endpoint=arguments.liveness or None,
        standalone=True,
    )


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
