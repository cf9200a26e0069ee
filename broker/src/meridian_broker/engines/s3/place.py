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
    """AWS region. Empty: what the environment says, else us-east-1."""
    endpoint: str = ""
    """URL of the store; empty: that of AWS."""
    prefix: str = ""
    """What all keys begin with, without slashes at the ends."""
    ca_file: Path | None = None
    """Authorities that sign the store's certificate, PEM, besides those of the system."""
    max_attempts: int = 4
    timeout_seconds: float = 30.0
    """Longest time for one request, and again for the attempts after the first."""

    def describe(self) -> dict[str, Any]:
        """As JSON, for another process."""
        return {**asdict(self), "ca_file": None if self.ca_file is None else str(self.ca_file)}

    @classmethod
    def described(cls, source: Mapping[str, Any]) -> S3Place:
        """The other way round."""
        ca_file = source["ca_file"]
        return cls(**{**source, "ca_file": None if ca_file is None else Path(ca_file)})
