# SPDX-License-Identifier: Apache-2.0
"""What the kinds have in common: names, lists of regions, conditions, and rules for the API server.

A rule is a sentence and an expression in CEL; the API server checks it, so a wrong manifest is refused by ``kubectl
apply`` itself. Everything that a rule walks over has a bound, because the API server refuses rules whose cost has none.
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
"""Key of a schema: what users read who wrote what its pattern does not allow. In a CRD it becomes a rule."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Goes with a pattern, for those who do not read patterns."""

    text: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), SENTENCE: self.text}


TOPIC_PATTERN: Final = r"^persistent://[-=:.\w]+/[-=:.\w]+/[^/\s]+$"
RegionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-_.A-Za-z0-9]{0,63}$", max_length=64)]
TopicName = Annotated[
    str,
    Field(pattern=TOPIC_PATTERN, max_length=600, description="Full name, persistent://tenant/namespace/name."),
    Sentence("write the topic's full name, persistent://tenant/namespace/name"),
]
SubscriptionName = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[^/\s]+$"),
    Sentence("a subscription's name has no slash and no blank"),
]
Plan = Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=64)]
"""Sentences that say what would be done."""
Regions = Annotated[
    list[RegionName],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


class DeletionPolicy(StrEnum):
    """What happens in the regions when the object is deleted. Data stays unless somebody said otherwise."""

    RETAIN = "Retain"
    DELETE = "Delete"


def rule(expression: str, message: str, *, field: str = "") -> dict[str, Any]:
    """One rule for the API server: ``expression`` in CEL must hold, else ``message`` is what the user reads."""
    made: dict[str, Any] = {"rule": expression, "message": message}
    if field:
        made["fieldPath"] = field
    return made


class Model(BaseModel):
    """A part of a manifest: camelCase outside, snake_case inside, unknown fields are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    rules: ClassVar[tuple[dict[str, Any], ...]] = ()
    """CEL rules on this object."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            made["x-kubernetes-validations"] = list(cls.rules)
        return made


class StatusModel(Model):
    """A part of a status. What a newer operator wrote is read without complaint."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Condition(StatusModel):
    """One condition, as Kubernetes has it (metav1.Condition)."""

    type: str = Field(max_length=64)
    status: Literal["True", "False", "Unknown"]
    observed_generation: int = 0
    last_transition_time: str = Field(max_length=32, json_schema_extra={"format": "date-time"})
    reason: str = Field(max_length=128, description="One word for machines.")
    message: str = Field(max_length=4096, description="A sentence for people.")


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class Status(StatusModel):
    """What every kind's status holds."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status speaks of.")
    conditions: Conditions = Field(default_factory=list)


RegionNames = Annotated[list[RegionName], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"})]


class ReconciledStatus(Status):
    """What the status of a kind holds that the operator acts on."""

    established: RegionNames = Field(
        default_factory=list,
        description="Regions known to hold it. What was there and is gone has vanished: it is not made again unasked.",
    )
    recreated: str = Field(
        default="", max_length=64, description="The value of annotation meridian.dev/recreate that was acted upon."
    )
    plan: Plan = Field(
        default_factory=list, description="What would be done, while annotation meridian.dev/dry-run is true."
    )


class PrinterColumn(BaseModel):
    """A column of ``kubectl get``. Priority 1 is shown by ``-o wide`` only."""

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
    """One kind: its names, its models, its columns."""

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
