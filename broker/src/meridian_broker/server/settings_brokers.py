# SPDX-License-Identifier: Apache-2.0
"""Settings of a broker that is one of several in its region."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from meridian_broker.server.setting_fields import SettingsError, whole

ONLY_BROKER: Final = "broker-0"
"""The id, in the metadata, of a broker that is its region's only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Several brokers in one region. They share its ledgers on BookKeeper and its metadata in etcd, and each serves a
    part of the topics."""

    broker_id: str = ""
    """Which of its region's brokers this one is: unique in the region, and the same after a restart. Empty: it is the
    only one. Several brokers need `managedLedgerStorage=bookkeeper`. Letters, digits, `-`, `_` and `.`, at most 64; not
    `broker-0`."""

    metadata_store_session_timeout_millis: int = whole(10_000, 2_000, 600_000)
    """With `brokerId`: how long, in milliseconds, after a broker dies the other brokers take over its topics. A broker
    that cannot reach etcd serves its topics for 80% of this time."""

    @property
    def is_one_of_several(self) -> bool:
        return bool(self.broker_id)

    @property
    def id_on_record(self) -> str:
        """The broker's id in the metadata."""
        return self.broker_id or ONLY_BROKER

    def check(self) -> None:
        """:raises SettingsError: the id cannot be used."""
        if self.broker_id and not re.fullmatch(r"[A-Za-z0-9][-_.A-Za-z0-9]{0,63}", self.broker_id):
            raise SettingsError(
                f"brokerId={self.broker_id!r}: expected a letter or digit and then at most 63 letters, digits, '-', "
                "'_' or '.'"
            )
        if self.broker_id == ONLY_BROKER:
            raise SettingsError(f"brokerId={ONLY_BROKER}: that is the id of a region's only broker, choose another one")
