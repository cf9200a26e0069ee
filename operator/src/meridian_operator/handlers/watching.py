# SPDX-License-Identifier: Apache-2.0
"""kopf's part: it watches, and tells the desk. Importing this module registers the handlers.

Handlers of raw events leave no mark on objects. kopf's change handlers and timers would: annotations that take every
other annotation of the same prefix out of sight, and a finalizer on each object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from meridian_operator.api.shared import GROUP, VERSION
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.replicated_subscriptions import ReplicatedSubscriptions
from meridian_operator.handlers.subject import Views

_GEO_TOPICS = GeoTopics()
_SUBSCRIPTIONS = ReplicatedSubscriptions()


@kopf.on.event(GROUP, VERSION, GeoTopics.kind.plural)
async def geo_topic(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A GeoTopic was listed, or has changed."""
    memo.desk.heard(_GEO_TOPICS, event["type"], event["object"], Views.of(kwargs))


@kopf.on.event(GROUP, VERSION, ReplicatedSubscriptions.kind.plural)
async def replicated_subscription(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A ReplicatedSubscription was listed, or has changed."""
    memo.desk.heard(_SUBSCRIPTIONS, event["type"], event["object"], Views.of(kwargs))
