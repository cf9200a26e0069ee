# SPDX-License-Identifier: Apache-2.0
"""The document in a verifier's ConfigMap. Anything that does not fit these types is not a verdict."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from meridian_operator.api.fields import StatusModel

Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
"""UTC, to the second. Sorts by time as text."""


class VerdictRow(StatusModel):
    """The verdict on a topic, on one of its partitions, or on a subscription."""

    topic: str = Field(max_length=2100)
    subscription: str = Field(max_length=1100)
    verdict: str = Field(max_length=32)
    detail: str


class VerdictDocument(StatusModel):
    """One ConfigMap of a run."""

    run: str = Field(default="", max_length=128)
    time: Time
    expires: Time | None = None
    shard: int | None = None
    """Number of this shard, which holds further rows of the run; None: the run's head."""
    subscriptions: list[VerdictRow]
