# SPDX-License-Identifier: Apache-2.0
"""Access control of the HTTP port, once authentication is on.

Anyone may check whether the broker is ready and read metrics, as probes do. Every role may look up what its client
needs to connect. Everything else is for super-users, until authorization is on: then roles need permissions for what a
client needs, and the admin roles of a tenant administer what is in it (``access``).

A token may be limited to the export. Then its role has to be a super-user's, and it is accepted only on
the routes that the table marks: a new route is closed to it.

Brokers of other regions are not users: they may make the few calls that regions make to each other, which the table of
routes marks, and nothing else.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.access import ROLE, may_ask
from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import STATE, Refused, any_topic_of, read_body
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.gateway.authentication import EXPORT_SCOPE, NotAuthenticated
from meridian_broker.gateway.tls import channel_binding
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.service import shadow_topics
from meridian_broker.wire.peer_proof import NotProven
from meridian_broker.wire.peer_requests import PROOF_HEADER, SCHEME, Admitted, Call

PROBES: Final = re.compile(r"/admin/v2/brokers/(ready|health)|/status\.html")
"""Their answers say nothing but yes or no."""
OPEN: Final = re.compile(PROBES.pattern + r"|/metrics/?")
CALLER: Final[ContextVar[str]] = ContextVar("caller", default="")
"""The requester's role, for what a handler calls; empty: it is not known."""
ADMITTED: Final = web.RequestKey("admitted", Admitted)
"""Where the proof of another region's call is kept for its answer."""
PEER_CALLS: Final = web.AppKey("peer_calls", Mapping[Handler, str])
"""Calls allowed to brokers of other regions: handler -> the query parameter that the call must have; empty: none."""
EXPORT_CALLS: Final = web.AppKey("export_calls", Collection[Handler])
"""Calls allowed with a token for the export."""
_BEARER: Final = "Bearer "


@web.middleware
async def proven_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the proof to answers for other regions. Runs outside ``refusals``, whose answers need it, too."""
    try:
        response = await handler(request)
    except web.HTTPTemporaryRedirect as redirect:
        _prove(request, redirect)
        raise
    _prove(request, response)
    return response


def _prove(request: web.Request, response: web.StreamResponse) -> None:
    admitted = request.get(ADMITTED)
    if admitted is not None and isinstance(response, web.Response):
        body = response.body if isinstance(response.body, bytes) else b""
        response.headers[PROOF_HEADER] = request.app[STATE].guard.answer(admitted, response.status, body)


@web.middleware
async def gatekeeper(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Admit the request, or refuse it with 401 (not authenticated) or 403 (not allowed)."""
    header = request.headers.get("Authorization", "")
    if header.startswith(SCHEME):
        challenge = await _admit(request, header)
        return await handler(request) if challenge is None else challenge
    authentication = request.app[STATE].gateway.authentication
    if not authentication.required or OPEN.fullmatch(request.path):
        return await handler(request)
    if not header.startswith(_BEARER):
        raise Refused(401, "this region requires a token: send Authorization: Bearer TOKEN")
    try:
        granted = authentication.check(header.removeprefix(_BEARER).strip().encode())
    except NotAuthenticated as error:
        raise Refused(401, str(error)) from None
    request[ROLE] = role = granted.role
    if granted.scope == EXPORT_SCOPE and request.match_info.handler not in request.app[EXPORT_CALLS]:
        raise Refused(403, f"this token is for the export only and does not allow {request.method} {request.path}")
    if not authentication.is_super_user(role) and not may_ask(request, role):
        raise Refused(403, _refusal(request, role))
    earlier = CALLER.set(role)
    try:
        return await handler(request)
    finally:
        CALLER.reset(earlier)


def _refusal(request: web.Request, role: str) -> str:
    """The same refusal whether or not the path's object exists."""
    if not request.app[STATE].gateway.authorization.enabled:
        return f"role {role} is not one of superUserRoles, and only those may use the admin API"
    return (
        f"role {role} may not {request.method} {request.path}: that needs a role of superUserRoles or, within a "
        "tenant, one of its admin roles; to look topics up, a permission to produce or consume"
    )


async def _admit(request: web.Request, header: str) -> web.Response | None:
    """Let a call of another region in, or greet it with a challenge.

    :raises Refused: it has no valid proof, or is not a request for brokers of other regions.
    """
    state = request.app[STATE]
    now_ms = state.service.parts.scheduler.monotonic_ms()
    try:
        if request.transport is None:
            raise NotProven("the connection is gone")
        binding = channel_binding(request.transport)
        asked = state.guard.read(header)
        if not state.guard.is_current(asked, now_ms):
            challenge = state.guard.challenge(asked, binding, now_ms)
            return web.json_response({"reason": "prove it"}, status=401, headers={"WWW-Authenticate": challenge})
        call = Call(request.method, request.raw_path, await read_body(request, LARGE_BODY_BYTES))
        request[ADMITTED] = state.guard.admit(asked, call, binding, state.service.parts.scheduler.monotonic_ms())
    except (NotProven, ssl.SSLError) as error:
        raise Refused(401, str(error)) from None
    parameter = request.app[PEER_CALLS].get(request.match_info.handler)
    if parameter is None or (parameter and parameter not in request.query):
        raise Refused(403, f"{request.method} {request.path} is not for brokers of other regions")
    if "topic" in request.match_info and request[ADMITTED].region != state.region:
        try:
            shadow_topics.check_for_regions(state.service.parts, any_topic_of(request))
        except NotAllowed as error:
            raise Refused(404, str(error)) from None
    return None
