# SPDX-License-Identifier: Apache-2.0
"""TLS contexts from PEM files, for both directions; the files are read again when they change.

Certificates are renewed while brokers run. So the files are checked when a handshake begins, at most once per check
interval; open connections stay as they are. Files that cannot be used, perhaps because they are just being
written, change nothing: the last valid ones stay in force, and the log reports it once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from meridian_broker.gateway.followed_files import Identity, identity

log = logging.getLogger(__name__)

ContextSource = Callable[[], ssl.SSLContext]
"""The context to use for a new connection."""


class TlsFilesUnusable(Exception):
    """Certificates or a key cannot be read, or do not belong together. The message names the files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. ``certificate`` and ``key`` identify this broker, ``trusted`` verifies others."""

    certificate: Path | None = None
    """The certificate, followed by the intermediate ones up to its authority."""
    key: Path | None = None
    trusted: Path | None = None
    """CA certificates. None: a server asks for no client certificate, a client uses the system's trust store."""

    def paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.trusted) if path is not None]


def server_context(
    files: TlsFiles,
    *,
    require_client_certificate: bool,
    check_seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> ssl.SSLContext:
    """A context for listeners that always presents the newest certificate.

    :param require_client_certificate: refuse clients without one; a certificate that is presented is always verified.
    :param check_seconds: how long files are believed to be unchanged.
    :raises TlsFilesUnusable: now; later such files are reported and not used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if files.trusted is not None:
            context.verify_mode = ssl.CERT_REQUIRED if require_client_certificate else ssl.CERT_OPTIONAL
        return _filled(context, files)

    source = _Reloading(make, files.paths(), check_seconds, now)

    def newest(connection: ssl.SSLObject, name: str | None, before: ssl.SSLContext) -> None:
        del name, before
        connection.context = source()

    context = make()
    context.sni_callback = newest
    return context


def client_context(
    files: TlsFiles, *, verify_host: bool = True, check_seconds: float = 0.0, now: Callable[[], float] = time.monotonic
) -> ContextSource:
    """Contexts for connections to others.

    :param verify_host: the server's certificate must be for the host that we connect to.
    :raises TlsFilesUnusable: now; later such files are reported and not used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = verify_host
        if files.trusted is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return _filled(context, files)

    return _Reloading(make, files.paths(), check_seconds, now)


def channel_binding(transport: asyncio.BaseTransport) -> bytes:
    """Bytes that are the same at both ends of a TLS connection and on no other connection; empty without TLS.

    It is ``tls-unique`` (RFC 5929): the client's Finished message, a MAC over the whole TLS handshake including the
    server's certificate. An attacker who relays between two TLS connections cannot make the two values equal. RFC 8446
    leaves ``tls-unique`` undefined for TLS 1.3 because of resumed sessions; Python gives both ends the client's
    Finished there too, and regions do not resume sessions.

    :raises ssl.SSLError: the library has none to give.
    """
    connection = transport.get_extra_info("ssl_object")
    if connection is None:
        return b""
    binding: bytes | None = connection.get_channel_binding("tls-unique")
    if not binding:
        raise ssl.SSLError("this TLS connection has no channel binding")
    return binding


def _filled(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if files.certificate is not None:
            # An encrypted key would have OpenSSL ask for its password on the terminal.
            context.load_cert_chain(files.certificate, files.key, password="")
        if files.trusted is not None:
            context.load_verify_locations(files.trusted)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(str(path) for path in files.paths())
        raise TlsFilesUnusable(f"cannot use these TLS files together ({names}): {error}") from error
    return context


class _Reloading:
    """Rebuilds a context when one of its files has changed."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        paths: Iterable[Path],
        check_seconds: float,
        now: Callable[[], float],
    ) -> None:
        self._make = make
        self._paths = list(paths)
        self._check_seconds = check_seconds
        self._now = now
        self._seen = self._look()
        self._looked_at = now()
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        now = self._now()
        if now - self._looked_at >= self._check_seconds:
            self._looked_at = now
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._reload()
        return self._context

    def _look(self) -> list[Identity | None]:
        return [identity(path) for path in self._paths]

    def _reload(self) -> None:
        try:
            self._context = self._make()
        except TlsFilesUnusable as error:
            log.warning("%s. The files read before stay in use", error)
        else:
            log.info("reloaded %s", ", ".join(str(path) for path in self._paths))
