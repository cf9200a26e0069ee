# SPDX-License-Identifier: Apache-2.0
"""Protection of the HTTP port against web pages in a user's browser.

A page that a user visits can send requests from the user's machine, to ports that are not reachable otherwise. Browsers
mark such requests: every write has ``Origin``, and ``Sec-Fetch-Site`` says whether another site's page sent it. That is
enough until the page's own name resolves to this machine (DNS rebinding): then the browser takes this broker for the
page's server and lets the page read the answers. But it still sends the page's name as ``Host``. So while no token is
required, requests have to name this broker. Addresses, ``localhost`` and names without a dot cannot belong to a page.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.gatekeeping import PROBES
from meridian_broker.admin.http.requests import STATE, Refused

HOSTS: Final = web.AppKey("hosts", frozenset[str])
"""Names by which this broker is known, in lower case."""
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
    """For a GET that changes something. :raises Refused: another site's page sent it."""
    headers = request.headers
    if "Origin" in headers or headers.get("Sec-Fetch-Site") in _OTHER_SITES:
        raise Refused(403, "this request can create something and came from a web page of another site")


def _check_host(given: str, known: frozenset[str]) -> None:
    """:raises Refused: this broker is not known by that name. A request without a name does not come from a browser."""
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
