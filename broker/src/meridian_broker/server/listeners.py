# SPDX-License-Identifier: Apache-2.0
"""The addresses on which this process listens, and those that it tells clients.

Addresses are bound first and served later: a port that is taken ends the start before anything is done, and no client
gets in before the broker is ready for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import astuple, replace
from urllib.parse import urlsplit

from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.server import AdminServer
from meridian_broker.gateway import tls
from meridian_broker.gateway.addresses import Addresses, parse_bind_addresses, parse_listeners, url
from meridian_broker.gateway.places import Places
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.pulsar.listener import listen
from meridian_broker.gateway.tls_listeners import TlsListener, TlsListeners
from meridian_broker.server.early import EarlyPorts
from meridian_broker.server.regions_file import listed_regions
from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.settings import Settings


class Listeners:
    """The listeners of one process. ``open`` them, let clients in with ``serve``, and ``close`` them to new ones."""

    def __init__(self, settings: Settings, http: Places, handshakes: int, early: EarlyPorts | None = None) -> None:
        """
        :param http: for connections over HTTP.
        :param handshakes: of TLS that may be under way, half of them from one address.
        :param early: ports for clients that are open already.
        :raises SettingsError: the certificate or its key cannot be used.
        """
        self._settings = settings
        self._http_places = http
        self._early = early or EarlyPorts("", ())
        self._tls = _tls_listeners(settings, Places(handshakes, (handshakes + 1) // 2))
        self._listeners = parse_listeners(settings.network.advertised_listeners)
        self._internal = settings.network.internal_listener_name or next(iter(self._listeners), "")
        self._servers: list[asyncio.Server | TlsListener] = []
        self._own = Addresses()

    async def open(self, gateway: Broker, state: AdminState, stack: AsyncExitStack) -> None:
        """Bind all addresses; HTTP is served from now on.

        :raises SettingsError: an address is in use or does not belong to this machine.
        """
        network, ports = self._settings.network, self._settings.tls
        stack.callback(self.close)
        plain = await self._listen(gateway, network.bind_address, network.broker_service_port)
        secure = None
        if self._tls is not None:
            secure = await self._listen(gateway, network.bind_address, ports.broker_service_port_tls, self._tls)
        for place in parse_bind_addresses(network.bind_addresses):
            await self._listen(gateway, place.host, place.port, self._tls if place.tls else None, place.listener)
        admin = await AdminServer.start(
            state, network.bind_address, self._http_places, _known_names(self._settings, self._listeners)
        )
        stack.push_async_callback(admin.close)
        http = await self._listen_http(admin, network.web_service_port)
        https = None if self._tls is None else await self._listen_http(admin, ports.web_service_port_tls, self._tls)
        if self._tls is not None:
            stack.push_async_callback(self._tls.close)
        if network.probe_service_port:
            await self._try(admin.listen_for_probes, network.probe_service_port)
        host = self._settings.advertised_address
        self._own = Addresses(
            url("pulsar", host, plain),
            None if secure is None else url("pulsar+ssl", host, secure),
            url("http", host, http),
            None if https is None else url("https", host, https),
        )

    async def _listen(
        self, gateway: Broker, host: str, port: int, secure: TlsListeners | None = None, listener: str = ""
    ) -> int:
        try:
            server = await listen(gateway, host, port, secure, listener, self._early.take(host, port))
        except OSError as error:
            raise _taken(host, port, error) from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _listen_http(self, admin: AdminServer, port: int, secure: TlsListeners | None = None) -> int:
        return await self._try(lambda at: admin.listen(at, secure), port)

    async def _try(self, listen: Callable[[int], Awaitable[int]], port: int) -> int:
        try:
            return await listen(port)
        except OSError as error:
            raise _taken(self._settings.network.bind_address, port, error) from None

    async def serve(self) -> None:
        """Let clients in."""
        for server in self._servers:
            await server.start_serving()

    def close(self) -> None:
        """Let no more clients in; those that are in stay."""
        for server in self._servers:
            server.close()

    def addresses(self, listener: str) -> Addresses | None:
        """The addresses for clients of a listener, see ``gateway.addresses.AddressBook``."""
        name = listener or self._internal
        if not name:
            return self._own
        found = self._listeners.get(name)
        if found is None or found.admin_url is not None or found.admin_url_tls is not None:
            return found
        return replace(found, admin_url=self._own.admin_url, admin_url_tls=self._own.admin_url_tls)

    def every(self) -> dict[str, Addresses]:
        """The addresses by listener; the empty name has those for clients that name none."""
        found = {name: self.addresses(name) for name in ("", *self._listeners)}
        return {name: addresses for name, addresses in found.items() if addresses is not None}

    def __str__(self) -> str:
        own = self._own
        return ", ".join(filter(None, (own.service_url, own.service_url_tls, own.admin_url, own.admin_url_tls)))

    @property
    def admin_url(self) -> str:
        """The admin API of this very process."""
        return self._own.admin_url or ""


def _known_names(settings: Settings, listeners: Mapping[str, Addresses]) -> frozenset[str]:
    """Host names that requests to this broker may name."""
    mine = listed_regions(settings).get(settings.region.cluster_name)
    urls = [] if mine is None else [mine.service_url, mine.service_url_tls]
    urls += [one for found in listeners.values() for one in astuple(found) if one]
    names = [settings.advertised_address, *(urlsplit(one).hostname or "" for one in urls)]
    names += settings.network.web_service_allowed_hosts.split(",")
    return frozenset(name.strip().rstrip(".").lower() for name in names)


def _tls_listeners(settings: Settings, handshakes: Places) -> TlsListeners | None:
    chosen = settings.tls
    if not chosen.is_served:
        return None
    try:
        context = tls.server_context(
            chosen.server_files,
            require_client_certificate=chosen.tls_require_trusted_client_cert_on_connect,
            check_seconds=chosen.tls_cert_refresh_check_duration_sec,
        )
    except tls.TlsFilesUnusable as error:
        raise SettingsError(str(error)) from error
    return TlsListeners(context, handshakes)


def client_tls(settings: Settings) -> tls.ContextSource | None:
    """TLS for connections to other regions; None: they are not encrypted.

    :raises SettingsError: its files cannot be used.
    """
    chosen = settings.tls
    if not chosen.broker_client_tls_enabled:
        return None
    try:
        return tls.client_context(
            chosen.client_files,
            verify_host=chosen.tls_hostname_verification_enabled,
            check_seconds=chosen.tls_cert_refresh_check_duration_sec,
        )
    except tls.TlsFilesUnusable as error:
        raise SettingsError(str(error)) from error


def _taken(host: str, port: int, error: OSError) -> SettingsError:
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else error
    return SettingsError(
        f"cannot listen on {host}:{port}: {why}. Stop the process that uses the port, or choose another with "
        "brokerServicePort, webServicePort, probeServicePort or bindAddresses"
    )
