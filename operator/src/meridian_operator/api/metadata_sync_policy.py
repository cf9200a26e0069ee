# SPDX-License-Identifier: Apache-2.0
"""MetadataSyncPolicy: metadata that regions keep in sync although they share no metadata store (PIP-136)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_operator.api.fields import (
    AGE_COLUMN,
    MESSAGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    DeletionPolicy,
    Kind,
    Model,
    PrinterColumn,
    ReconciledStatus,
    RegionName,
    Regions,
    StatusModel,
    TopicName,
)
from meridian_operator.api.quantities import Duration

Scope = Literal["tenants", "namespaces", "topicPolicies", "partitionedTopics", "schemas", "permissions", "clusters"]


class MetadataSyncPolicySpec(Model):
    """The desired state."""

    regions: Annotated[Regions, Field(min_length=2)]
    event_topic: TopicName = Field(
        default="persistent://public/default/metadata-events",
        description="The topic that carries changes, in a namespace that is replicated to all these regions.",
    )
    scopes: Annotated[
        list[Scope], Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default=["tenants", "namespaces"], description="What is kept in sync. Namespaces include their policies.")
    tombstone_retention: Duration | None = Field(
        default=None,
        description="How long deletions are remembered for an unreachable region, at least 1h; 0s: without limit. "
        "Absent: as the brokers are configured, by default a week.",
    )
    max_clock_skew: Duration | None = Field(
        default=None,
        description="How far the clocks of regions may differ, 1s to 1h: changes from further in the future wait. "
        "Absent: as the brokers are configured, by default 10s.",
    )
    suspend: bool = Field(
        default=False,
        description="Switches synchronization off in all regions. Switching it on again compares them.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Delete: deleting this object switches synchronization off. Retain: it continues.",
    )

    @property
    def topic(self) -> str:
        return self.event_topic


class PolicyRegion(StatusModel):
    """Synchronization in one region. Counters begin when its broker starts."""

    name: RegionName
    enabled: bool = False
    synced: bool = Field(
        default=False, description="It has the same metadata as every other region, as far as is known."
    )
    published: int = 0
    applied: int = 0
    stale: int = Field(default=0, description="Changes that arrived after a newer one.")
    conflicts: int = Field(default=0, description="Values that lost to a concurrent change and await review.")
    lag_seconds: int = Field(default=0, description="The longest delay of changes from another region.")
    message: str = Field(default="", max_length=1024)


class PolicyConflict(StatusModel):
    """The same metadata, written concurrently in two regions. Values are JSON, possibly truncated; an empty one is a
    deletion."""

    path: str = Field(max_length=512)
    won: str = Field(default="", max_length=256, description="The value that all regions have now.")
    winner: str = Field(default="", max_length=64, description="The region that wrote it.")
    lost: str = Field(default="", max_length=256)
    loser: str = Field(
        default="", max_length=64, description="The region that wrote it, where the conflict can be dismissed."
    )
    caller: str = Field(default="", max_length=253, description="The role that requested the lost write.")


class MetadataSyncPolicyStatus(ReconciledStatus):
    """The observed state."""

    regions_ready: str = Field(default="", max_length=16)
    conflicts: int = Field(default=0, description="The most conflicts that any region has to review.")
    latest_conflicts: Annotated[
        list[PolicyConflict], Field(max_length=5, description="The latest conflicts that nobody has dismissed.")
    ] = Field(default_factory=list)
    regions: Annotated[
        list[PolicyRegion],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)


METADATA_SYNC_POLICY = Kind(
    kind="MetadataSyncPolicy",
    plural="metadatasyncpolicies",
    short_names=("msync",),
    description="Metadata that regions keep in sync without a shared store.",
    spec=MetadataSyncPolicySpec,
    status=MetadataSyncPolicyStatus,
    columns=(
        PrinterColumn(name="Regions", path=".status.regionsReady"),
        PrinterColumn(name="Conflicts", path=".status.conflicts", type="integer"),
        PrinterColumn(name="Synced", path='.status.conditions[?(@.type=="Synced")].status'),
        READY_COLUMN,
        REASON_COLUMN,
        MESSAGE_COLUMN,
        AGE_COLUMN,
    ),
)
