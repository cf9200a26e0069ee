# SPDX-License-Identifier: Apache-2.0
"""Annotations through which users control the operator. Every change of an annotation triggers a look at the object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meridian_operator.api.fields import GROUP

PAUSED: Final = f"{GROUP}/paused"
"""Leave the object alone, even when it is deleted."""
DRY_RUN: Final = f"{GROUP}/dry-run"
"""Write planned changes to ``status.plan`` without making them."""
ABANDON: Final = f"{GROUP}/abandon-regions"
"""Comma-separated regions that a deletion does not wait for; ``*``: all."""
RECREATE: Final = f"{GROUP}/recreate"
"""A new value: recreate what has vanished."""
RECONCILE: Final = f"{GROUP}/reconcile-now"
"""A new value: look at the regions now."""


def is_on(body: Mapping[str, Any], annotation: str) -> bool:
    """Is the annotation on? Only an empty value and ``false`` mean off, so that a misspelt hold still holds."""
    return value_of(body, annotation).lower() not in ("", "false")


def value_of(body: Mapping[str, Any], annotation: str) -> str:
    """The annotation's value; empty when it is not set."""
    return str((body["metadata"].get("annotations") or {}).get(annotation) or "").strip()


def abandoned(body: Mapping[str, Any], names: list[str]) -> list[str]:
    """The regions among ``names`` that the deletion does not wait for."""
    asked = {one.strip() for one in value_of(body, ABANDON).split(",")}
    return [name for name in names if name in asked or "*" in asked]
