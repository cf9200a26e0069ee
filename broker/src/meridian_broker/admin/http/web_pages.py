# SPDX-License-Identifier: Apache-2.0
"""What a browser may do on the HTTP port: nothing in the name of a page of somebody else.

A page that a person looks at can send requests from that person's machine, to ports that nobody else reaches. Browsers
say so: every write has ``Origin``, and ``Sec-Fetch-Site`` says whether a page of another site asked. That is enough
until the page's own name comes to mean this machine (DNS rebinding): then the browser takes this broker for the page's
server and lets the page read what is answered. But it still sends the page's name as ``Host``. So where no token is
asked for, requests have to name this broker. Addresses, ``localhost`` and names without a dot cannot be a page's.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.gatekeeping import PROBES
from meridian_broker.admin.http.requests import STATE, Refused

HOSTS: Final = web.AppKey("hosts", frozenset[str])
"""Names by which this broker is known, in small letters."""
_OTHER_SITES: Final = ("cross-site", "same-site")


@web.middleware
async def no_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse writes of web pages, and requests that mean another host."""
    if request.method not in ("GET", "HEAD") and "Origin" in request.headers:
        raise Refused(403, f"this API refuses writes from web pages; this one came from {request.headers['Origin']}")
    open_to_all = not request.app[STATE].gateway.authentication.required
    if open_to_all and not PROBES.fullmatch(request.path):
        _check_host(request.headers.get("Host", ""), request.app[HOSTS])
    return await handler(request)


def check_no_other_site(request: web.Request) -> None:
    """For a GET that changes something. :raises Refused: a page of another site asks."""
    headers = request.headers
    if "Origin" in headers or headers.get("Sec-Fetch-Site") in _OTHER_SITES:
        raise Refused(403, "this request can create something and came from a web page of another site")


def _check_host(given: str, known: frozenset[str]) -> None:
    """:raises Refused: this broker is not known by that name. Only what is no browser sends none."""
    host = given.rpartition(":")[0] if given.rpartition("]")[2].count(":") else given
    host = host.strip("[]").rstrip(".").lower()
    if "." not in host and ":" not in host:
        return
    if host.endswith(".localhost") or host in known or _is_address(host):
        return
    raise Refused(
        421,
        f"this broker is not known as {host[:255]!r}: use its address or advertisedAddress, or add the name to "
        "webServiceAllowedHosts",
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
