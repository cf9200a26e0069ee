# SPDX-License-Identifier: Apache-2.0
"""Generates the CRDs from the models. ``python -m meridian_operator.api.crd DIRECTORY`` writes one file per kind.

Pydantic's JSON schema is almost a Kubernetes structural schema. This module converts the rest: it inlines references,
turns ``anyOf [X, null]`` into an optional X and string alternatives into one string with one pattern, and drops
titles.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from meridian_operator.api.fields import CATEGORY, GROUP, SENTENCE, VERSION, Kind, Model, rule
from meridian_operator.api.geo_topic import GEO_TOPIC
from meridian_operator.api.metadata_sync_policy import METADATA_SYNC_POLICY
from meridian_operator.api.replicated_subscription import REPLICATED_SUBSCRIPTION
from meridian_operator.api.shadow_topic import SHADOW_TOPIC

KINDS: Final = (GEO_TOPIC, SHADOW_TOPIC, REPLICATED_SUBSCRIPTION, METADATA_SYNC_POLICY)
HEADER: Final = """\
# SPDX-License-Identifier: Apache-2.0
# Made from the models in operator/src/meridian_operator/api by `make crds`.
"""

Document = dict[str, Any]


def document(kind: Kind) -> Document:
    """The CRD of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.name, "labels": {"app.kubernetes.io/part-of": "meridian"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short_names),
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.document() for column in kind.columns],
                    "schema": {"openAPIV3Schema": _object_schema(kind)},
                }
            ],
        },
    }


def text(kind: Kind) -> str:
    """The CRD as YAML, with a licence header."""
    return HEADER + yaml.safe_dump(document(kind), sort_keys=False, width=110)


def structural(model: type[Model]) -> Document:
    """The structural schema of a model."""
    generated = model.model_json_schema(by_alias=True)
    found: Document = _structural(generated, generated.get("$defs", {}))
    return found


def _object_schema(kind: Kind) -> Document:
    return {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(kind.spec),
            "status": structural(kind.status),
        },
    }


def _structural(schema: Document, definitions: Document) -> Document:
    schema = _written_out(schema, definitions)
    made = {
        key: value
        for key, value in schema.items()
        if key not in ("$defs", "title", "additionalProperties", "properties", "items", "default", SENTENCE)
    }
    if SENTENCE in schema:  # otherwise the API server would show the pattern
        matches = rule(f"self.matches(r'{made.pop('pattern')}')", schema[SENTENCE])
        made["x-kubernetes-validations"] = [matches, *made.get("x-kubernetes-validations", ())]
    if "description" in made:
        made["description"] = " ".join(made["description"].split())
    if schema.get("default") is not None and schema["default"] != []:
        made["default"] = schema["default"]
    if "properties" in schema:
        made["properties"] = {name: _structural(one, definitions) for name, one in schema["properties"].items()}
    if "items" in schema:
        made["items"] = _structural(schema["items"], definitions)
    return made


def _written_out(schema: Document, definitions: Document) -> Document:
    """``schema`` with top-level references and alternatives inlined."""
    around = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "allOf")}
    inner: Document = {}
    if "$ref" in schema:
        inner = _written_out(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    for alternatives in ("anyOf", "allOf"):
        if alternatives in schema:
            choices = [_written_out(one, definitions) for one in schema[alternatives] if one.get("type") != "null"]
            inner = choices[0] if len(choices) == 1 else _one_string(choices)
    merged = {**inner, **around}
    if "const" in merged:
        merged["enum"] = [merged.pop("const")]
    if merged.get("default", ...) is None:
        merged.pop("default")
    return merged


def _one_string(choices: list[Document]) -> Document:
    """String alternatives as one pattern: Kubernetes allows no ``type`` inside ``anyOf``.

    :raises ValueError: an alternative is not a string; no model has such alternatives.
    """
    patterns, sentences = [], []
    for one in choices:
        sentences += [one[SENTENCE]] if SENTENCE in one else []
        if one.get("type") != "string":
            raise ValueError(f"alternatives other than strings have no structural schema: {choices}")
        patterns += [one["pattern"]] if "pattern" in one else [f"^{value}$" for value in one["enum"]]
    return {
        "type": "string",
        "pattern": "|".join(patterns),
        "maxLength": max(one.get("maxLength", 0) for one in choices),
        **({SENTENCE: f"{sentences[0]}, or -1 for no limit"} if sentences else {}),
    }


def main() -> None:
    """Write every kind's CRD into the directory given as the only argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meridian_operator.api.crd DIRECTORY")
    directory = Path(sys.argv[1])
    for kind in KINDS:
        (directory / f"{kind.plural}.yaml").write_text(text(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
