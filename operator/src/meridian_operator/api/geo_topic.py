# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: a topic hosted in several regions at once."""

from __future__ import annotations

from enum import StrEnum
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
    RegionNames,
    Regions,
    StatusModel,
    TopicName,
    rule,
)
from meridian_operator.api.quantities import Duration, Size


class SyncMode(StrEnum):
    """How a subscription's position is replicated: Exact, with every acknowledgement, or Snapshot, as in Apache Pulsar
    (PIP-33)."""

    EXACT = "Exact"
    SNAPSHOT = "Snapshot"


class Retention(Model):
    """How long messages are kept after every subscription has acknowledged them. -1, or absent: no limit."""

    rules = (
        rule("has(self.size) || has(self.time)", "set size, time or both"),
        rule(
            "!has(self.size) || !has(self.time) || "
            "self.size.matches('^0+(Ki|Mi|Gi|Ti)?$') == self.time.matches('^(0+(ms|s|m|h|d))+$')",
            "size and time must both be 0, or neither: a limit of 0 would override the other",
        ),
    )

    time: Duration | Literal["-1"] | None = Field(default=None, description="A duration such as 72h, or -1: no limit.")
    size: Size | Literal["-1"] | None = Field(default=None, description="A size such as 10Gi, or -1: no limit.")


class BacklogQuota(Model):
    """What happens when a subscription's backlog grows too large or too old."""

    rules = (
        rule("has(self.size) || has(self.time)", "set size, time or both: a quota without a limit has no effect"),
        rule(
            "!has(self.size) || !self.size.matches('^0+(Ki|Mi|Gi|Ti)?$')",
            "a quota of size 0 would block every producer",
            field=".size",
        ),
    )

    size: Size | None = Field(default=None, description="Maximum backlog of a subscription.")
    time: Duration | None = Field(
        default=None, description="Maximum age of a subscription's oldest unacknowledged message."
    )
    policy: Literal["ProducerRequestHold", "ProducerException", "ConsumerBacklogEviction"] = Field(
        default="ProducerRequestHold",
        description="Block producers, reject them, or drop the oldest messages of the slowest subscription.",
    )


class Schema(Model):
    """The topic's schema. Changing it adds a version in every region."""

    rules = (
        rule(
            "self.type == 'STRING' || (has(self.definition) && size(self.definition) > 0)",
            "a schema of this type needs a definition",
        ),
    )

    type: Literal["STRING", "JSON", "AVRO", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE"] = "AVRO"
    definition: str = Field(
        default="", max_length=65536, description="The schema's text; for AVRO and JSON, a JSON document."
    )
    compatibility: (
        Literal[
            "UNDEFINED",
            "ALWAYS_INCOMPATIBLE",
            "ALWAYS_COMPATIBLE",
            "BACKWARD",
            "FORWARD",
            "FULL",
            "BACKWARD_TRANSITIVE",
            "FORWARD_TRANSITIVE",
            "FULL_TRANSITIVE",
        ]
        | None
    ) = Field(default=None, description="Not supported yet: brokers accept every new version.")


class SubscriptionSync(Model):
    """How replicated subscriptions of this topic are kept at the same position."""

    rules = (
        rule(
            "self.mode == 'Snapshot' || !has(self.snapshotInterval)",
            "snapshotInterval requires mode Snapshot",
            field=".snapshotInterval",
        ),
    )

    mode: SyncMode = SyncMode.EXACT
    snapshot_interval: Duration | None = Field(
        default=None,
        description="Not supported yet. Set replicatedSubscriptionsSnapshotFrequencyMillis of the brokers.",
    )
    snapshot_timeout: Duration | None = Field(
        default=None,
        description="Not supported yet. Set replicatedSubscriptionsSnapshotTimeoutSeconds of the brokers.",
    )
    snapshot_cache_size: Annotated[int, Field(ge=3, le=1000)] | None = Field(
        default=None,
        description="Not supported yet. Set replicatedSubscriptionsSnapshotMaxCachedPerSubscription of the brokers.",
    )


class GeoTopicSpec(Model):
    """The desired state."""

    rules = (
        rule(
            "has(self.partitions) == has(oldSelf.partitions) && "
            "(!has(self.partitions) || self.partitions >= oldSelf.partitions)",
            "partitions cannot be removed: messages would be lost and keys would move to other partitions. "
            "A topic also cannot become partitioned or non-partitioned",
            field=".partitions",
        ),
    )

    topic: Annotated[
        TopicName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self == oldSelf", "the topic's name is immutable: create another GeoTopic"),
                    rule(
                        "!self.matches('-partition-[0-9]+$')",
                        "must name the topic, not one of its partitions",
                    ),
                ]
            }
        ),
    ]
    regions: Annotated[Regions, Field(min_length=2, description="Regions that host the topic; at least two.")]
    create_namespace: bool = Field(
        default=False,
        description="Create the topic's tenant and namespace in regions that lack them. They outlive the object.",
    )
    partitions: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="Number of partitions; absent: the topic is not partitioned."
    )
    retention: Retention | None = None
    message_ttl: Duration | None = Field(
        default=None, alias="messageTTL", description="Age after which unacknowledged messages expire."
    )
    backlog_quota: BacklogQuota | None = None
    deduplication: bool | None = Field(
        default=None, description="Store a message only once when its producer sends it again."
    )
    topic_schema: Schema | None = Field(default=None, alias="schema")
    subscription_sync: SubscriptionSync = Field(default_factory=SubscriptionSync)
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN


class RemoteStatus(StatusModel):
    """The link from one region to another."""

    region: RegionName
    connected: bool = False
    backlog: int = Field(default=0, description="Entries not yet replicated to the other region.")
    lag_seconds: int = Field(default=0, description="Age of the oldest of these entries, in seconds.")


class GeoTopicRegion(StatusModel):
    """The topic in one region."""

    name: RegionName
    url: str = Field(default="", max_length=512, description="The region's admin URL.")
    reachable: bool = False
    partitions: int = Field(default=0, description="0: the topic is not partitioned.")
    message: str = Field(default="", max_length=1024, description="The region's problem, if any.")
    remotes: Annotated[
        list[RemoteStatus],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["region"]},
        ),
    ] = Field(default_factory=list)


class GeoTopicStatus(ReconciledStatus):
    """The observed state."""

    regions_ready: str = Field(default="", max_length=16, description="Regions as specified, out of all: 2/3.")
    regions: Annotated[
        list[GeoTopicRegion],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)
    max_lag_seconds: int = Field(default=0, description="Largest lag of any link, in seconds.")
    managed: Annotated[
        list[Annotated[str, Field(max_length=64)]],
        Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(
        default_factory=list,
        description="Policies that this object has set. Those removed from the spec are reset; others are left alone.",
    )
    left: RegionNames = Field(
        default_factory=list,
        description="Regions removed from the spec. They keep their copy but no longer replicate it.",
    )


GEO_TOPIC = Kind(
    kind="GeoTopic",
    plural="geotopics",
    short_names=("gt",),
    description="A topic hosted in several regions at once.",
    spec=GeoTopicSpec,
    status=GeoTopicStatus,
    columns=(
        PrinterColumn(name="Topic", path=".spec.topic"),
        PrinterColumn(name="Regions", path=".status.regionsReady"),
        PrinterColumn(name="Partitions", path=".spec.partitions", type="integer"),
        READY_COLUMN,
        REASON_COLUMN,
        PrinterColumn(name="Lag", path=".status.maxLagSeconds", type="integer", priority=1),
        MESSAGE_COLUMN,
        AGE_COLUMN,
    ),
)
