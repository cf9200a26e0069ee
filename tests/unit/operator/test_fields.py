# SPDX-License-Identifier: Apache-2.0
"""Every field of a specification has an effect: another value leads to another call, or to another condition.

The fields are those of the CRDs, so that a field which nothing reads fails here the day it is added.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from meridian_operator.api.crd import KINDS
from meridian_verifier.wanted_lags import max_lags
from support.kubernetes.field_effects import (
    SPECS,
    SUBJECTS,
    Path,
    Spec,
    effects,
    fields,
    has,
    other_values,
    with_value,
)


@dataclass
class Listed:
    """The cluster as the verifier sees it, which reads maxLag in the objects themselves."""

    spec: Spec

    def get(self, _: str) -> dict[str, Any]:
        meta = {"name": "x", "namespace": "y", "creationTimestamp": "2026-01-01T00:00:00Z"}
        return {"items": [{"metadata": meta, "spec": self.spec}], "metadata": {}}


def told(kind: str, spec: Spec) -> Any:
    """All visible effects of an object with this specification."""
    by_verifier = max_lags(Listed(spec)) if kind == "ReplicatedSubscription" else None  # type: ignore[arg-type]
    return [one.told for one in asyncio.run(effects(kind, spec))], by_verifier


@pytest.mark.parametrize(
    ("kind", "path", "schema"), [pytest.param(*one, id=".".join((one[0], *one[1]))) for one in fields()]
)
def test_another_value_leads_to_another_call_or_condition(kind: str, path: Path, schema: dict[str, Any]) -> None:
    compared = 0
    for spec in SPECS[kind]:
        before = told(kind, spec)
        for value in other_values(kind, path, schema):
            if not has(spec, path, schema, value):
                compared += 1
                assert told(kind, with_value(spec, path, value)) != before, f"{value!r} changes nothing"
    assert compared


def test_kinds_whose_fields_have_no_effect_yet_are_listed() -> None:
    assert {kind.kind for kind in KINDS} == SUBJECTS.keys()
