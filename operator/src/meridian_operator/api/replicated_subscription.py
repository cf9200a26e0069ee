# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: a subscription kept at the same position in every region."""

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
    SubscriptionName,
    TopicName,
    rule,
)
from meridian_operator.api.geo_topic import SyncMode
from meridian_operator.api.quantities import Duration


class ReplicatedSubscriptionSpec(Model):
    """The desired state."""

    rules = (
        rule(
            "!has(self.witness) || self.dispatchScope == 'Origin'",
            "witness requires dispatchScope Origin",
            field=".witness",
        ),
    )

    topic: Annotated[
        TopicName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self == oldSelf", "the topic is immutable: create another ReplicatedSubscription")
                ]
            }
        ),
    ]
    subscription: Annotated[
        SubscriptionName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule(
                        "self == oldSelf", "the subscription's name is immutable: create another ReplicatedSubscription"
                    )
                ]
            }
        ),
    ]
    regions: Annotated[Regions, Field(min_length=2)] | None = Field(
        default=None, description="Regions of the subscription; absent: all regions of the topic."
    )
    sync_mode: SyncMode = SyncMode.EXACT
    dispatch_scope: Literal["Local", "Origin"] = Field(
        default="Local",
        description="Local: every region delivers all unacknowledged messages. Origin: each region delivers the "
        "messages published there, so that consumers in all regions share the work.",
    )
    witness: RegionName | None = Field(
        default=None,
        description="With dispatchScope Origin and a topic of two regions: a third region, which does not host the "
        "topic and votes when one of the two takes over for the other. Absent: left unchanged.",
    )
    initial_position: Literal["Earliest", "Latest"] = Field(
        default="Earliest", description="Initial position when the operator creates the subscription."
    )
    partial_snapshot_after: Duration | None = Field(
        default=None,
        description="With snapshots: once a region has been silent for this long, the others take snapshots without it "
        "until it answers again. Set this only for regions lost for good: an Apache Pulsar region skips their messages "
        "that no consumer has seen. Absent: wait for the region.",
    )
    max_lag: Duration = Field(
        default="30s", description="How far apart regions may be before the subscription counts as misaligned."
    )
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN


class SubscriptionRegion(StatusModel):
    """The subscription in one region."""

    name: RegionName
    reachable: bool = False
    exists: bool = False
    replicated: bool = False
    mark_delete: str = Field(default="", max_length=64)
    holes: int = Field(default=0, description="Acknowledged ranges beyond the mark-delete position.")
    backlog: int = 0
    consumers: int = 0
    synced: bool = Field(default=False, description="Every other region is known to have this region's progress.")
    message: str = Field(default="", max_length=1024)


class SilentRegion(StatusModel):
    """A region that does not answer."""

    name: RegionName
    since: str = Field(max_length=32, json_schema_extra={"format": "date-time"})


class Verdict(StatusModel):
    """The verifier's latest verdict."""

    verdict: str = Field(default="", max_length=32)
    time: str = Field(default="", max_length=40)
    detail: str = Field(default="", max_length=4096)


class ReplicatedSubscriptionStatus(ReconciledStatus):
    """The observed state."""

    regions_ready: str = Field(default="", max_length=16)
    regions: Annotated[
        list[SubscriptionRegion],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)
    silent: Annotated[
        list[SilentRegion],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list, description="Regions that neither the operator nor another region reaches.")
    backlog: int = Field(default=0, description="Largest backlog in any region.")
    verification: Verdict = Field(default_factory=Verdict)


REPLICATED_SUBSCRIPTION = Kind(
    kind="ReplicatedSubscription",
    plural="replicatedsubscriptions",
    short_names=("rsub",),
    description="A subscription kept at the same position in every region.",
    spec=ReplicatedSubscriptionSpec,
    status=ReplicatedSubscriptionStatus,
    columns=(
        PrinterColumn(name="Topic", path=".spec.topic"),
        PrinterColumn(name="Subscription", path=".spec.subscription"),
        PrinterColumn(name="Regions", path=".status.regionsReady"),
        PrinterColumn(name="Aligned", path='.status.conditions[?(@.type=="Aligned")].status'),
        READY_COLUMN,
        REASON_COLUMN,
        PrinterColumn(name="Backlog", path=".status.backlog", type="integer", priority=1),
        MESSAGE_COLUMN,
        AGE_COLUMN,
    ),
)
