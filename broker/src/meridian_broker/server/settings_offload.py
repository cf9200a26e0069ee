# SPDX-License-Identifier: Apache-2.0
"""Settings of the object store that sealed ledgers are offloaded to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from meridian_broker.engines.s3.place import S3Place
from meridian_broker.server.setting_fields import SettingsError, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """Sealed ledgers in S3, or in a store that speaks its protocol ([offload.md](offload.md)). Credentials are not
    settings: the broker takes them from its environment, as AWS's own tools do."""

    managed_ledger_offload_driver: Literal["", "aws-s3", "S3"] = ""
    """`aws-s3` or `S3`: ledgers can be offloaded to the bucket below; the two mean the same. Empty: they cannot. Once
    ledgers have been offloaded, the broker does not start without it."""

    s3_managed_ledger_offload_bucket: str = ""
    """Name of the bucket. It has to exist."""

    s3_managed_ledger_offload_region: str = ""
    """Region of the bucket. Empty: the one in the environment (`AWS_REGION`), otherwise us-east-1."""

    s3_managed_ledger_offload_service_endpoint: str = ""
    """URL of the store, `https://` or `http://`. Empty: AWS."""

    offload_prefix: str = "meridian"
    """Where in the bucket the copies are: `PREFIX/clusterName/`. No other Meridian may have a region of that name in
    the same place."""

    offload_trust_certs_file_path: Path | None = None
    """Authorities that sign the certificate of the store, PEM, besides those of the system."""

    s3_managed_ledger_offload_max_block_size_in_bytes: int = whole(16 << 20, 1 << 20, 1 << 30)
    """Bytes of one object. The broker holds one in memory while it copies a ledger."""

    s3_managed_ledger_offload_read_buffer_size_in_bytes: int = whole(1 << 20, 64 << 10, 64 << 20)
    """Bytes that are read from the store at once."""

    offload_read_cache_size_mb: int = whole(64, 0, 1_000_000, key="offloadReadCacheSizeMB")
    """Mebibytes of recently read offloaded entries kept in memory."""

    managed_ledger_data_read_priority: Literal["tiered-storage-first", "bookkeeper-first"] = "tiered-storage-first"
    """Where a ledger is read while it is in both places: from the object store, or, with `bookkeeper-first`, where it
    was stored, whichever storage that is. The other place is read if the first one fails."""

    managed_ledger_offload_auto_trigger_size_threshold_bytes: int = whole(-1, -1, 1 << 60)
    """Bytes of a topic's newest messages that are not offloaded; older ledgers are. -1: never because of size. A
    namespace's or topic's own policy comes first."""

    managed_ledger_offload_threshold_in_seconds: int = whole(-1, -1, 1 << 40)
    """Seconds after which a sealed ledger is offloaded. -1: never because of age. A namespace's or topic's own policy
    comes first."""

    managed_ledger_offload_deletion_lag_ms: int = whole(4 * 3600 * 1000, -1, 1 << 50)
    """Milliseconds for which the original of an offloaded ledger stays. -1: as long as it is needed. A namespace's or
    topic's own policy comes first."""

    def check(self) -> None:
        """:raises SettingsError: keys do not go together."""
        if self.managed_ledger_offload_driver and not self.s3_managed_ledger_offload_bucket:
            raise SettingsError(
                f"managedLedgerOffloadDriver={self.managed_ledger_offload_driver}: expected "
                "s3ManagedLedgerOffloadBucket, too"
            )
        endpoint = urlsplit(self.s3_managed_ledger_offload_service_endpoint)
        if endpoint.geturl() and (endpoint.scheme not in ("http", "https") or not endpoint.hostname):
            raise SettingsError("s3ManagedLedgerOffloadServiceEndpoint: expected https://HOST or http://HOST:PORT")
        if endpoint.username or endpoint.password:
            raise SettingsError(
                "s3ManagedLedgerOffloadServiceEndpoint contains credentials: give them in the environment, as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )

    @property
    def place(self) -> S3Place | None:
        """The bucket; None: ledgers are not offloaded."""
        if not self.managed_ledger_offload_driver:
            return None
        return S3Place(
            bucket=self.s3_managed_ledger_offload_bucket,
            region=self.s3_managed_ledger_offload_region,
            endpoint=self.s3_managed_ledger_offload_service_endpoint.rstrip("/"),
            prefix=self.offload_prefix.strip("/"),
            ca_file=self.offload_trust_certs_file_path,
        )
