# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/brokers``: the brokers of the region, what they own, and their configuration."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from meridian_broker.admin.http.requests import Refused, answer, done, part, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar import dealing
from meridian_broker.metadata.errors import NotFound
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.records import BrokerRecord


async def listed(request: web.Request) -> web.Response:
    """Brokers of this region, as ``host:port`` of their admin API."""
    return answer(_names(state(request)))


async def of_cluster(request: web.Request) -> web.Response:
    """Brokers of one cluster; only this region's are known."""
    _check_cluster(request)
    return answer(_names(state(request)))


async def leader(request: web.Request) -> web.Response:
    """One of the region's brokers, the same whichever broker is asked: none of them leads the others."""
    admin = state(request)
    url = admin.admin_url()
    if admin.owner is not None:
        alive = [one for one in _records(admin) if not one.draining] or _records(admin)
        url = admin_url(alive[0]) if alive else url
    return answer({"brokerId": urlsplit(url).netloc, "serviceUrl": url})


async def owned_namespaces(request: web.Request) -> web.Response:
    """The bundles that a broker owns."""
    _check_cluster(request)
    admin, name = state(request), part(request, "broker")
    if name not in _names(admin):
        raise NotFound(f"region {admin.region} has no running broker {name}: see /admin/v2/brokers")
    owned = sorted(_owned(admin, name))
    how = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return answer({str(bundle): how for bundle in owned})


async def changeable_settings(request: web.Request) -> web.Response:
    """Names of settings that can be changed at runtime."""
    return answer(state(request).settings.names)


async def changed_settings(request: web.Request) -> web.Response:
    """Settings that were changed at runtime."""
    return answer(dict(state(request).settings.changed))


async def change_setting(request: web.Request) -> web.Response:
    """Change a setting for all brokers of the region. It takes effect at once and survives restarts."""
    await state(request).settings.change(part(request, "setting"), part(request, "value"))
    return done()


async def reset_setting(request: web.Request) -> web.Response:
    """Undo the change of a setting: each broker's own value applies again."""
    await state(request).settings.change(part(request, "setting"), None)
    return done()


async def settings(request: web.Request) -> web.Response:
    """The settings in force."""
    return answer(state(request).settings.in_force())


def named(admin: AdminState, name: str) -> BrokerRecord | None:
    """The broker that is running with this ``host:port`` of its admin API, or with this id; None: there is none."""
    return next((one for one in _records(admin) if name in (one.broker, urlsplit(admin_url(one)).netloc)), None)


def admin_url(broker: BrokerRecord) -> str:
    """Address of a broker's admin API, for its neighbours; empty: it has none."""
    addresses = broker.addresses.get("", {})
    return addresses.get("admin_url") or addresses.get("admin_url_tls") or ""


def _records(admin: AdminState) -> list[BrokerRecord]:
    if admin.owner is None:
        return []
    return sorted(admin.owner.view.brokers.values(), key=lambda one: one.broker)


def _names(admin: AdminState) -> list[str]:
    if admin.owner is None:
        return [urlsplit(admin.admin_url()).netloc]
    return sorted(urlsplit(admin_url(one)).netloc for one in _records(admin))


def _owned(admin: AdminState, name: str) -> list[Bundle]:
    if admin.owner is None:
        found = [dealing.known(admin, namespace) for namespace in admin.catalog.known_namespaces()]
        return [bundle for some in found if some is not None for bundle in some.every()]
    broker = named(admin, name)
    return [
        bundle
        for bundle, owner in admin.owner.view.owners.items()
        if broker is not None and (owner.broker, owner.session) == (broker.broker, broker.session)
    ]


def _check_cluster(request: web.Request) -> None:
    """:raises NotFound, Refused: the cluster in the path is not this region."""
    cluster = part(request, "cluster")
    if cluster != state(request).region:
        if state(request).catalog.cluster(cluster) is None:
            raise NotFound(f"cluster {cluster} is not known here")
        raise Refused(412, f"{cluster} is another region: ask a broker there")
