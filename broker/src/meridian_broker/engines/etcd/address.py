# SPDX-License-Identifier: Apache-2.0
"""Where an etcd is and how the broker identifies itself there. Checked without connecting; imports no gRPC.

A URL never carries credentials, because URLs appear in logs, errors and process lists. User name and files are given
separately, and the files are read when they are needed, so that a password or certificate can be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from meridian_broker.metadata.store import MetadataError

ENDPOINTS_MAX: Final = 16
"""More than any etcd cluster has members."""

FILE_BYTES_MAX: Final = 1 << 20
"""Largest password, certificate or key file that is read."""

_FORM = "http://127.0.0.1:2379, or several https://HOST:PORT separated by commas"


class BadAddress(MetadataError):
    """The text is not the address of an etcd. The message never repeats credentials."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of an etcd cluster, as clients reach it."""

    host: str
    """A name or an IP address, or the absolute path of a Unix socket, which a URL cannot name."""
    port: int
    is_tls: bool

    @property
    def target(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        if self.host.startswith("/"):
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.target}"


@dataclass(frozen=True, slots=True)
class Login:
    """The broker's credentials for etcd, and the certificates it trusts."""

    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    """Authorities that sign etcd's certificate, PEM. None: gRPC's own list of public authorities."""
    certificate_file: Path | None = None
    key_file: Path | None = None

    def password(self) -> str:
        """:raises MetadataError: the file cannot be read or is empty."""
        assert self.password_file is not None
        try:
            text = _content(self.password_file).decode().strip()
        except UnicodeDecodeError:
            raise MetadataError(f"the password file {self.password_file} for etcd is not UTF-8 text") from None
        if not text:
            raise MetadataError(f"the password file {self.password_file} for etcd is empty")
        return text

    def tls_files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The current authorities, private key and certificate. :raises MetadataError: one cannot be read."""
        ca, key, certificate = (
            None if file is None else _content(file) for file in (self.ca_file, self.key_file, self.certificate_file)
        )
        return ca, key, certificate


ANONYMOUS: Final = Login()


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of ``http://host:port,http://host2:port``.

    :raises BadAddress: it has another form, contains credentials, or mixes TLS with plain text.
    """
    if "@" in text:
        raise BadAddress(
            "the address of etcd contains a user name or password. Addresses appear in logs: remove the credentials "
            "and set metadataStoreUser and metadataStorePasswordFile"
        )
    endpoints = tuple(_endpoint(part.strip(), text) for part in text.split(","))
    if len(endpoints) > ENDPOINTS_MAX:
        raise BadAddress(f"{len(endpoints)} etcd endpoints are too many: the limit is {ENDPOINTS_MAX}")
    if len({endpoint.is_tls for endpoint in endpoints}) > 1:
        raise BadAddress(f"{text!r}: use https for all endpoints of etcd, or for none")
    return endpoints


def _endpoint(part: str, text: str) -> Endpoint:
    try:
        url = urlsplit(part)
        host, port = url.hostname, url.port
    except ValueError:  # a port over 65535, a broken IPv6 address
        host = port = None
    if not host or not port or url.scheme not in ("http", "https") or url.path not in ("", "/") or url.query:
        raise BadAddress(f"{text!r} is not an etcd address: it must look like {_FORM}")
    return Endpoint(host, port, url.scheme == "https")


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise MetadataError(f"cannot read {file}, needed to reach etcd: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise MetadataError(f"{file} is larger than {FILE_BYTES_MAX} bytes: is it the right file?")
    return content
