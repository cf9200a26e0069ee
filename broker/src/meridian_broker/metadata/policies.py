# SPDX-License-Identifier: Apache-2.0
"""Namespaces and their policies, with Pulsar's names; policies of topics.

The policies that this broker acts on are validated when they are set. All others of a namespace are kept as received,
so that tools which set them find them again, and a later version can act on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.policy_table import BACKLOG_QUOTAS, TABLE, Level, parse_level, show_level, with_value
from meridian_broker.metadata.records import Json, mapping, names, take, without
from meridian_broker.positions.clock import Stamp

REPLICATION_CLUSTERS: Final = "replication_clusters"
ALLOWED_CLUSTERS: Final = "allowed_clusters"
BUNDLES: Final = "bundles"

KNOWN: Final = (REPLICATION_CLUSTERS, ALLOWED_CLUSTERS, BUNDLES, *TABLE)

NAME_SETS: Final = frozenset({REPLICATION_CLUSTERS, ALLOWED_CLUSTERS})
"""Policies that are sets of names: each element has a path of its own (R41)."""

DEFAULT_BUNDLES: Final = 4
MAX_BUNDLES: Final = 1024


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace. None means "not set": the broker's default holds."""

    replication_clusters: frozenset[str] = frozenset()
    """The regions that its topics live in."""
    allowed_clusters: frozenset[str] = frozenset()
    own: Level = field(default_factory=dict)
    """The policies it sets that topics may have, too, see ``policy_table``."""
    bundles: int = DEFAULT_BUNDLES
    """Into how many parts of the hash range its topics are divided."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Every other policy, by Pulsar's name."""
    deleting: bool = False
    """Its deletion has begun: nothing new may be made in it."""
    stamp: Stamp | None = None

    def to_json(self) -> Json:
        """Pulsar's ``Policies``: policies that are not set are left out."""
        result: Json = {
            REPLICATION_CLUSTERS: sorted(self.replication_clusters),
            ALLOWED_CLUSTERS: sorted(self.allowed_clusters),
            BUNDLES: {"numBundles": self.bundles, "boundaries": boundaries(self.bundles)},
            BACKLOG_QUOTAS: {},
            **show_level(self.own),
            **self.extra,
        }
        if self.deleting:
            result["deleted"] = True
        return result

    @classmethod
    def from_json(cls, source: Any) -> NamespaceRecord:
        """:raises Invalid: a policy is not valid."""
        data = mapping(source, "policies")
        return cls(
            replication_clusters=names(data, REPLICATION_CLUSTERS),
            allowed_clusters=names(data, ALLOWED_CLUSTERS),
            own=parse_level(data),
            bundles=_bundles(data),
            extra={key: value for key, value in without(data, *KNOWN, "deleted").items() if value is not None},
        )

    def with_policy(self, policy: str, value: Any, element: str | None = None) -> NamespaceRecord:
        """A copy with one policy, or one element of it, set to a JSON value; None removes it.

        :raises Invalid: the value is not valid.
        """
        own = {**self.to_json(), **with_value(self.own, policy, value, element)}
        return replace(NamespaceRecord.from_json(own), deleting=self.deleting, stamp=self.stamp)

    def policies(self) -> Json:
        """The values to store: each policy that is set, by name."""
        result = {key: value for key, value in self.to_json().items() if value not in ([], {}) and key != "deleted"}
        result[BUNDLES] = {"numBundles": self.bundles}
        return result


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """Policies that a topic sets itself; the partitions of a partitioned topic share them."""

    own: Level = field(default_factory=dict)

    def with_policy(self, policy: str, value: Any, element: str | None = None) -> TopicPolicies:
        """A copy with one policy, or one element of it, set to a JSON value; None removes it.

        :raises Invalid: the value is not valid.
        """
        return TopicPolicies(parse_level(with_value(self.own, policy, value, element)))


def boundaries(bundles: int) -> list[str]:
    """The borders of equal parts of the 32-bit hash range, as Pulsar writes them."""
    size = (1 << 32) // bundles
    return [*(f"0x{i * size:08x}" for i in range(bundles)), "0xffffffff"]


def _bundles(data: Mapping[str, Any]) -> int:
    value = data.get(BUNDLES)
    count: int = DEFAULT_BUNDLES if value is None else take(mapping(value, BUNDLES), "numBundles", int, DEFAULT_BUNDLES)
    if not 1 <= count <= MAX_BUNDLES:
        raise Invalid(f"{count} bundles: expected 1 to {MAX_BUNDLES}")
    return count
