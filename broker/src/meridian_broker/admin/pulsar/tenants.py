# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/tenants``."""

from __future__ import annotations

from aiohttp import web

from meridian_broker.admin.http.requests import answer, body, done, flag, part, state
from meridian_broker.admin.pulsar.namespaces import delete_namespace
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import TenantRecord


async def listed(request: web.Request) -> web.Response:
    """Names of all tenants."""
    return answer(sorted(await state(request).catalog.tenants.names()))


async def get(request: web.Request) -> web.Response:
    """Roles and clusters of one tenant."""
    return answer((await state(request).catalog.tenants.get(part(request, "tenant"))).to_json())


async def create(request: web.Request) -> web.Response:
    """Create a tenant."""
    await state(request).catalog.tenants.create(part(request, "tenant"), await _record(request))
    return done()


async def update(request: web.Request) -> web.Response:
    """Set a tenant's roles and clusters."""
    await state(request).catalog.tenants.update(part(request, "tenant"), await _record(request))
    return done()


async def delete(request: web.Request) -> web.Response:
    """Delete a tenant; ``?force=true`` with its namespaces and their topics."""
    name = part(request, "tenant")
    catalog = state(request).catalog
    if flag(request, "force"):
        for namespace in await catalog.namespaces.names(name):
            await delete_namespace(request, namespace, force=True)
    await catalog.tenants.delete(name)
    return done()


async def _record(request: web.Request) -> TenantRecord:
    record = TenantRecord.from_json(await body(request))
    if not record.allowed_clusters:
        raise Invalid("a tenant needs at least one allowed cluster: without one its namespaces have no region")
    return record
