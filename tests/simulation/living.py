# SPDX-License-Identifier: Apache-2.0
"""The regions of a topic, as the admin API writes them to a region's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from meridian_broker.metadata import policy_table
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name

if TYPE_CHECKING:
    from simulation.stage import Broker


async def live_in(broker: Broker, topic: str, regions: Iterable[str]) -> None:
    """From now on the region uses this list."""
    value: dict[str, Any] = dict.fromkeys(regions, True)
    name = topic_name.parse(full_name(topic))
    await broker.service.parts.catalog.topic_policies.set_policy(name, policy_table.REPLICATION, value)
    await broker.service.parts.catalog.refresh()  # here nothing watches the store, as brokers do
    await broker.service.policies.follow()
