# SPDX-License-Identifier: Apache-2.0
"""Settings for the automatic deletion of unused topics and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from meridian_broker.server.setting_fields import DYNAMIC, whole

InactiveMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalSettings:
    """Deletion of unused topics and subscriptions. Policies of the topic or its namespace come first. A topic that
    exists in several regions is never deleted automatically."""

    broker_delete_inactive_topics_enabled: bool = field(default=False, metadata=DYNAMIC)
    """Unused topics are deleted with their messages. Pulsar's default is true; here nothing is deleted unless you ask
    for it."""

    broker_delete_inactive_topics_frequency_seconds: int = whole(60, 1, 86_400)
    """Seconds between checks for them."""

    broker_delete_inactive_topics_mode: InactiveMode = field(default="delete_when_no_subscriptions", metadata=DYNAMIC)
    """Topics that count as unused: those without subscriptions, or also those whose subscriptions have acknowledged
    everything."""

    broker_delete_inactive_topics_max_inactive_duration_seconds: int = whole(0, 0, 1_000_000_000, dynamic=True)
    """Seconds for which such a topic must have had no clients and no new messages. 0: the time between two checks."""

    subscription_expiration_time_minutes: int = whole(0, 0, 100_000_000, dynamic=True)
    """Minutes without a consumer after which a subscription is deleted; a replicated one only if it had none in any
    region, and not while a region cannot be asked. 0: never."""

    subscription_expiry_check_interval_in_minutes: int = whole(5, 1, 100_000)
    """Minutes between checks for them."""
