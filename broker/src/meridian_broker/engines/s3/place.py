# SPDX-License-Identifier: Apache-2.0
"""Which bucket, and where. No credentials: those come from the process's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket, or a part of one."""

    bucket: str
    region: str = ""
    """AWS region. Empty: the environment's, else us-east-1."""
    endpoint: str = ""
    """URL of the store. Empty: that of AWS."""
    prefix: str = ""
    """Prefix of all keys, without slashes at its ends."""
    ca_file: Path | None = None
    """PEM file with authorities that sign the store's certificate, besides those of the system."""
    max_attempts: int = 4
    timeout_seconds: float = 30.0
    """Time limit of one request, and again of all its retries together."""

    def describe(self) -> dict[str, Any]:
        """As JSON, for another process."""
        return {**asdict(self), "ca_file": None if self.ca_file is None else str(self.ca_file)}

    @classmethod
    def described(cls, source: Mapping[str, Any]) -> S3Place:
        """The inverse of ``describe``."""
        ca_file = source["ca_file"]
        return cls(**{**source, "ca_file": None if ca_file is None else Path(ca_file)})
