# SPDX-License-Identifier: Apache-2.0
"""Reads the tokens that regions issue to the operator, each from its own Secret.

The operator may read these Secrets and no others. It polls them instead of mounting them: Kubernetes updates the files
of a running pod a minute after the Secret, and the first token is needed at once.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from meridian_operator.api.settings import Settings
from meridian_operator.handlers.watch import Watch
from meridian_operator.kube.client import KubeClient, KubeError
from meridian_operator.regions.directory import Tokens

LOOK_SECONDS: Final = 60.0
"""Interval between reads of the Secrets. A token is renewed when half of its lifetime is over."""
MISSING_SECONDS: Final = 2.0
"""The interval while a region has not issued a token, or its Secret cannot be read."""
LARGEST_TOKEN: Final = 16 * 1024
_TOKEN: Final = re.compile(r"[-\w.]+", re.ASCII)
_log = logging.getLogger(__name__)


class TokenWatch(Watch):
    """Keeps ``tokens`` up to date. A token that was read stays in force while its Secret cannot be read.

    :param sleep: sleeps for the given seconds.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: Settings,
        tokens: Tokens,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._secrets = {name: one.token_secret for name, one in settings.regions.items() if one.token_secret}
        self._tokens = tokens
        self._sleep = sleep
        self._told: dict[str, str] = {}
        super().__init__("tokens")

    async def _run(self) -> None:
        while self._secrets:
            read = [await self._read(region, place) for region, place in self._secrets.items()]
            self._tried.set()
            await self._sleep(LOOK_SECONDS if all(read) else MISSING_SECONDS)
        self._tried.set()

    async def _read(self, region: str, place: str) -> bool:
        """Whether the Secret has a token."""
        namespace, _, name = place.partition("/")
        try:
            found = await self._kube.send("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
            token = base64.b64decode((found.get("data") or {}).get("token") or "").decode("ascii")
        except (KubeError, ValueError, TypeError, AttributeError) as error:
            self._tell(region, f"cannot read the token for region {region} in Secret {place}: {error}"[:500])
            return False
        if not token:
            self._tell(region, f"region {region} has not put a token into Secret {place} yet")
            return False
        if len(token) > LARGEST_TOKEN or not _TOKEN.fullmatch(token):
            self._tell(region, f"Secret {place} of region {region} does not hold a valid token")
            return False
        self._told.pop(region, None)
        self._tokens.issue(region, token)
        return True

    def _tell(self, region: str, text: str) -> None:
        """Log it once."""
        if self._told.get(region) != text:
            self._told[region] = text
            _log.warning("%s", text)
