# SPDX-License-Identifier: Apache-2.0
"""The files for encrypted connections to bookies."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BookieTls:
    """PEM files for connections to bookies."""

    ca_file: Path
    """Authorities that sign bookies' certificates."""
    certificate_file: Path | None = None
    """The client certificate, for bookies that require one."""
    key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """:raises OSError: a file cannot be read or used."""
        made = ssl.create_default_context(cafile=str(self.ca_file))
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate_file is not None:
            made.load_cert_chain(str(self.certificate_file), None if self.key_file is None else str(self.key_file))
        return made
