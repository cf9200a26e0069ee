# SPDX-License-Identifier: Apache-2.0
"""A region that was introduced in one region becomes known in the others.

A cluster record says where a region is reached, which may differ from region to region, so it is each region's own.
What regions share is an *introduction*: a name with its addresses. A region that does not know a cluster of that name
makes one from it, once. Nothing that another region writes changes or removes a cluster that is known here: so no
region can lead the links of the others somewhere else.
"""

from __future__ import annotations

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_name
from meridian_broker.metadata.errors import AlreadyExists
from meridian_broker.metadata.records import ClusterRecord
from meridian_broker.metadata.tenancy import Clusters
from meridian_broker.metadata.trees import BASE


class Introductions:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access, clusters: Clusters) -> None:
        self._access = access
        self._clusters = clusters

    async def introduce(self, name: str, record: ClusterRecord) -> None:
        """Announce a cluster to the regions that share introductions."""
        path = keys.introduction(check_name(name, "cluster"))
        await self._access.change(path, lambda _: {BASE: record.to_json()})

    async def withdraw(self, name: str) -> None:
        """Stop announcing it. Regions that know it keep it."""
        await self._access.change(keys.introduction(name), lambda _: {})

    def unmet(self) -> list[str]:
        """Clusters that others have announced and this region does not know, as last seen."""
        return sorted(set(self._access.view.introduced()) - set(self._access.view.clusters()))

    async def meet(self) -> None:
        """Create the unmet clusters. :raises MetadataError: some are not created yet."""
        for name in self.unmet():
            record = self._access.view.introduction(name)
            if record is not None:
                try:
                    await self._clusters.create(name, record)
                except AlreadyExists:
                    continue
