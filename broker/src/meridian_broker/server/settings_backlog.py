# SPDX-License-Identifier: Apache-2.0
"""Limits on the backlog of subscriptions and other regions, and what happens beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from meridian_broker.server.setting_fields import DYNAMIC, whole

QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSettings:
    """How much may wait, per topic or partition, for its slowest subscription or for another region. Policies of the
    topic or its namespace come first."""

    backlog_quota_check_enabled: bool = True
    """Quotas are enforced."""

    backlog_quota_check_interval_in_seconds: int = whole(60, 1, 86_400)
    """Seconds between checks for topics that are over their quota. Producers are also checked when they connect."""

    backlog_quota_default_limit_bytes: int = whole(-1, -1, 1 << 60, dynamic=True)
    """Bytes that may wait. -1: no limit."""

    backlog_quota_default_limit_second: int = whole(-1, -1, 100 * 366 * 24 * 3600, dynamic=True)
    """Seconds for which the oldest message may wait. -1 and 0: no limit."""

    backlog_quota_default_retention_policy: QuotaPolicy = field(default="producer_request_hold", metadata=DYNAMIC)
    """What happens beyond that: producers are disconnected and wait (`producer_request_hold`) or fail
    (`producer_exception`), or the oldest messages are dropped unacknowledged (`consumer_backlog_eviction`)."""
