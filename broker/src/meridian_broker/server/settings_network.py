# SPDX-License-Identifier: Apache-2.0
"""Settings of a broker's addresses, and what makes no sense among them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from meridian_broker.bounds.clients import MESSAGE_BYTES
from meridian_broker.gateway.addresses import parse_bind_addresses, parse_listeners
from meridian_broker.server.setting_fields import SettingsError, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Addresses, ports, and what one connection may ask for."""

    bind_address: str = "127.0.0.1"
    """IP address on which both ports listen. Anything but loopback is refused while nothing authenticates clients:
    set `authenticationEnabled`, or `insecure`."""

    advertised_address: str = ""
    """Host name or address that lookups tell clients to connect to. Empty: the bind address."""

    advertised_listeners: str = ""
    """Named sets of addresses for clients in different networks: `name:scheme://host:port`, separated by commas, with
    pulsar, pulsar+ssl, http or https. A client that names a listener is sent to its addresses."""

    internal_listener_name: str = ""
    """The listener whose addresses are given to other regions and to clients that name none. Empty: the first one."""

    bind_addresses: str = ""
    """More places to listen on for the Pulsar protocol: `name:scheme://ip:port`, separated by commas, with pulsar or
    pulsar+ssl. Clients that connect here without naming a listener get this listener's addresses."""

    broker_service_port: int = whole(6650, 0, 65535)
    """Port of the Pulsar protocol. 0 lets the system choose."""

    web_service_port: int = whole(8080, 0, 65535)
    """Port of the admin REST API, health and metrics. 0 lets the system choose."""

    probe_service_port: int = whole(0, 0, 65535)
    """HTTP port for `/ready` and `/live` only, for the probes of Kubernetes or a load balancer: connections to the
    other ports do not count against its limit. 0: no such port; `webServicePort` answers `/admin/v2/brokers/ready` in
    any case."""

    web_service_allowed_hosts: str = ""
    """Further host names, separated by commas, under which clients reach this broker's HTTP ports, for example that of
    a proxy. While no token is required, a request for any other host is refused: otherwise a web page whose host name
    resolves to this machine could read the answers. Addresses, `localhost`, names without a dot, `advertisedAddress`
    and this broker's names in `advertisedListeners` and `regionsFile` are always allowed."""

    insecure: bool = False
    """Allows a bind address that other machines can reach although nothing authenticates clients."""

    max_message_size: int = whole(MESSAGE_BYTES, 1024, 128 * 1024 * 1024)
    """Largest message in bytes, announced to clients when they connect. A client splits or refuses larger ones."""

    keep_alive_interval_seconds: int = whole(30, 1, 3600)
    """Seconds of silence after which the broker pings a connection. After the same time without an answer it closes
    the connection."""

    max_concurrent_lookup_request: int = whole(50_000, 1, 1_000_000, dynamic=True)
    """Lookups and partition queries in progress at once, of all connections. Further ones are answered with
    TooManyRequests, which clients retry."""

    max_pending_publish_requests_per_connection: int = whole(1000, 1, 1_000_000)
    """Messages of one connection that wait to be durable. At this number the broker stops reading from the connection
    until half are stored."""


def check_bind_address(network: NetworkSettings, *, loopback_only: bool) -> None:
    """:raises SettingsError: clients cannot connect to it, or too many can."""
    address = _ip_address("bindAddress", network.bind_address, loopback_only=loopback_only)
    if address.is_unspecified and not (network.advertised_address or network.advertised_listeners):
        raise SettingsError(
            f"bindAddress={network.bind_address} is not an address that clients can connect to: set advertisedAddress "
            "as well"
        )


def _ip_address(key: str, text: str, *, loopback_only: bool) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise SettingsError(f"{key}={text!r}: expected an IP address such as 127.0.0.1") from None
    if loopback_only and not address.is_loopback:
        raise SettingsError(
            f"{key}={text}: other machines could connect and nothing authenticates them. "
            "Bind 127.0.0.1, switch authenticationEnabled on, or accept this with --insecure (insecure=true)"
        )
    return address


def check_listeners(network: NetworkSettings, *, tls: bool, loopback_only: bool) -> None:
    """:raises SettingsError: the listeners cannot be read, or do not fit the other settings."""
    try:
        listeners = parse_listeners(network.advertised_listeners)
    except ValueError as error:
        raise SettingsError(f"advertisedListeners: {error}") from None
    try:
        places = parse_bind_addresses(network.bind_addresses)
    except ValueError as error:
        raise SettingsError(f"bindAddresses: {error}") from None
    named = {"internalListenerName": network.internal_listener_name}
    named |= {f"bindAddresses: {place.listener}": place.listener for place in places}
    for what, name in named.items():
        if name and name not in listeners:
            raise SettingsError(f"{what}: advertisedListeners has no listener {name!r}")
    for place in places:
        _ip_address("bindAddresses", place.host, loopback_only=loopback_only)
        if place.tls and not tls:
            raise SettingsError("bindAddresses: pulsar+ssl needs tlsCertificateFilePath")
