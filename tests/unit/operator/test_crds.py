# SPDX-License-Identifier: Apache-2.0
"""The CRDs: what Kubernetes demands of a schema, and what users look for. In e2e the API server itself checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from meridian_operator.api.crd import KINDS, document, text
from meridian_operator.api.fields import Kind
from meridian_operator.api.geo_topic import GEO_TOPIC
from meridian_operator.api.metadata_sync_policy import METADATA_SYNC_POLICY
from meridian_operator.api.replicated_subscription import REPLICATED_SUBSCRIPTION
from meridian_operator.api.shadow_topic import SHADOW_TOPIC

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        yield from schemas(one, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def version(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = document(kind)["spec"]["versions"][0]
    return found


def test_the_committed_crds_match_the_models(kind: Kind) -> None:
    for place in ("crds", "helm/meridian-operator/files/crds"):
        assert (ROOT / place / f"{kind.plural}.yaml").read_text(encoding="utf-8") == text(kind), "run make crds"


def test_the_schema_is_structural(kind: Kind) -> None:
    """Every value has one type, what rules iterate over is bounded, and there is no keyword that Kubernetes rejects."""
    for path, schema in schemas(version(kind)["schema"]["openAPIV3Schema"]):
        assert "type" in schema, path
        assert not schema.keys() & {"$ref", "anyOf", "allOf", "oneOf", "const", "title", "additionalProperties"}, path
        if schema["type"] == "array":
            assert "maxItems" in schema, path
        if path.startswith(".spec") and schema["type"] == "string":
            assert "maxLength" in schema or "enum" in schema, path
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule["message"], path


def test_what_users_look_for(kind: Kind) -> None:
    found = version(kind)
    assert found["subresources"] == {"status": {}}
    columns = {column["name"] for column in found["additionalPrinterColumns"]}
    assert {"Ready", "Age"} <= columns
    names = document(kind)["spec"]["names"]
    assert names["categories"] == ["meridian"]
    assert names["shortNames"]
    status = found["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert "observedGeneration" in status
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_every_field_of_a_spec_has_a_description_or_an_obvious_name(kind: Kind) -> None:
    spec = version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["description"]
    assert yaml.safe_load(text(kind)) == document(kind)


def test_invalid_values_are_refused_with_an_explanation(kind: Kind) -> None:
    """A pattern is no explanation: only region names have one, and nobody gets these wrong twice."""
    spec = version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, schema in schemas(spec):
        assert "pattern" not in schema or "egion" in path or path == ".witness", path
        for rule in schema.get("x-kubernetes-validations", ()):
            if "self.matches(r'" in rule["rule"]:
                re.compile(rule["rule"].partition("r'")[2].removesuffix("')"))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (GEO_TOPIC, ["topic"]),
        (REPLICATED_SUBSCRIPTION, ["subscription", "topic"]),
        (SHADOW_TOPIC, ["region", "source", "topic"]),
        (METADATA_SYNC_POLICY, []),
    ],
    ids=lambda one: one.kind if isinstance(one, Kind) else "",
)
def test_fields_that_name_what_an_object_created_are_immutable(kind: Kind, names: list[str]) -> None:
    """It would be left behind, with nobody to delete it."""
    spec = version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    immutable = [
        name
        for name, schema in spec.items()
        if any(rule["rule"] == "self == oldSelf" for rule in schema.get("x-kubernetes-validations", ()))
    ]
    assert sorted(immutable) == names


def test_the_reason_for_not_ready_is_a_column(kind: Kind) -> None:
    columns = {column["name"]: column for column in version(kind)["additionalPrinterColumns"]}
    assert columns["Reason"]["priority"] == 0 and columns["Reason"]["jsonPath"].endswith(".reason")
    raw = [column["name"] for column in columns.values() if column["jsonPath"] in (".spec.regions", ".spec")]
    assert not raw, "a list is shown as JSON"
