# SPDX-License-Identifier: Apache-2.0
"""What a broker reaches other regions with: its identity, their addresses, calls to their admin API, replicators."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meridian_broker.gateway import tls
from meridian_broker.gateway.client_options import ClientOptions, peer_options, pulsar_options
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.pulsar_admin import PulsarAdmin
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.replication import PulsarRegions, ReplicatorRunner
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.records import ClusterRecord
from meridian_broker.server.keys import Keys
from meridian_broker.server.region_addresses import RegionAddresses
from meridian_broker.server.settings import Settings


@dataclass(frozen=True, slots=True)
class RegionLinks:
    """Made once, when the stores are open. Whoever opened them closes ``runner``."""

    identity: PeerIdentity
    addresses: RegionAddresses
    options: ClientOptions
    """Of connections to Meridian's brokers."""
    calls: RegionCalls
    runner: ReplicatorRunner


def region_links(
    settings: Settings,
    keys: Keys,
    catalog: Catalog,
    listed: Mapping[str, ClusterRecord],
    scheduler: Scheduler,
    client_tls: tls.ContextSource | None,
) -> RegionLinks:
    """:param listed: regions in the file that the settings name."""
    region = settings.region.cluster_name
    identity = PeerIdentity(region, lambda: keys.peer_secrets, os.urandom, settings.brokers.broker_id)
    options = peer_options(identity, ClientOptions(tls=client_tls))
    addresses = RegionAddresses(catalog, listed, has_tls=client_tls is not None)
    calls = RegionCalls(identity, addresses.resolve, client_tls, scheduler.monotonic_ms)
    runner = ReplicatorRunner(
        *(region, addresses.resolve, options, calls, _pulsar_regions(settings, catalog, addresses, client_tls)),
        jitter=random.Random().random,
        now_ms=scheduler.now_ms,
        queue_size=settings.replication.replication_producer_queue_size,
    )
    return RegionLinks(identity, addresses, options, calls, runner)


def _pulsar_regions(
    settings: Settings, catalog: Catalog, addresses: RegionAddresses, client_tls: tls.ContextSource | None
) -> PulsarRegions:
    file = settings.authentication.broker_client_token_file
    token = None if file is None else partial(_token_in, file)
    return PulsarRegions(
        lambda region: region in catalog.pulsar_regions(),
        pulsar_options(token, ClientOptions(tls=client_tls)),
        PulsarAdmin(addresses.resolve, token, client_tls),
    )


def _token_in(file: Path) -> bytes:
    """:raises OSError: it cannot be read."""
    return file.read_bytes().strip()
