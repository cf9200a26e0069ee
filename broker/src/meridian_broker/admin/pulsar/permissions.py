# SPDX-License-Identifier: Apache-2.0
"""``.../permissions``: what roles may do, on a namespace or on a topic.

They are kept whether the broker enforces them or not, as in Pulsar. A permission on a partitioned topic is one on all
its partitions, and the other way round.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    any_topic_of,
    body,
    done,
    namespace_of,
    part,
    state,
)
from meridian_broker.metadata.actions import Permissions, check_actions
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.permissions import PermissionsOfRoles
from meridian_broker.wire.pulsar.topic_name import TopicName

POLICY = "auth_policies"
"""The name of permissions among a namespace's policies, as Pulsar shows them."""
ON_NAMESPACE = "namespace_auth"
ON_TOPICS = "destination_auth"
ON_SUBSCRIPTIONS = "subscription_auth_roles"


async def of_namespace(request: web.Request) -> web.Response:
    """The actions permitted to each role in the namespace."""
    return answer(_shown(await _permissions(request).on_namespace(namespace_of(request))))


async def grant_in_namespace(request: web.Request) -> web.Response:
    """Permit a role the actions in the body, and no others, in the namespace."""
    actions = await _actions(request)
    await _permissions(request).grant_in_namespace(namespace_of(request), part(request, "role"), actions)
    return done()


async def revoke_in_namespace(request: web.Request) -> web.Response:
    """Revoke a role's permissions in the namespace. It keeps those on topics."""
    await _permissions(request).revoke_in_namespace(namespace_of(request), part(request, "role"))
    return done()


async def of_topic(request: web.Request) -> web.Response:
    """The actions permitted to each role on the topic, including those in its namespace."""
    topic, permissions = _topic(request), _permissions(request)
    found = dict(await permissions.on_namespace(topic.namespace_name))
    for role, actions in (await permissions.on_topic(topic)).items():
        found[role] = found.get(role, frozenset()) | actions
    return answer(_shown(found))


async def grant_on_topic(request: web.Request) -> web.Response:
    """Permit a role the actions in the body, and no others, on the topic, which need not exist yet."""
    actions = await _actions(request)
    await _permissions(request).grant_on_topic(_topic(request), part(request, "role"), actions)
    return done()


async def revoke_on_topic(request: web.Request) -> web.Response:
    """Revoke a role's permissions on the topic. It keeps those in the namespace."""
    topic, role = _topic(request), part(request, "role")
    if not await _permissions(request).revoke_on_topic(topic, role):
        raise Refused(412, f"role {role} has no permission on {topic} itself: see those on its namespace")
    return done()


async def as_policy(request: web.Request, namespace: str) -> dict[str, Any]:
    """All permissions in a namespace, as Pulsar shows them among its policies."""
    own, on_topics = await _permissions(request).inside(namespace)
    return {
        ON_NAMESPACE: _shown(own),
        ON_TOPICS: {str(topic): _shown(found) for topic, found in on_topics.items()},
        ON_SUBSCRIPTIONS: {},
    }


def without_policy(given: Any) -> Any:
    """The policies of a new namespace without permissions, which tools send empty.

    :raises Invalid: it is not empty.
    """
    if not isinstance(given, dict) or POLICY not in given:
        return given
    asked = given[POLICY]
    if isinstance(asked, dict) and any(asked.values()):
        raise Invalid(f"{POLICY}: create the namespace first, then grant permissions in it (.../permissions/ROLE)")
    return {key: value for key, value in given.items() if key != POLICY}


def _topic(request: web.Request) -> TopicName:
    return any_topic_of(request).base


async def _actions(request: web.Request) -> frozenset[str]:
    """:raises Refused: the body is not a list of actions."""
    try:
        return check_actions(await body(request))
    except Invalid as error:
        raise Refused(400, str(error)) from None


def _permissions(request: web.Request) -> PermissionsOfRoles:
    return state(request).catalog.permissions


def _shown(found: Permissions) -> dict[str, list[str]]:
    return {role: sorted(actions) for role, actions in sorted(found.items())}
