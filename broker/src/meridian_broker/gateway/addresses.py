# SPDX-License-Identifier: Apache-2.0
"""Where clients are sent: this broker's addresses, and those of its named listeners (Pulsar's PIP-61, PIP-95).

A broker inside a private network has one address for its neighbours and others for those outside. Each set of addresses
has a name. A client gives the name in its lookup, or connects to a bind address that carries it, and is answered with
addresses that it can reach.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from meridian_broker.wire.pulsar.topic_name import TopicName

LISTENERS_MAX: Final = 100
_NAME: Final = r"[A-Za-z0-9][-_.A-Za-z0-9]{0,63}"
_SCHEMES: Final[Mapping[str, str]] = {
    "pulsar": "service_url",
    "pulsar+ssl": "service_url_tls",
    "http": "admin_url",
    "https": "admin_url_tls",
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """One broker's addresses for one kind of client; None: not reachable that way."""

    service_url: str | None = None
    service_url_tls: str | None = None
    admin_url: str | None = None
    admin_url_tls: str | None = None

    @classmethod
    def of(cls, known: Mapping[str, str]) -> Addresses:
        """From a map by attribute name; missing ones are None."""
        return cls(*(known.get(name) for name in ("service_url", "service_url_tls", "admin_url", "admin_url_tls")))


class Place(NamedTuple):
    """Another broker of the region, which has a topic."""

    addresses: Addresses | None
    """For the client that asks; None: the broker lacks the client's listener."""
    owns: bool
    """True: it serves the topic; False: it should, and becomes the owner when a client asks it."""


class BindAddress(NamedTuple):
    """One more place to listen on."""

    listener: str
    tls: bool
    host: str
    port: int


AddressBook = Callable[[str], Addresses | None]
"""The addresses for a listener's name, which is empty for clients that name none; None: there is no such listener."""


Locate = Callable[[TopicName, str, bool], Awaitable[Place | None]]
"""Where a topic is, for a client of the named listener; None: at this broker. The last argument is true if another
broker found that this one should serve the topic. Raises ``TopicError`` or ``MetadataError``: the owner cannot be
determined now."""


WhenMoved = Callable[[TopicName, Callable[[], None]], Awaitable[bool]]
"""Calls the callback once a topic that another broker owns may have changed owner, or after some seconds. False: that
broker can be reached, so nothing is called."""


NextOwner = Callable[[str, str], Addresses | None]
"""The broker that takes over a topic being closed here, for a client of the named listener; None: the client must look
it up."""


def parse_listeners(text: str) -> dict[str, Addresses]:
    """``name:scheme://host:port,...`` by name, in the order written. Schemes: pulsar, pulsar+ssl, http, https.

    :raises ValueError: it has another form, or names something twice.
    """
    found: dict[str, Addresses] = {}
    for part in _parts(text):
        name, scheme, host, port = _split(part)
        attribute = _SCHEMES[scheme]
        known = found.get(name, Addresses())
        if getattr(known, attribute) is not None:
            raise ValueError(f"listener {name!r} has two {scheme} addresses")
        found[name] = replace(known, **{attribute: f"{scheme}://{_bracketed(host)}:{port}"})
    for name, addresses in found.items():
        if addresses.service_url is None and addresses.service_url_tls is None:
            raise ValueError(f"listener {name!r} has no pulsar:// or pulsar+ssl:// address")
    if len(found) > LISTENERS_MAX:
        raise ValueError(f"{len(found)} listeners: at most {LISTENERS_MAX}")
    return found


def parse_bind_addresses(text: str) -> list[BindAddress]:
    """``name:scheme://ip:port,...``. Schemes: pulsar, pulsar+ssl.

    :raises ValueError: it has another form.
    """
    found = []
    for part in _parts(text):
        name, scheme, host, port = _split(part)
        if not scheme.startswith("pulsar"):
            raise ValueError(f"{part!r}: only pulsar:// and pulsar+ssl:// can be bound")
        found.append(BindAddress(name, scheme == "pulsar+ssl", host, port))
    if len(found) > LISTENERS_MAX:
        raise ValueError(f"{len(found)} bind addresses: at most {LISTENERS_MAX}")
    return found


def url(scheme: str, host: str, port: int) -> str:
    """An address as clients write it."""
    return f"{scheme}://{_bracketed(host)}:{port}"


def of_several(urls: Iterable[str]) -> str:
    """One URL with the addresses of all of these, in the form Pulsar's clients accept; empty if there are none.

    :param urls: of one scheme; each may list several addresses. Duplicates are removed.
    """
    scheme, found = "", dict[str, None]()
    for one in urls:
        first, separator, places = one.partition("://")
        scheme = scheme or first + separator
        found |= dict.fromkeys(places.split(","))
    return scheme + ",".join(found)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split(part: str) -> tuple[str, str, str, int]:
    match = re.fullmatch(rf"({_NAME}):(pulsar|pulsar\+ssl|http|https)://([^/]+)/?", part)
    if match is None:
        raise ValueError(f"{part!r}: expected name:scheme://host:port with pulsar, pulsar+ssl, http or https")
    name, scheme, place = match.groups()
    split = urlsplit(f"//{place}")
    if not split.hostname or split.port is None or split.username is not None:
        raise ValueError(f"{part!r}: expected a host and a port")
    return name, scheme, split.hostname, split.port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
