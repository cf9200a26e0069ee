# SPDX-License-Identifier: Apache-2.0
"""The admin API's view of the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meridian_broker.engines.pinned import PinnedLedgers
from meridian_broker.gateway.broker_calls import BrokerCalls
from meridian_broker.gateway.exchange import ExchangeShell
from meridian_broker.gateway.metadata_sync import MetadataSync
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.replication import ReplicatorRunner
from meridian_broker.gateway.shadow_replication import ShadowReplication
from meridian_broker.ledgers.periodic import WorkState
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.ownership.owner import BundleOwner
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.topics.service.offloading import OffloadRounds
from meridian_broker.topics.service.service import TopicService
from meridian_broker.wire.peer_requests import Guard


class ChangeableSettings(Protocol):
    """The broker's settings, some of which can be changed while brokers run."""

    @property
    def names(self) -> list[str]:
        """Names of those that can be changed."""
        ...

    @property
    def changed(self) -> Mapping[str, str]:
        """The settings that were changed."""
        ...

    def in_force(self) -> dict[str, str]:
        """Every setting and its value."""
        ...

    async def change(self, key: str, value: str | None, /) -> None:
        """Change one for all brokers of the region; None: each broker's own value applies again.

        :raises Invalid: it cannot be changed, or not to this value.
        """
        ...


@dataclass
class AdminState:
    """The parts of one broker process that handlers use."""

    region: str
    work: Callable[[], list[WorkState]]
    """How each kind of periodic work is doing."""
    metadata_full: Callable[[], str | None]
    """Why the metadata store has no room for writes; None: it has."""
    service: TopicService
    catalog: Catalog
    leases: LeaseManager
    """Which region dispatches which messages, for subscriptions with dispatch scope origin."""
    exchange: ExchangeShell
    replication: ReplicatorRunner
    shadow_replication: ShadowReplication | None
    """To shadows at the region's other brokers; None: there are none."""
    ledgers: LedgerStorage
    held: PinnedLedgers
    """The same ledgers, for handlers that must keep some from being deleted."""
    offload: OffloadRounds | None
    """Copies of ledgers in an object store; None: there is none."""
    gateway: Broker
    settings: ChangeableSettings
    default_bundles: Callable[[], int]
    """Returns the number of bundles for a namespace created without one."""
    data_directory: Path
    admin_url: Callable[[], str]
    calls: RegionCalls
    """Calls to the admin APIs of other regions."""
    metadata_sync: MetadataSync
    """What keeps metadata equal in all regions."""
    guard: Guard
    """Knows the calls of other regions."""
    owner: BundleOwner | None = None
    """The bundles of this broker; None: it is its region's only one, which serves all of them."""
    brokers: BrokerCalls | None = None
    """Calls to the admin APIs of the region's other brokers; None: there are none."""
    faults: bool = False
    """This broker is under test and may lose messages on request."""
    sync_metrics: bool = False
    """Metrics also show how far each region is behind with each subscription."""
    ready: bool = False
    """Everything is open: the health check says ok."""
