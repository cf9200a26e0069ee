# SPDX-License-Identifier: Apache-2.0
"""kopf watches and passes events to the desk. Importing this module registers the handlers.

Raw event handlers leave no mark on objects. kopf's change handlers and timers would: a finalizer on each object, and
annotations whose prefix hides every other annotation with the same prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from meridian_operator.api.fields import GROUP, VERSION
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.metadata_sync_policies import MetadataSyncPolicies
from meridian_operator.handlers.replicated_subscriptions import ReplicatedSubscriptions
from meridian_operator.handlers.shadow_topics import ShadowTopics
from meridian_operator.handlers.subject import Views

_GEO_TOPICS = GeoTopics()
_SUBSCRIPTIONS = ReplicatedSubscriptions()
_SYNC_POLICIES = MetadataSyncPolicies()
_SHADOW_TOPICS = ShadowTopics()


@kopf.on.event(GROUP, VERSION, GeoTopics.kind.plural)
async def geo_topic(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A GeoTopic was listed or has changed."""
    memo.desk.heard(_GEO_TOPICS, event["type"], event["object"], Views.of(kwargs))


@kopf.on.event(GROUP, VERSION, ReplicatedSubscriptions.kind.plural)
async def replicated_subscription(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A ReplicatedSubscription was listed or has changed."""
    memo.desk.heard(_SUBSCRIPTIONS, event["type"], event["object"], Views.of(kwargs))


@kopf.on.event(GROUP, VERSION, MetadataSyncPolicies.kind.plural)
async def metadata_sync_policy(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A MetadataSyncPolicy was listed or has changed."""
    memo.desk.heard(_SYNC_POLICIES, event["type"], event["object"], Views.of(kwargs))


@kopf.on.event(GROUP, VERSION, ShadowTopics.kind.plural)
async def shadow_topic(event: Mapping[str, Any], memo: Any, **kwargs: Any) -> None:
    """A ShadowTopic was listed or has changed."""
    memo.desk.heard(_SHADOW_TOPICS, event["type"], event["object"], Views.of(kwargs))
