# SPDX-License-Identifier: Apache-2.0
"""Settings of the metadata store, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from meridian_broker.engines.etcd.address import BadAddress, Login, parse_endpoints
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.sync.choice import (
    CONFIGURATION_EVENT_TOPIC,
    EVENT_TOPIC,
    MAX_CLOCK_SKEW,
    SCOPES,
    TOMBSTONE_RETENTION,
    SyncChoice,
)
from meridian_broker.server.setting_fields import DYNAMIC, SettingsError, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """How the broker identifies itself to its metadata store, if that is etcd; and which metadata is kept equal in all
    regions (docs/metadata.md)."""

    metadata_sync_event_topic: str = field(default="", metadata=DYNAMIC)
    """The topic by which regions tell each other of changed metadata, for example
    `persistent://public/default/metadata-events`: a persistent topic without partitions, in a namespace that is
    replicated to every region that takes part. It belongs to the brokers: clients are refused. Needs `peerTokenFile`.
    Empty: metadata is not synchronized."""

    configuration_metadata_sync_event_topic: str = field(default="", metadata=DYNAMIC)
    """The same, as Pulsar names it for its configuration store. A region of Meridian has one metadata store: set one of
    the two."""

    metadata_sync_scopes: str = field(default="tenants,namespaces", metadata=DYNAMIC)
    """What is kept equal, separated by commas: `tenants` with their admin roles and allowed clusters, `namespaces` with
    all their policies, `topicPolicies` with the policies of topics, `partitionedTopics` with the partitioned topics
    that are not persistent, `schemas` with the schemas of topics, `permissions` with those of roles on namespaces and
    topics, `clusters` with the list of regions. A region ignores events of other scopes."""

    metadata_sync_tombstone_retention_seconds: int = whole(604_800, 0, 315_360_000, dynamic=True)
    """How long, in seconds, deletions are remembered for a region that is away; at least 3600. A region that most
    others have not heard from for longer is not waited for, and joins as a new one when it is back. 0: they are
    remembered for as long as it is away."""

    metadata_sync_max_clock_skew_seconds: int = whole(10, 1, 3600, dynamic=True)
    """How far, in seconds, the clocks of regions may differ. A change whose stamp is further in the future than this
    waits until its time has come, and a region that is off by more against most others changes no shared metadata. Set
    it to the same value in all regions."""

    metadata_store_user: str = ""
    """User name at etcd. Empty: etcd asks for none. `meridian secure-etcd` makes the user and switches etcd's
    authentication on."""

    metadata_store_password_file: Path | None = None
    """File with the user's password. It is read at each login, so the password can be changed while the broker runs."""

    metadata_store_trust_certs_file_path: Path | None = None
    """CA certificates to trust for connections to etcd, PEM. Empty: gRPC's built-in ones."""

    metadata_store_certificate_file_path: Path | None = None
    """Certificate that the broker shows to etcd, PEM. This file, its key and the authorities are read again when a
    connection has failed."""

    metadata_store_key_file_path: Path | None = None
    """The certificate's private key, without a password."""

    @property
    def login(self) -> Login:
        """The credentials for etcd."""
        return Login(
            self.metadata_store_user,
            self.metadata_store_password_file,
            self.metadata_store_trust_certs_file_path,
            self.metadata_store_certificate_file_path,
            self.metadata_store_key_file_path,
        )

    def sync_choice(self) -> SyncChoice:
        """:raises Invalid: the settings make no sense."""
        return SyncChoice(
            {
                EVENT_TOPIC: self.metadata_sync_event_topic,
                CONFIGURATION_EVENT_TOPIC: self.configuration_metadata_sync_event_topic,
                SCOPES: self.metadata_sync_scopes,
                MAX_CLOCK_SKEW: str(self.metadata_sync_max_clock_skew_seconds),
                TOMBSTONE_RETENTION: str(self.metadata_sync_tombstone_retention_seconds),
            }
        )

    def check(self, url: str, *, has_peer_secret: bool) -> None:
        """
        :param url: ``metadataStoreUrl``; empty: the embedded store.
        :param has_peer_secret: other regions can prove what they write.
        :raises SettingsError: it has no known form, contains credentials, or does not go with the other settings.
        """
        try:
            choice = self.sync_choice()
        except Invalid as error:
            raise SettingsError(str(error)) from None
        if choice.topic and not has_peer_secret:
            key = EVENT_TOPIC if self.metadata_sync_event_topic else CONFIGURATION_EVENT_TOPIC
            raise SettingsError(
                f"{key}: set peerTokenFile too, the same in all regions: without it, anybody who can "
                "write to the topic in any region could write this region's metadata"
            )
        kind, _, rest = url.partition(":")
        if "@" in rest and kind != "sqlite":
            # The part before it may be a password: do not repeat any of the text.
            raise SettingsError(
                "metadataStoreUrl contains a user name or password. Addresses appear in logs: remove the credentials "
                "and set metadataStoreUser and metadataStorePasswordFile"
            )
        if url and not (kind in ("sqlite", "etcd") and rest):
            raise SettingsError(f"metadataStoreUrl={url!r}: expected sqlite:PATH or etcd:http://HOST:PORT")
        is_tls = False
        if kind == "etcd":
            try:
                is_tls = parse_endpoints(rest)[0].is_tls
            except BadAddress as error:
                raise SettingsError(
                    f"metadataStoreUrl: expected sqlite:PATH or etcd:http://HOST:PORT: {error}"
                ) from None
        if bool(self.metadata_store_user) != (self.metadata_store_password_file is not None):
            raise SettingsError("metadataStoreUser and metadataStorePasswordFile: expected both or neither")
        if (self.metadata_store_certificate_file_path is None) != (self.metadata_store_key_file_path is None):
            raise SettingsError(
                "metadataStoreCertificateFilePath and metadataStoreKeyFilePath: expected both or neither"
            )
        certificates = {
            "metadataStoreTrustCertsFilePath": self.metadata_store_trust_certs_file_path,
            "metadataStoreCertificateFilePath": self.metadata_store_certificate_file_path,
        }
        given = ", ".join(key for key, file in certificates.items() if file is not None)
        if self.metadata_store_user and kind != "etcd":
            raise SettingsError("metadataStoreUser: expected a metadataStoreUrl that begins with etcd:")
        if given and not is_tls:
            raise SettingsError(f"{given}: expected a metadataStoreUrl that begins with etcd:https:")
