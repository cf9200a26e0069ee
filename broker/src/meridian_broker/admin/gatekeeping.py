# SPDX-License-Identifier: Apache-2.0
"""Who may use the HTTP port, once authentication is on.

Everybody may ask whether the broker is ready, and read metrics, as probes do. Every role may look up what its client
needs to connect. All else is for super-users.

Brokers of other regions are no users: they may make the few calls that regions make to each other, which the table of
routes marks, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from meridian_broker.admin.errors import Handler
from meridian_broker.admin.requests import STATE, Refused
from meridian_broker.gateway.authentication import NotAuthenticated

OPEN: Final = re.compile(r"/admin/v2/brokers/(ready|health)|/status\.html|/metrics/?")
FOR_CLIENTS: Final = re.compile(
    r"/lookup/v2/.*"
    r"|/admin/v2/(persistent|non-persistent)/[^/]+/[^/]+/[^/]+/partitions"
    r"|/admin/v2/namespaces/[^/]+/[^/]+/topics"
    r"|/admin/v2/schemas/[^/]+/[^/]+/[^/]+/schema(/[^/]+)?"
)
ROLE: Final = "role"
"""Where handlers find who asks, when that is known."""
PEER_CALLS: Final = web.AppKey("peer_calls", Mapping[Handler, str])
"""What brokers of other regions may call: handler -> the query parameter that the call must have; empty: none."""
_BEARER: Final = "Bearer "


@web.middleware
async def gatekeeper(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the request through, or refuse it with 401 (who are you?) or 403 (not you)."""
    authentication = request.app[STATE].gateway.authentication
    if not authentication.required or OPEN.fullmatch(request.path):
        return await handler(request)
    header = request.headers.get("Authorization", "")
    if not header.startswith(_BEARER):
        raise Refused(401, "this region asks for a token: send Authorization: Bearer TOKEN")
    token = header.removeprefix(_BEARER).strip().encode()
    if authentication.is_peer(token):
        _check_peer(request)
        return await handler(request)
    try:
        role = authentication.role(token)
    except NotAuthenticated as error:
        raise Refused(401, str(error)) from None
    request[ROLE] = role
    if authentication.is_super_user(role):
        return await handler(request)
    if request.method in ("GET", "HEAD") and FOR_CLIENTS.fullmatch(request.path):
        return await handler(request)
    raise Refused(403, f"role {role} is none of superUserRoles: the admin API is for those")


def _check_peer(request: web.Request) -> None:
    """:raises Refused: brokers of other regions do not ask for that."""
    parameter = request.app[PEER_CALLS].get(request.match_info.handler)
    if parameter is None or (parameter and parameter not in request.query):
        raise Refused(403, f"{request.method} {request.path} is not for brokers of other regions")
