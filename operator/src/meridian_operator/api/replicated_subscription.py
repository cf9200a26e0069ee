# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: one subscription that stands at the same place in every region."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_operator.api.geo_topic import SyncMode
from meridian_operator.api.quantities import Duration
from meridian_operator.api.shared import (
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


class ReplicatedSubscriptionSpec(Model):
    """What shall be."""

    rules = (
        rule(
            "!has(self.witness) || self.dispatchScope == 'Origin'",
            "witness has a meaning with dispatchScope Origin only",
            field=".witness",
        ),
    )

    topic: Annotated[
        TopicName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self == oldSelf", "the topic cannot change: make another ReplicatedSubscription")
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
                        "self == oldSelf", "the subscription's name cannot change: make another ReplicatedSubscription"
                    )
                ]
            }
        ),
    ]
    regions: Annotated[Regions, Field(min_length=2)] | None = Field(
        default=None, description="Where the subscription exists; absent: in all regions of the topic."
    )
    sync_mode: SyncMode = SyncMode.EXACT
    dispatch_scope: Literal["Local", "Origin"] = Field(
        default="Local",
        description="Local: every region delivers what nobody has acknowledged. Origin: each region delivers what was "
        "published there, so that consumers everywhere share the work.",
    )
    witness: RegionName | None = Field(
        default=None,
        description="With dispatchScope Origin and a topic of two regions: a third one, where the topic does not live, "
        "votes when one of them is to take over for the other. Absent: left as it is.",
    )
    initial_position: Literal["Earliest", "Latest"] = Field(
        default="Earliest", description="Where the subscription begins when the operator makes it."
    )
    partial_snapshot_after: Duration | None = Field(
        default=None, description="Snapshot mode: take snapshots without a region that was silent for so long."
    )
    max_lag: Duration = Field(default="30s", description="How far regions may be apart before it is called misaligned.")
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
    synced: bool = Field(default=False, description="Every other region is known to have what this one has.")
    message: str = Field(default="", max_length=1024)


class Verdict(StatusModel):
    """What the verifier found last."""

    verdict: str = Field(default="", max_length=32)
    time: str = Field(default="", max_length=40)
    detail: str = Field(default="", max_length=4096)


class ReplicatedSubscriptionStatus(ReconciledStatus):
    """What is."""

    regions_ready: str = Field(default="", max_length=16)
    regions: Annotated[
        list[SubscriptionRegion],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)
    backlog: int = Field(default=0, description="Largest backlog of any region.")
    verification: Verdict = Field(default_factory=Verdict)


REPLICATED_SUBSCRIPTION = Kind(
    kind="ReplicatedSubscription",
    plural="replicatedsubscriptions",
    short_names=("rsub",),
    description="One subscription that stands at the same place in every region.",
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
