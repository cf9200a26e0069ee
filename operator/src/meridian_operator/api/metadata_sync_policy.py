# SPDX-License-Identifier: Apache-2.0
"""MetadataSyncPolicy: metadata that regions keep in sync although they share no metadata store (PIP-136)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_operator.api.quantities import Duration
from meridian_operator.api.shared import (
    AGE_COLUMN,
    MESSAGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    Kind,
    Model,
    PrinterColumn,
    RegionName,
    Regions,
    Status,
    StatusModel,
    TopicName,
)

Scope = Literal["tenants", "namespaces", "topics", "topicPolicies", "schemas", "subscriptions", "permissions"]


class MetadataSyncPolicySpec(Model):
    """The desired state."""

    regions: Annotated[Regions, Field(min_length=2)]
    event_topic: TopicName = Field(
        default="persistent://meridian/system/metadata-events", description="The replicated topic that carries changes."
    )
    scopes: Annotated[
        list[Scope], Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default=["tenants", "namespaces", "topics", "topicPolicies", "schemas", "subscriptions", "permissions"])
    tombstone_retention: Duration = Field(
        default="7d",
        description="A region offline for longer rejoins as a new region: it takes the other regions' state.",
    )
    max_clock_skew: Duration = Field(
        default="10s", description="A change stamped further in the future is applied only when its time comes."
    )
    paused: bool = False


class PolicyRegion(StatusModel):
    """Synchronization in one region."""

    name: RegionName
    published: int = 0
    applied: int = 0
    stale: int = 0
    conflicts: int = 0
    lag_seconds: int = 0


class MetadataSyncPolicyStatus(Status):
    """The observed state."""

    conflicts: int = 0
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
    description="Metadata that regions keep in sync without a shared store. This version does not act on it.",
    spec=MetadataSyncPolicySpec,
    status=MetadataSyncPolicyStatus,
    columns=(
        PrinterColumn(name="Conflicts", path=".status.conflicts", type="integer"),
        PrinterColumn(name="Synced", path='.status.conditions[?(@.type=="Synced")].status'),
        READY_COLUMN,
        REASON_COLUMN,
        MESSAGE_COLUMN,
        AGE_COLUMN,
    ),
)
