# SPDX-License-Identifier: Apache-2.0
"""Types that the kinds share: names, lists of regions, conditions, and validation rules for the API server.

A rule is a CEL expression and a message. The API server evaluates it, so ``kubectl apply`` itself rejects an invalid
manifest. Every list or string that a rule iterates over is bounded: the API server rejects rules of unbounded cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

GROUP: Final = "meridian.dev"
VERSION: Final = "v1alpha1"
CATEGORY: Final = "meridian"

SENTENCE: Final = "x-sentence"
"""Schema key: the message shown when a value does not match the pattern. In a CRD it becomes a rule."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A pattern's error message, shown in place of the pattern."""

    text: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), SENTENCE: self.text}


TOPIC_PATTERN: Final = r"^persistent://[-=:.\w]+/[-=:.\w]+/[^/\s]+$"
RegionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-_.A-Za-z0-9]{0,63}$", max_length=64)]
TopicName = Annotated[
    str,
    Field(pattern=TOPIC_PATTERN, max_length=600, description="Full name, persistent://tenant/namespace/name."),
    Sentence("must be the topic's full name, persistent://tenant/namespace/name"),
]
SubscriptionName = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[^/\s]+$"),
    Sentence("a subscription's name must not contain slashes or whitespace"),
]
Plan = Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=64)]
"""Sentences that describe the planned changes."""
Regions = Annotated[
    list[RegionName],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


class DeletionPolicy(StrEnum):
    """What happens in the regions when the object is deleted. By default the data is retained."""

    RETAIN = "Retain"
    DELETE = "Delete"


def rule(expression: str, message: str, *, field: str = "") -> dict[str, Any]:
    """A validation rule for the API server: unless the CEL ``expression`` holds, the user gets ``message``."""
    made: dict[str, Any] = {"rule": expression, "message": message}
    if field:
        made["fieldPath"] = field
    return made


class Model(BaseModel):
    """Part of a manifest: camelCase outside, snake_case inside; unknown fields are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    rules: ClassVar[tuple[dict[str, Any], ...]] = ()
    """CEL validation rules for this object."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            made["x-kubernetes-validations"] = list(cls.rules)
        return made


class StatusModel(Model):
    """Part of a status. Fields written by a newer operator are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Condition(StatusModel):
    """A Kubernetes condition (metav1.Condition)."""

    type: str = Field(max_length=64)
    status: Literal["True", "False", "Unknown"]
    observed_generation: int = 0
    last_transition_time: str = Field(max_length=32, json_schema_extra={"format": "date-time"})
    reason: str = Field(max_length=128, description="Machine-readable reason, one word.")
    message: str = Field(max_length=4096, description="Human-readable sentence.")


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class Status(StatusModel):
    """Status fields of every kind."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status describes.")
    conditions: Conditions = Field(default_factory=list)


RegionNames = Annotated[list[RegionName], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"})]


class ReconciledStatus(Status):
    """Status fields of the kinds that the operator reconciles."""

    established: RegionNames = Field(
        default_factory=list,
        description="Regions known to hold it. If it disappears from them, it is recreated only on request.",
    )
    recreated: str = Field(
        default="", max_length=64, description="The last value of annotation meridian.dev/recreate that was acted on."
    )
    plan: Plan = Field(
        default_factory=list, description="Planned changes, while annotation meridian.dev/dry-run is set."
    )


class PrinterColumn(BaseModel):
    """A column of ``kubectl get``. Priority 1: shown only with ``-o wide``."""

    name: str
    path: str
    type: Literal["string", "integer", "date", "boolean"] = "string"
    priority: int = 0

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.type, "jsonPath": self.path, "priority": self.priority}


READY_COLUMN: Final = PrinterColumn(name="Ready", path='.status.conditions[?(@.type=="Ready")].status')
REASON_COLUMN: Final = PrinterColumn(name="Reason", path='.status.conditions[?(@.type=="Ready")].reason')
MESSAGE_COLUMN: Final = PrinterColumn(name="Message", path='.status.conditions[?(@.type=="Ready")].message', priority=1)
AGE_COLUMN: Final = PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date")


class Kind(BaseModel):
    """A kind: its names, models and columns."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    description: str
    spec: type[Model]
    status: type[Status]
    columns: tuple[PrinterColumn, ...]

    @property
    def name(self) -> str:
        """Name of the CRD."""
        return f"{self.plural}.{GROUP}"
