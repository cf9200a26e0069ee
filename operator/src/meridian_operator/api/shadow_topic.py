# SPDX-License-Identifier: Apache-2.0
"""ShadowTopic: a read-only topic that reads its source's ledgers with its own cursors (PIP-180)."""

from __future__ import annotations

from typing import Annotated

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
    TopicName,
    rule,
)


class ShadowTopicSpec(Model):
    """The desired state."""

    rules = (rule("self.source != self.topic", "a topic cannot be its own shadow", field=".source"),)

    source: Annotated[str, Field(min_length=1, max_length=600)] = Field(
        description="Name of a GeoTopic in this namespace, or the full name of a topic.",
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("self == oldSelf", "the source is immutable: create another ShadowTopic"),
                rule(
                    r"!self.contains('/') || self.matches(r'^persistent://[-=:.\w]+/[-=:.\w]+/[^/]+$')",
                    "must be the name of a GeoTopic, or a topic's full name, persistent://tenant/namespace/name",
                ),
            ]
        },
    )
    region: RegionName = Field(
        description="The region that hosts both source and shadow.",
        json_schema_extra={
            "x-kubernetes-validations": [rule("self == oldSelf", "the region is immutable: create another ShadowTopic")]
        },
    )
    topic: Annotated[
        TopicName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self == oldSelf", "the topic's name is immutable: create another ShadowTopic")
                ]
            }
        ),
    ]
    auto_reset_backlog_entries: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        default=0,
        description="If another broker serves the source: a full ledger with more unread entries than this is not read "
        "ahead for all subscriptions together, but by each one that needs it. No subscription loses entries. "
        "0: as the region's shadowReplicatorAutoResetBacklogEntries says, by default never.",
    )
    hold_source_ledgers: bool = Field(
        default=True, description="Retain the source's ledgers until the shadow's subscriptions have read them."
    )
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN


class ShadowTopicStatus(ReconciledStatus):
    """The observed state."""

    state: str = Field(default="", max_length=32)
    source: str = Field(default="", max_length=600, description="The topic that the shadow reads.")
    connected: bool = Field(default=False, description="The source exists.")
    lag_entries: int = Field(default=0, description="Backlog, in entries, of the subscription that is furthest behind.")
    gap_entries: int = Field(
        default=0,
        description="Entries deleted from the source before the shadow's subscriptions had them, since the broker "
        "opened the shadow.",
    )
    auto_resets: int = Field(
        default=0,
        description="How often autoResetBacklogEntries prevented reading ahead, since the broker opened the shadow.",
    )


SHADOW_TOPIC = Kind(
    kind="ShadowTopic",
    plural="shadowtopics",
    short_names=("shtopic",),
    description="A read-only topic that shares its source's storage and has its own subscriptions.",
    spec=ShadowTopicSpec,
    status=ShadowTopicStatus,
    columns=(
        PrinterColumn(name="Source", path=".spec.source"),
        PrinterColumn(name="Region", path=".spec.region"),
        PrinterColumn(name="State", path=".status.state"),
        PrinterColumn(name="Lag", path=".status.lagEntries", type="integer"),
        READY_COLUMN,
        REASON_COLUMN,
        MESSAGE_COLUMN,
        AGE_COLUMN,
    ),
)
