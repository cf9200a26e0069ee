# SPDX-License-Identifier: Apache-2.0
"""What the brokers of a region tell each other about ownership, as values and as stored.

Both records are attached to their broker's lease, so they vanish when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meridian_broker.metadata import records
from meridian_broker.metadata.store import MetadataError

AddressesByListener = Mapping[str, Mapping[str, str]]
"""A broker's addresses: listener's name (empty: the default one) -> kind of address -> address."""


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker that is alive."""

    broker: str
    """Its id, unique in the region."""
    session: str
    """Names one lease of one process: a broker's records from an earlier session are no longer its own."""
    addresses: AddressesByListener = field(default_factory=dict)
    usage: float = 0.0
    """Fraction of its capacity in use."""
    draining: bool = False
    """It is about to stop and gets no more bundles."""

    @property
    def lease(self) -> int | None:
        """The lease of its session, on which all that it owns depends; None: not stated."""
        try:
            return int(self.session.rpartition("#")[2], 16)
        except ValueError:
            return None

    def encode(self) -> bytes:
        return records.encode(
            {
                "broker": self.broker,
                "session": self.session,
                "addresses": {name: dict(addresses) for name, addresses in self.addresses.items()},
                "usage": self.usage,
                "draining": self.draining,
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> BrokerRecord:
        """:raises MetadataError: it is not valid."""
        value = _mapping(path, data)
        try:
            addresses = {str(name): dict(one) for name, one in value["addresses"].items()}
            return cls(
                str(value["broker"]), str(value["session"]), addresses, float(value["usage"]), bool(value["draining"])
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MetadataError(f"{path} is not a valid broker record: {error}") from error


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The owner of a bundle, for one term."""

    broker: str
    session: str
    fence: int
    """The fence of the term."""

    def encode(self) -> bytes:
        return records.encode({"broker": self.broker, "session": self.session, "fence": self.fence})

    @classmethod
    def decode(cls, path: str, data: bytes) -> OwnerRecord:
        """:raises MetadataError: it is not valid."""
        value = _mapping(path, data)
        try:
            return cls(str(value["broker"]), str(value["session"]), int(value["fence"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"{path} is not a valid owner record: {error}") from error


def _mapping(path: str, data: bytes) -> Mapping[str, Any]:
    value, _ = records.decode(path, data)
    if not isinstance(value, Mapping):
        raise MetadataError(f"{path} holds {value!r}: expected an object")
    return value
