# SPDX-License-Identifier: Apache-2.0
"""What users ask for with annotations. Every change of an annotation makes the operator look at the object at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meridian_operator.api.shared import GROUP

PAUSED: Final = f"{GROUP}/paused"
"""The object is left alone, its deletion included."""
DRY_RUN: Final = f"{GROUP}/dry-run"
"""What would be done is written to ``status.plan``, and is not done."""
ABANDON: Final = f"{GROUP}/abandon-regions"
"""Regions, separated by commas, that a deletion does not wait for; ``*``: all of them."""
RECREATE: Final = f"{GROUP}/recreate"
"""A value that was not there before: make again what has vanished."""
RECONCILE: Final = f"{GROUP}/reconcile-now"
"""A value that was not there before: look at the regions now."""


def is_on(body: Mapping[str, Any], annotation: str) -> bool:
    """Is the annotation set? Only an empty value and ``false`` mean no: a hold that is misspelt holds."""
    return value_of(body, annotation).lower() not in ("", "false")


def value_of(body: Mapping[str, Any], annotation: str) -> str:
    """The annotation's value; empty when it is not set."""
    return str((body["metadata"].get("annotations") or {}).get(annotation) or "").strip()


def abandoned(body: Mapping[str, Any], names: list[str]) -> list[str]:
    """Which of the regions the deletion does not wait for."""
    asked = {one.strip() for one in value_of(body, ABANDON).split(",")}
    return [name for name in names if name in asked or "*" in asked]
