# SPDX-License-Identifier: Apache-2.0
"""Whether a region shares metadata with others, through which topic, and which scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.converging import MAX_AHEAD_MS
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

EVENT_TOPIC: Final = "metadataSyncEventTopic"
CONFIGURATION_EVENT_TOPIC: Final = "configurationMetadataSyncEventTopic"
SCOPES: Final = "metadataSyncScopes"
TOMBSTONE_RETENTION: Final = "metadataSyncTombstoneRetentionSeconds"
MAX_CLOCK_SKEW: Final = "metadataSyncMaxClockSkewSeconds"
SHORTEST_SECONDS: Final = 3600
"""Longer than a restart or a poorly synchronized clock makes a region seem away."""


@dataclass
class SyncChoice:
    """Which topic carries metadata, and which scopes."""

    values: Mapping[str, str]
    """The settings above that are in force, set by ``follow``."""
    refusal: str | None = None
    """Why this region must not write synced metadata now; None: it may."""
    topic: str = ""
    """Empty: metadata is not synchronized."""
    scopes: frozenset[str] = frozenset()
    tombstone_retention_ms: int = 0
    """How long tombstones wait for a region that is away; 0: until it is back."""
    max_ahead_ms: int = MAX_AHEAD_MS
    """See ``converging.MAX_AHEAD_MS``."""

    def __post_init__(self) -> None:
        """:raises Invalid: the settings make no sense."""
        self.follow(self.values)

    def follow(self, values: Mapping[str, str]) -> None:
        """These are in force now. :raises Invalid: they make no sense; nothing changes."""
        keys = (EVENT_TOPIC, CONFIGURATION_EVENT_TOPIC)
        topics = {_topic(key, values[key]) for key in keys if values[key]}
        if len(topics) > 1:
            raise Invalid(
                f"{EVENT_TOPIC} and {CONFIGURATION_EVENT_TOPIC} name different topics: a region of Meridian has one "
                "metadata store, so set one of them, or both to the same topic"
            )
        scopes = frozenset(name.strip() for name in values[SCOPES].split(",") if name.strip())
        if unknown := scopes - set(paths.SCOPES):
            raise Invalid(f"{SCOPES}: {', '.join(sorted(unknown))}: expected some of {', '.join(paths.SCOPES)}")
        seconds = int(values[TOMBSTONE_RETENTION])
        if 0 < seconds < SHORTEST_SECONDS:
            raise Invalid(f"{TOMBSTONE_RETENTION} is {seconds}: the minimum is {SHORTEST_SECONDS}, or 0 for no limit")
        self.values, self.topic, self.scopes = values, next(iter(topics), ""), scopes
        self.tombstone_retention_ms, self.max_ahead_ms = seconds * 1000, int(values[MAX_CLOCK_SKEW]) * 1000

    def is_synced(self, path: str) -> bool:
        return bool(self.topic) and paths.scope_of(path) in self.scopes


def _topic(key: str, text: str) -> str:
    """:raises Invalid: it is not a persistent topic without partitions."""
    try:
        name = topic_name.parse(text)
    except InvalidTopicNameError as error:
        raise Invalid(f"{key}: {error}") from None
    if not name.is_persistent or name.partition >= 0:
        raise Invalid(f"{key}={name}: expected a persistent topic, not one of its partitions")
    return str(name)
