# SPDX-License-Identifier: Apache-2.0
"""Reads the verifiers' ConfigMaps: all of them once, then every change.

kopf watches a kind either in the namespaces of the custom resources or in all. Verdicts come from one other namespace,
and the operator should not be able to read ConfigMaps anywhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

from meridian_operator.api.settings import Settings
from meridian_operator.handlers.watch import Watch
from meridian_operator.kube.client import KubeClient, KubeError
from meridian_operator.plan.verdicts import LABEL, Verdicts

RETRY_SECONDS: Final = 5.0
"""Delay before the ConfigMaps are listed again after a list or a watch has failed."""
BETWEEN_SECONDS: Final = 1.0
"""Pause between two watches, however early the first one ended."""
_log = logging.getLogger(__name__)


class VerdictWatch(Watch):
    """Keeps ``verdicts`` up to date.

    :param sleep: sleeps for the given seconds.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: Settings,
        verdicts: Verdicts,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._namespace = settings.verdicts_namespace
        names = quote(f"{LABEL} in ({','.join(settings.verifiers)})", safe="")
        self._path = f"/api/v1/namespaces/{self._namespace}/configmaps?labelSelector={names}"
        self._verdicts = verdicts
        self._sleep = sleep
        super().__init__("verdicts")

    async def _run(self) -> None:
        if not self._namespace:
            self._tried.set()
            return
        while True:
            try:
                version = await self._list()
            except Exception as error:  # no answer, whatever it contains, may end this task
                self._failed(_why(error))
            else:
                self._verdicts.problem = ""
                self._tried.set()
                await self._follow(version)
            self._tried.set()
            await self._sleep(RETRY_SECONDS)

    def _failed(self, why: str) -> None:
        text = f"ConfigMaps in namespace {self._namespace}: {why}"
        if text != self._verdicts.problem:
            _log.warning("cannot read verdicts, will retry: %s", text)
        self._verdicts.problem = text

    async def _list(self) -> str:
        """Read them all. Returns the version at which a watch continues.

        :raises KubeError: the API server refused or did not answer.
        """
        names: set[str] = set()
        version = ""
        async for page, listed_at in self._kube.pages(self._path):
            version = listed_at
            for body in page:
                self._verdicts.put(body)
                names.add(_name(body))
        self._verdicts.keep(names)
        return version

    async def _follow(self, version: str) -> None:
        """Watch until the watch fails. That also happens when nothing is wrong: its version becomes too old, or its
        connection ends. Only a failed list means that verdicts cannot be read.
        """
        try:
            while True:
                async with aclosing(self._kube.watch(self._path, version)) as changes:
                    async for kind, body in changes:
                        version = str(body["metadata"]["resourceVersion"])
                        if kind == "DELETED":
                            self._verdicts.forget(_name(body))
                        elif kind in ("ADDED", "MODIFIED"):
                            self._verdicts.put(body)
                await self._sleep(BETWEEN_SECONDS)
        except Exception as error:
            _log.info("the watch of verdicts ended, so they are listed again: %s", _why(error))


def _why(error: Exception) -> str:
    if isinstance(error, KubeError):
        return str(error)
    return f"the API server does not answer like Kubernetes: {error!r}"[:500]


def _name(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["name"])
