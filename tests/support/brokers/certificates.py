# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: an authority that issues them for hosts and clients, as PEM files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.trusted = directory / f"{name}.pem"
        """The authority's certificate, for peers that trust it."""
        self._authority.cert_pem.write_to_path(str(self.trusted))

    def issue(self, name: str, *hosts: str, common_name: str | None = None, unit: str | None = None) -> Pair:
        """Write ``name.pem`` and ``name.key``, replacing older ones; without hosts, they are for loopback or for a
        client of that name. :param unit: OU of the subject."""
        anywhere = (f"{common_name}@example.org",) if common_name else ("127.0.0.1", "localhost")
        made = self._authority.issue_cert(*(hosts or anywhere), common_name=common_name, organization_unit_name=unit)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        made.private_key_pem.write_to_path(str(pair.key))
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return pair


def served(pair: Pair, port: int, http_port: int) -> dict[str, str]:
    """Settings of a broker that serves TLS with this certificate and checks the files at every connection."""
    return {
        "tlsCertificateFilePath": str(pair.certificate),
        "tlsKeyFilePath": str(pair.key),
        "tlsCertRefreshCheckDurationSec": "0",
        "brokerServicePortTls": str(port),
        "webServicePortTls": str(http_port),
    }
