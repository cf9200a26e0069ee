# SPDX-License-Identifier: Apache-2.0
"""What roles may ask of the admin API, apart from super users, who may ask for everything.

A tenant's admin roles may make the requests that are about something in their tenant (``TENANTS``), once authorization
is on. A request that is also about another tenant, which it names in its body or query, checks that by itself
(``check_administers``).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, any_topic_of, namespace_of, state
from meridian_broker.metadata.authorizing import Wish

ROLE: Final = web.RequestKey("role", str)
"""The requester's role, for handlers, if it is known."""
TENANTS: Final = web.AppKey("tenants", Collection[Handler])
"""The handlers that are about something in the tenant in the path."""
FOR_CLIENTS: Final = re.compile(
    r"/lookup/v2/.*"
    r"|/admin/v2/(persistent|non-persistent)/[^/]+/[^/]+/[^/]+/partitions"
    r"|/admin/v2/namespaces/[^/]+/[^/]+/topics"
    r"|/admin/v2/schemas/[^/]+/[^/]+/[^/]+/schema(/[^/]+)?"
)
"""What a client reads to connect."""


def may_ask(request: web.Request, role: str) -> bool:
    """Whether a role that is not a super user may make this request.

    :raises InvalidTopicNameError: the topic name in the path is not valid.
    """
    authorization = state(request).gateway.authorization
    is_for_clients = request.method in ("GET", "HEAD") and FOR_CLIENTS.fullmatch(request.path) is not None
    if not authorization.enabled:
        return is_for_clients
    tenant = request.match_info.get("tenant")
    if tenant is None:
        return False
    if request.match_info.handler in request.app[TENANTS] and authorization.administers(role, tenant):
        return True
    if not is_for_clients or "namespace" not in request.match_info:
        return False
    if "topic" not in request.match_info:
        return authorization.may_in(role, Wish.LIST, namespace_of(request))
    return authorization.may(role, Wish.FIND, any_topic_of(request))


def check_administers(request: web.Request, tenant: str) -> None:
    """Check a request that is also about something in this tenant.

    :raises Refused: its role may not change that.
    """
    role = request.get(ROLE)
    if role is not None and not state(request).gateway.authorization.administers(role, tenant):
        raise Refused(403, f"role {role} is not an admin role of tenant {tenant}, which this request is about, too")
