# SPDX-License-Identifier: Apache-2.0
"""Streams of other brokers of the region, passed on to clients as fast as these read them: a client may reach only the
one address that it asks, and need not know which broker has what."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiohttp import web

from meridian_broker.admin.export.refusals import ExportBusy, SnapshotGone
from meridian_broker.admin.http.requests import Refused
from meridian_broker.bounds.http import STALLED_SECONDS
from meridian_broker.gateway.broker_calls import BrokerAway, BrokerCalls

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
RELAYS_MAX: Final = 64
"""Streams that are passed on at once; the brokers' own limits are lower."""
QUIET_SECONDS: Final = 300.0
"""How long another broker may send nothing of a stream, which may have to wait for a child."""


class Relays:
    """See the module's text."""

    def __init__(self) -> None:
        self._open = 0

    async def pass_on(
        self, request: web.Request, calls: BrokerCalls, broker: str, url: str, path: str
    ) -> web.StreamResponse:
        """Answer a request with what another broker sends.

        :param url: of its admin API.
        :param path: already quoted; may have a query.
        :raises SnapshotGone: the other broker has no such snapshot, or no longer.
        :raises Refused: it refuses, or cannot be reached, or too many streams are open.
        """
        if self._open >= RELAYS_MAX:
            raise ExportBusy(f"{RELAYS_MAX} streams of other brokers are being sent: try again in a moment")
        self._open += 1
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        try:
            authorization = request.headers.get("Authorization")
            async with calls.stream(url, path, authorization, seconds=QUIET_SECONDS) as said:
                if said.status == 404:
                    raise SnapshotGone(f"broker {broker}: {await said.reason()}")
                if said.status != 200:
                    status = said.status if said.status >= 400 else 503
                    raise Refused(status, f"broker {broker}: {await said.reason()}")
                await response.prepare(request)
                async for data in said.chunks:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await response.write(data)
                await response.write_eof()
        except BrokerAway as error:
            if not response.prepared:
                raise ExportBusy(f"broker {broker}, which has this part: {error}") from None
            log.warning("%s broke off, and has to be requested again: broker %s: %s", request.path, broker, error)
            break_off(request)
        except (ConnectionError, TimeoutError):
            break_off(request)  # the client is gone
        finally:
            self._open -= 1
        return response


def break_off(request: web.Request) -> None:
    """End the response without its last chunk: it is incomplete."""
    if request.transport is not None:
        request.transport.abort()
