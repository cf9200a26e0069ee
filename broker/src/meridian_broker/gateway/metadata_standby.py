# SPDX-License-Identifier: Apache-2.0
"""Whether the region's metadata events are being applied, as its other brokers ask the broker that should apply them.

The owner of the event topic applies them. If it dies, the topic has no owner until its session has ended, and nothing
can arrive in it. So each other broker asks the owner again and again. While the owner applies events, it delays its
answer; when its process dies, the connection breaks at once; and a dead machine does not answer in time. While nobody
applies events, the brokers that ask compare the region with the others several times a second (``metadata_session``),
which needs neither the topic nor a position in it.

A wrong suspicion costs comparisons and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

from meridian_broker.gateway.addresses import Locate
from meridian_broker.gateway.metadata_peers import BASE
from meridian_broker.gateway.region_calls import CallFailed, RegionCalls
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar import topic_name

HOLD_SECONDS: Final = 1.0
"""How long the broker that applies events delays its answer."""
SILENT_SECONDS: Final = 1.5
"""A broker that does not answer within this time counts as dead."""
OLDER: Final = (403, 404)
"""A broker of an earlier version, which does not know the request, is alive."""

log = logging.getLogger(__name__)


class Standby:
    """See the module's text."""

    def __init__(self, region: str, locate: Locate, calls: RegionCalls) -> None:
        """:param region: this one."""
        self._region = region
        self._locate = locate
        self._calls = calls

    async def is_applied(self, topic: str) -> bool:
        """Whether another broker of the region says that it applies the events of this topic."""
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                place = await self._locate(topic_name.parse(topic), "", False)
                if place is None or not place.owns or place.addresses is None:
                    return False
                address = place.addresses.admin_url or place.addresses.admin_url_tls or ""
                status, said = await self._calls.ask_at(
                    self._region, address, "GET", f"{BASE}/applying", b"", seconds=SILENT_SECONDS
                )
                return status in OLDER or (status < 300 and json.loads(said)["applying"] is True)
        except (TimeoutError, CallFailed, TopicError, MetadataError, LedgerError) as error:
            log.debug("no broker is known to apply events of %s: %r", topic, error)
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "the owner of %s sent an answer unknown to this version, so this broker stands in for it: %r",
                topic,
                error,
            )
        return False
