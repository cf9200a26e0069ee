# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/clusters``: the regions, in Pulsar's words."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from aiohttp import web

from meridian_broker.admin.http.requests import Refused, answer, body, done, part, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import NotEmpty, NotFound
from meridian_broker.metadata.records import KIND, ClusterRecord


async def listed(request: web.Request) -> web.Response:
    """Names of all clusters."""
    return answer(sorted(await state(request).catalog.clusters.names()))


async def get(request: web.Request) -> web.Response:
    """Addresses of one cluster."""
    return answer((await state(request).catalog.clusters.get(part(request, "cluster"))).to_json())


async def create(request: web.Request) -> web.Response:
    """Create a cluster here, and in the regions that share `clusters` with this one (docs/metadata.md)."""
    record, name, admin = ClusterRecord.from_json(await body(request)), part(request, "cluster"), state(request)
    await admin.catalog.clusters.create(name, record)
    if admin.metadata_sync.choice.is_synced(keys.introduction(name)):
        await admin.catalog.introductions.introduce(name, record)
    return done()


async def update(request: web.Request) -> web.Response:
    """Change a cluster's addresses."""
    given, name, clusters = await body(request), part(request, "cluster"), state(request).catalog.clusters
    record = ClusterRecord.from_json(given)
    if KIND not in given:  # Pulsar's tools do not know it
        known = await clusters.get(name)
        record = replace(record, kind=known.kind, replicator_role=known.replicator_role)
    await clusters.update(name, record)
    return done()


async def delete(request: web.Request) -> web.Response:
    """Forget a cluster that no tenant and no namespace names, in this region."""
    name = part(request, "cluster")
    if name == state(request).region:
        raise Refused(412, f"{name} is the cluster of this broker")
    clusters = state(request).catalog.clusters
    try:
        await clusters.delete(name)
        await state(request).catalog.introductions.withdraw(name)
        with suppress(NotFound):
            await clusters.delete(name)  # if its introduction created it again meanwhile
    except NotEmpty as used:
        raise Refused(412, str(used)) from None
    return done()


async def check_allowed(admin: AdminState, tenant: str, wanted: Collection[str]) -> None:
    """:raises Refused: a cluster is not known, or not allowed to the tenant."""
    allowed = (await admin.catalog.tenants.get(tenant)).allowed_clusters
    known = set(await admin.catalog.clusters.names())
    for cluster in sorted(wanted):
        if cluster not in known:
            raise Refused(403, f"cluster {cluster} is not known here: create it first")
        if cluster not in allowed:
            raise Refused(403, f"cluster {cluster} is not among the tenant's allowed clusters: allow it there first")
