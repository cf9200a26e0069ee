# SPDX-License-Identifier: Apache-2.0
"""Quarantined copies of topics: kept under another name, in this region alone, until deleted by hand (R8)."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from meridian_broker.metadata.policy_table import REPLICATION
from meridian_broker.metadata.topic_catalog import ASIDE
from meridian_broker.positions import Stamp
from meridian_broker.topics.journal.topic_record import QUARANTINED
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts

log = logging.getLogger(__name__)


async def move(parts: BrokerParts, name: TopicName, why: str, stamp: Stamp | None) -> TopicName:
    """Move the record of a topic that is not open to the name of a copy, which is returned."""
    time_ms = parts.scheduler.now_ms() if stamp is None else stamp.time_ms
    to = await _free_name(parts, name, time_ms)
    await parts.catalog.topic_policies.set_policy(to, REPLICATION, {parts.region: True})
    await parts.catalog.topics.move(name, to, {QUARANTINED: why}, stamp)
    log.warning("%s: it is kept as %s in %s only; inspect it, then delete it", why, to, parts.region)
    return to


async def _free_name(parts: BrokerParts, name: TopicName, time_ms: int) -> TopicName:
    """The name with this time may be in use: from before a restore of the metadata (R5), or of the same millisecond."""
    aside = f"{name.local_name}{ASIDE}{time_ms}"
    for again in count(2):
        to = TopicName(name.domain, name.tenant, name.namespace, aside)
        if await parts.catalog.topics.find(to) is None:
            return to
        aside = f"{name.local_name}{ASIDE}{time_ms}-{again}"
    raise AssertionError("unreachable")
