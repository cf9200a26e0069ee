# SPDX-License-Identifier: Apache-2.0
"""Addresses of regions: which one of another region may be used, and which of its own a region records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meridian_broker.gateway.addresses import Addresses
from meridian_broker.gateway.client_errors import ConnectFailed
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.records import ClusterRecord


@dataclass(frozen=True, slots=True)
class RegionAddresses:
    """Finds other regions.

    TLS exposes a man in the middle between two regions, so any cluster record may be used. Without TLS, anyone who can
    write such a record could be that man: then only the file named in the settings counts. A region of Apache Pulsar
    proves nothing about itself anyway: its record counts as it does in Pulsar.
    """

    catalog: Catalog
    listed: Mapping[str, ClusterRecord]
    """The records of that file, by region."""
    has_tls: bool

    def resolve(self, region: str) -> tuple[str, str | None] | None:
        """The address for brokers of other regions and the one for clients; None: there is no such region.

        :raises ConnectFailed: the region has no address that may be used.
        """
        if (found := self.catalog.cluster(region)) is not None and found.is_pulsar and not self.has_tls:
            if not found.broker_service_url:
                raise ConnectFailed(f"region {region} has no brokerServiceUrl")
            return found.broker_service_url, found.service_url or None
        if not self.has_tls:
            listed = self.listed.get(region)
            if listed is None:
                raise ConnectFailed(
                    f"not connecting to region {region}: without TLS (brokerClientTlsEnabled) its address must be in "
                    "regionsFile"
                )
            return listed.broker_service_url, listed.service_url
        cluster = self.catalog.cluster(region)
        if cluster is None:
            return None
        if not cluster.broker_service_url_tls:
            raise ConnectFailed(f"region {region} has no brokerServiceUrlTls, and brokerClientTlsEnabled is set")
        return cluster.broker_service_url_tls, cluster.service_url_tls or None


def own_record(own: Addresses | None) -> ClusterRecord:
    """This region's record for other regions and tools, where no file lists it."""
    mine = own or Addresses()
    return ClusterRecord(
        mine.admin_url or "", mine.admin_url_tls or "", mine.service_url or "", mine.service_url_tls or ""
    )
