# SPDX-License-Identifier: Apache-2.0
"""Settings of what is stored, for how long, and compacted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.zones import parse_zones
from meridian_broker.server.setting_fields import SettingsError, whole

LedgerStorageKind = Literal["local", "bookkeeper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Ledgers, and how long messages stay. Unacknowledged ones stay unless a time to live or a quota says otherwise."""

    managed_ledger_storage: LedgerStorageKind = "local"
    """Where messages and acknowledgements are stored. `local`: in `dataDirectory`. `bookkeeper`: on the Apache
    BookKeeper bookies that are registered in the etcd of `metadataStoreUrl`; then nothing that is needed later is in
    `dataDirectory` ([operations.md](operations.md)). Choose it when you create a region: stored data is not moved."""

    managed_ledger_default_ensemble_size: int = whole(3, 1, 20)
    """With `bookkeeper`: number of bookies that store a ledger; fewer while fewer are registered."""

    managed_ledger_default_write_quorum: int = whole(3, 1, 20)
    """With `bookkeeper`: number of bookies that store each entry. Must equal the ensemble size: ledgers are not
    striped."""

    managed_ledger_default_ack_quorum: int = whole(2, 1, 20)
    """With `bookkeeper`: number of bookies that have synced a message when its producer gets the receipt."""

    bookie_zones: str = ""
    """With `bookkeeper`: the zone of each bookie, as `BOOKIE=ZONE` separated by commas. A BOOKIE that ends in `*`
    stands for all ids that begin with it; the longest match counts. Each message is stored in as many zones as there
    are ([operations.md](operations.md#zones)). Empty: zones are ignored."""

    bookie_ca_file: Path | None = field(default=None, metadata={"key": "bookkeeperTLSTrustCertsFilePath"})
    """With `bookkeeper`: authorities that sign the bookies' certificates, PEM. With it all connections to bookies are
    encrypted, and a bookie that serves no TLS is not used. Empty: connections are not encrypted."""

    bookie_certificate_file: Path | None = field(default=None, metadata={"key": "bookkeeperTLSCertificateFilePath"})
    """Certificate that the broker shows to bookies that ask for one, PEM. Certificates and keys are read for each
    connection."""

    bookie_key_file: Path | None = field(default=None, metadata={"key": "bookkeeperTLSKeyFilePath"})
    """The certificate's private key, without a password."""

    default_retention_time_in_minutes: int = whole(0, -1, 10 * 366 * 24 * 60, dynamic=True)
    """Minutes for which messages are kept after every subscription has acknowledged them. -1: without limit. A
    namespace's own policy comes first."""

    default_retention_size_in_mb: int = whole(0, -1, 1_000_000_000, key="defaultRetentionSizeInMB", dynamic=True)
    """Mebibytes of such messages kept per topic. -1: no limit. A message is deleted as soon as either limit is
    exceeded; if one of the two is 0 and the other is not, none is kept."""

    ttl_duration_default_in_seconds: int = whole(
        0, 0, 100 * 366 * 24 * 3600, key="ttlDurationDefaultInSeconds", dynamic=True
    )
    """Seconds after which unacknowledged messages are dropped, in each region separately. 0: never. A namespace's own
    policy comes first."""

    message_expiry_check_interval_in_minutes: int = whole(5, 1, 1_000_000)
    """Minutes between checks for messages that are older than that. A changed policy takes effect within a second."""

    retention_check_interval_in_seconds: int = whole(120, 1, 86_400)
    """Seconds between checks for ledgers whose space can be freed."""

    broker_service_compaction_threshold_in_bytes: int = whole(0, 0, 1 << 50, dynamic=True)
    """Approximate number of uncompacted bytes at which a topic is compacted automatically. A policy of the topic or of
    its namespace comes first. 0: only on request."""

    broker_service_compaction_monitor_interval_in_seconds: int = whole(60, 1, 86_400)
    """Seconds between checks for topics that are due to be compacted. One topic is compacted at a time."""

    topic_compaction_retain_null_key: bool = True
    """Compaction keeps messages without a key. Those in batches that cannot be opened are kept in any case."""

    compaction_rate_in_mb_per_second: int = whole(16, 0, 1_000_000, key="compactionRateInMBPerSecond")
    """Mebibytes that compaction reads per second, a message counting as at least 1 KiB, so that it leaves the broker
    free for its clients. It reads a topic twice, and once more for every million keys. 0: no limit."""

    managed_ledger_max_entries_per_ledger: int = whole(50_000, 1, 10_000_000)
    """Entries after which a topic starts a new ledger. Space is freed by whole ledgers."""

    managed_ledger_max_size_per_ledger_mbytes: int = whole(2048, 1, 1_000_000)
    """Mebibytes after which a topic starts a new ledger."""

    managed_ledger_cache_size_mb: int = whole(64, 0, 1_000_000, key="managedLedgerCacheSizeMB", dynamic=True)
    """Mebibytes of the newest entries of all topics kept in memory for consumers that keep up."""

    def check(self, metadata_store_url: str) -> None:
        """:raises SettingsError: keys do not go together."""
        ensemble, quorum = self.managed_ledger_default_ensemble_size, self.managed_ledger_default_write_quorum
        if ensemble != quorum:
            raise SettingsError(
                f"managedLedgerDefaultEnsembleSize={ensemble} and managedLedgerDefaultWriteQuorum={quorum}: expected "
                "the same number, because ledgers are not striped"
            )
        if self.managed_ledger_default_ack_quorum > quorum:
            raise SettingsError(
                f"managedLedgerDefaultAckQuorum={self.managed_ledger_default_ack_quorum}: expected at most "
                f"managedLedgerDefaultWriteQuorum={quorum}"
            )
        try:
            parse_zones(self.bookie_zones)
        except ValueError as error:
            raise SettingsError(f"bookieZones: {error}") from None
        trusted, certificate = self.bookie_ca_file, self.bookie_certificate_file
        if (certificate is None) != (self.bookie_key_file is None):
            raise SettingsError(
                "bookkeeperTLSCertificateFilePath and bookkeeperTLSKeyFilePath: expected both or neither"
            )
        if certificate is not None and trusted is None:
            raise SettingsError("bookkeeperTLSCertificateFilePath: expected bookkeeperTLSTrustCertsFilePath, too")
        if self.managed_ledger_storage == "bookkeeper" and not metadata_store_url.startswith("etcd:"):
            raise SettingsError(
                "managedLedgerStorage=bookkeeper: expected a metadataStoreUrl that begins with etcd:, the etcd where "
                "the bookies are registered"
            )

    @property
    def bookie_tls(self) -> BookieTls | None:
        """The files for connections to bookies; None: these are not encrypted."""
        trusted = self.bookie_ca_file
        if trusted is None:
            return None
        return BookieTls(trusted, self.bookie_certificate_file, self.bookie_key_file)
