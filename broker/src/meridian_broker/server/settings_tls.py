# SPDX-License-Identifier: Apache-2.0
"""Settings of encrypted connections, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meridian_broker.gateway.tls import TlsFiles
from meridian_broker.server.setting_fields import SettingsError, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Encrypted connections, TLS 1.2 or newer. The broker listens on its TLS ports when it is given a certificate.
    All files are PEM; those that change are read again without a restart."""

    tls_certificate_file_path: Path | None = None
    """This broker's certificate, followed by its intermediate certificates. Empty: no TLS ports."""

    tls_key_file_path: Path | None = None
    """The certificate's private key, without a password."""

    tls_trust_certs_file_path: Path | None = None
    """CA certificates for client certificates. When this is set, clients are asked for a certificate, and one that
    they present must be signed by one of these."""

    tls_require_trusted_client_cert_on_connect: bool = False
    """Refuse connections to the TLS ports without a client certificate."""

    tls_cert_refresh_check_duration_sec: int = whole(300, 0, 86_400)
    """How often, in seconds, certificate files are checked for changes. 0: on every connection."""

    broker_service_port_tls: int = whole(6651, 0, 65535)
    """Port of the Pulsar protocol over TLS. 0 lets the system choose."""

    web_service_port_tls: int = whole(8443, 0, 65535)
    """Port of the admin REST API over TLS. 0 lets the system choose."""

    broker_client_tls_enabled: bool = False
    """Connect to other regions over TLS only: at their `brokerServiceUrlTls` and, for the admin API, `serviceUrlTls`.
    There is no connection to a region without these."""

    broker_client_trust_certs_file_path: Path | None = None
    """CA certificates to trust for connections to other regions. Empty: those of the operating system."""

    broker_client_certificate_file_path: Path | None = None
    """Certificate that this broker shows to other regions when they ask for one."""

    broker_client_key_file_path: Path | None = None
    """Its private key."""

    tls_hostname_verification_enabled: bool = True
    """The certificate of another region's broker must be for the host that the address names."""

    @property
    def is_served(self) -> bool:
        """There are TLS ports."""
        return self.tls_certificate_file_path is not None

    @property
    def server_files(self) -> TlsFiles:
        """Files of the listeners."""
        return TlsFiles(self.tls_certificate_file_path, self.tls_key_file_path, self.tls_trust_certs_file_path)

    @property
    def client_files(self) -> TlsFiles:
        """Files of connections to other regions."""
        return TlsFiles(
            self.broker_client_certificate_file_path,
            self.broker_client_key_file_path,
            self.broker_client_trust_certs_file_path,
        )

    def check(self) -> None:
        """:raises SettingsError: a setting is given without another one that it needs."""
        if (self.tls_certificate_file_path is None) != (self.tls_key_file_path is None):
            raise SettingsError("tlsCertificateFilePath and tlsKeyFilePath: expected both or neither")
        if (self.broker_client_certificate_file_path is None) != (self.broker_client_key_file_path is None):
            raise SettingsError("brokerClientCertificateFilePath and brokerClientKeyFilePath: expected both or neither")
        if self.tls_require_trusted_client_cert_on_connect and self.tls_trust_certs_file_path is None:
            raise SettingsError("tlsRequireTrustedClientCertOnConnect=true: expected tlsTrustCertsFilePath as well")
