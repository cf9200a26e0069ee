# SPDX-License-Identifier: Apache-2.0
"""Policies of namespaces and topics, each at its own path: read, set, remove.

The handlers are made from one table, ``policy_endpoints.py``. A topic's policies take precedence over its namespace's,
and those over the broker's settings; ``?applied=true`` on a topic shows the effective value. Policies belong to a
partitioned topic, not to its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask_all
from meridian_broker.admin.elsewhere.partition_counts import check_counts
from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, answer, body, done, flag, namespace_of, number, state, topic_of
from meridian_broker.admin.pulsar.clusters import check_allowed
from meridian_broker.admin.pulsar.policy_endpoints import ENDPOINTS, Endpoint
from meridian_broker.admin.pulsar.shadows import check_not_shadow
from meridian_broker.metadata import keys
from meridian_broker.metadata import policy_table as policies
from meridian_broker.metadata.policy_table import TABLE, Level
from meridian_broker.metadata.policy_values import QUOTA_KINDS
from meridian_broker.topics.errors import TopicNotFound
from meridian_broker.wire.pulsar.topic_name import TopicName


class OfNamespace:
    """The policies of the namespace in the path."""

    @staticmethod
    async def own(request: web.Request) -> Level:
        """:raises NotFound: the namespace does not exist."""
        return (await state(request).catalog.namespaces.get(namespace_of(request))).own

    @staticmethod
    async def set(request: web.Request, policy: str, value: Any, element: str | None) -> None:
        await state(request).catalog.namespaces.set_policy(namespace_of(request), policy, value, element)

    @staticmethod
    async def set_all(request: web.Request, values: Mapping[str, Any]) -> None:
        """Several policies, all or none."""
        await state(request).catalog.namespaces.set_policies(namespace_of(request), values)


class OfTopic:
    """The policies of the topic in the path."""

    @staticmethod
    async def own(request: web.Request) -> Level:
        """:raises TopicNotFound: the topic does not exist."""
        return (await state(request).catalog.topic_policies.get(await _existing(request))).own

    @staticmethod
    async def set(request: web.Request, policy: str, value: Any, element: str | None) -> None:
        await state(request).catalog.topic_policies.set_policy(await _existing(request), policy, value, element)

    @staticmethod
    async def set_all(request: web.Request, values: Mapping[str, Any]) -> None:
        """Several policies, all or none."""
        await state(request).catalog.topic_policies.set_policies(await _existing(request), values)


Place = type[OfNamespace] | type[OfTopic]


async def _existing(request: web.Request) -> TopicName:
    """:raises TopicNotFound: the topic does not exist. :raises Refused: it is a partition."""
    name, catalog = topic_of(request), state(request).catalog
    if name.partition >= 0:
        raise Refused(412, f"policies belong to the whole topic, {name.base}, not to its partitions")
    if await catalog.partitioned.find(name) is None and await catalog.topics.find(name) is None:
        raise TopicNotFound(f"topic {name} does not exist")
    return name


def applied(request: web.Request, policy: str) -> Any:
    """The effective value for the topic in the path."""
    rules = state(request).service.parts.rules(topic_of(request))
    return getattr(rules, TABLE[policy].attribute)


def _element(request: web.Request, policy: str) -> str | None:
    """The part of the policy that this request concerns, if it has several."""
    return state(request).region if TABLE[policy].each == "region" else None


_WHERE: Final = {False: "", True: ", in all regions; with ``?region=``, only in the one that is asked"}


async def _others(request: web.Request, place: Place) -> frozenset[str]:
    """The other regions of the namespace or topic that must be told, unless the request is about this one alone.
    Regions that share the policy by the event topic need not be (docs/metadata.md).

    :raises Refused: it is about another one.
    """
    admin = state(request)
    only = request.query.get("region")
    if only is not None:
        if only != admin.region:
            raise Refused(412, f"this is {admin.region}: send a request for {only} alone to {only}")
        return frozenset()
    if place is OfTopic:
        name = await _existing(request)
        regions, path = frozenset(admin.service.parts.regions_of(str(name))), keys.topic_policies(name)
    else:
        namespace = namespace_of(request)
        regions, path = (await admin.catalog.namespaces.get(namespace)).replication_clusters, keys.namespace(namespace)
    others = regions - {admin.region} - admin.catalog.pulsar_regions()
    return others - admin.metadata_sync.regions_sharing(path + "/")


def reading(place: Place, endpoint: Endpoint) -> Handler:
    """How the policy is read."""

    async def read(request: web.Request) -> web.Response:
        own = await place.own(request)
        if place is OfTopic and flag(request, "applied"):
            return answer(TABLE[endpoint.policy].show(applied(request, endpoint.policy)))
        value = own.get(endpoint.policy)
        element = _element(request, endpoint.policy)
        if value is not None and element is not None:
            value = value.get(element)
        if value is None:
            return done() if endpoint.unset is None else answer(endpoint.unset)
        return answer(TABLE[endpoint.policy].show(value))

    read.__doc__ = f"Read {endpoint.what}; empty when not set here."
    return read


def setting(place: Place, endpoint: Endpoint) -> Handler:
    """How the policy is set."""

    async def set_it(request: web.Request) -> web.Response:
        if place is OfTopic and endpoint.policy == policies.MESSAGE_TTL and "messageTTL" in request.query:
            value: Any = number(request.query["messageTTL"], "?messageTTL")
        else:
            value = await body(request)
        largest = state(request).service.parts.topic_limits.message_bytes
        if endpoint.policy == policies.MAX_MESSAGE_SIZE and isinstance(value, int) and value > largest:
            raise Refused(412, f"{value} bytes: this broker accepts messages of at most {largest} bytes")
        others = await _others(request, place) if endpoint.everywhere else frozenset()
        await place.set(request, endpoint.policy, value, _element(request, endpoint.policy))
        await ask_all(state(request), others, "POST", f"{request.rel_url.raw_path}?region={{region}}", value)
        return done()

    set_it.__doc__ = f"Set {endpoint.what}{_WHERE[endpoint.everywhere]}."
    return set_it


def removing(place: Place, endpoint: Endpoint) -> Handler:
    """How the policy is removed."""

    async def remove(request: web.Request) -> web.Response:
        others = await _others(request, place) if endpoint.everywhere else frozenset()
        await place.set(request, endpoint.policy, None, _element(request, endpoint.policy))
        await ask_all(state(request), others, "DELETE", f"{request.rel_url.raw_path}?region={{region}}")
        return done()

    remove.__doc__ = f"Remove the setting: {endpoint.what}{_WHERE[endpoint.everywhere]}."
    return remove


def quotas(place: Place) -> Handler:
    """How backlog quotas are read."""

    async def read(request: web.Request) -> web.Response:
        """Backlog quotas by kind."""
        own = (await place.own(request)).get(policies.BACKLOG_QUOTAS, {})
        if place is OfTopic and flag(request, "applied"):
            own = applied(request, policies.BACKLOG_QUOTAS)
        return answer(policies.show(policies.BACKLOG_QUOTAS, own))

    return read


async def topic_regions(request: web.Request) -> web.Response:
    """The topic's own regions; empty when it lives in its namespace's."""
    if flag(request, "applied"):
        parts, name = state(request).service.parts, str(await _existing(request))
        return answer(sorted(parts.regions_of(name) | parts.pulsar_regions_of(name)))
    own = (await OfTopic.own(request)).get(policies.REPLICATION)
    return done() if own is None else answer(sorted(own))


async def set_topic_regions(request: web.Request) -> web.Response:
    """Set the topic's regions; the body is a list of clusters, including this one.

    Regions that are new to the topic are asked how many partitions it has there."""
    admin, name = state(request), await _existing(request)
    given = await body(request)
    check_not_shadow(request, name, "choose the regions of")
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise Refused(412, 'expected a list of clusters, for example ["us-east", "us-west"]')
    if admin.region not in given:
        raise Refused(
            412, f"{admin.region}, which you ask, is not among {', '.join(given)}: delete the topic there instead"
        )
    await check_allowed(admin, name.tenant, given)
    new = set(given) - admin.service.parts.regions_of(str(name)) - admin.catalog.pulsar_regions()
    await check_counts(admin, name, new)
    await admin.catalog.topic_policies.set_policy(name, policies.REPLICATION, dict.fromkeys(given, True))
    return done()


async def remove_topic_regions(request: web.Request) -> web.Response:
    """Let the topic live in its namespace's regions."""
    await OfTopic.set(request, policies.REPLICATION, None, None)
    return done()


def _quota_kind(request: web.Request) -> str:
    return request.query.get("backlogQuotaType", QUOTA_KINDS[0])


def setting_quota(place: Place) -> Handler:
    """How a backlog quota is set."""

    async def set_it(request: web.Request) -> web.Response:
        """Set the backlog quota of one kind (``?backlogQuotaType=``)."""
        await place.set(request, policies.BACKLOG_QUOTAS, await body(request), _quota_kind(request))
        return done()

    return set_it


def removing_quota(place: Place) -> Handler:
    """How a backlog quota is removed."""

    async def remove(request: web.Request) -> web.Response:
        """Remove the backlog quota of one kind."""
        await place.set(request, policies.BACKLOG_QUOTAS, None, _quota_kind(request))
        return done()

    return remove


def handlers() -> list[tuple[str, str, str, Handler, bool]]:
    """``namespace`` or ``topic``, verb, last part of the path, handler, and whether it passes the change on to the
    other regions."""
    found: list[tuple[str, str, str, Handler, bool]] = []
    for level, place in (("namespace", OfNamespace), ("topic", OfTopic)):
        for endpoint in ENDPOINTS:
            path = endpoint.namespace if place is OfNamespace else endpoint.topic
            if path:
                found.append((level, "GET", path, reading(place, endpoint), False))
                found.append((level, endpoint.verb, path, setting(place, endpoint), endpoint.everywhere))
                found.append((level, "DELETE", path, removing(place, endpoint), endpoint.everywhere))
        if place is OfTopic:
            found.append((level, "GET", "replication", topic_regions, False))
            found.append((level, "POST", "replication", set_topic_regions, False))
            found.append((level, "DELETE", "replication", remove_topic_regions, False))
        found.append((level, "GET", "backlogQuotaMap", quotas(place), False))
        found.append((level, "POST", "backlogQuota", setting_quota(place), False))
        found.append((level, "DELETE", "backlogQuota", removing_quota(place), False))
    return found
