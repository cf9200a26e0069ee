# SPDX-License-Identifier: Apache-2.0
"""Whether a region shares metadata with others, by which topic, and which scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.sync import paths
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

EVENT_TOPIC: Final = "metadataSyncEventTopic"
CONFIGURATION_EVENT_TOPIC: Final = "configurationMetadataSyncEventTopic"
SCOPES: Final = "metadataSyncScopes"


@dataclass
class SyncChoice:
    """Which topic carries metadata, and which scopes. Settings of the broker, and over them what was set since."""

    given: Mapping[str, str]
    changed: Mapping[str, str] = field(default_factory=dict)
    """By ``change``."""
    refusal: str | None = None
    """Why this region must not write shared metadata now; None: it may."""
    topic: str = ""
    """Empty: metadata are not synchronized."""
    scopes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """:raises Invalid: the settings make no sense."""
        self.check({})
        self.change({})

    def value(self, key: str) -> str:
        return self.changed.get(key, self.given[key])

    def change(self, changed: Mapping[str, str]) -> None:
        """What was set at run time, in place of what was set so before."""
        self.changed = {key: value for key, value in changed.items() if key in self.given}
        self.topic = _topic(self.value(CONFIGURATION_EVENT_TOPIC) or self.value(EVENT_TOPIC))
        self.scopes = frozenset(name.strip() for name in self.value(SCOPES).split(",") if name.strip())

    def is_synced(self, path: str) -> bool:
        return bool(self.topic) and paths.scope_of(path) in self.scopes

    def check(self, changes: Mapping[str, str]) -> None:
        """:raises Invalid: with these changes the settings make no sense."""
        values = {key: changes.get(key, self.value(key)) for key in self.given}
        topics = {_topic(values[key]) for key in (EVENT_TOPIC, CONFIGURATION_EVENT_TOPIC) if values[key]}
        if len(topics) > 1:
            raise Invalid(
                f"{EVENT_TOPIC} and {CONFIGURATION_EVENT_TOPIC} name different topics: a region of Meridian has one "
                "metadata store, so set one of them, or both to the same topic"
            )
        unknown = {name.strip() for name in values[SCOPES].split(",")} - {*paths.SCOPES, ""}
        if unknown:
            raise Invalid(f"{SCOPES}: {', '.join(sorted(unknown))}: expected some of {', '.join(paths.SCOPES)}")


def _topic(text: str) -> str:
    """:raises Invalid: it is no persistent topic without partitions."""
    if not text:
        return ""
    try:
        name = topic_name.parse(text)
    except InvalidTopicNameError as error:
        raise Invalid(f"the event topic: {error}") from None
    if not name.is_persistent or name.partition >= 0:
        raise Invalid(f"the event topic {name}: expected a persistent topic, and none of its partitions")
    return str(name)
