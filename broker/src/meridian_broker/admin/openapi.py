# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the route table: summaries are the handlers' own descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from meridian_broker.admin.http.route import Route
from meridian_broker.admin.pulsar.health import software_version


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """OpenAPI 3.1 of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(re.sub(r"{(\w+):[^}]*}", r"{\1}", route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Meridian broker",
            "version": software_version(),
            "description": "The parts of Pulsar's admin API v2 and lookups that Meridian serves, and its own API "
            "under /meridian/v1.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "properties": {"reason": {"type": "string"}},
                    "required": ["reason"],
                }
            }
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    text = inspect.cleandoc(route.handler.__doc__ or "").replace("``", "`")
    good: dict[str, Any] = {"description": "done" if route.status == 204 else "the answer"}
    if route.status == 200:
        good["content"] = {route.content: {}}
    refusal = {"$ref": "#/components/schemas/Refusal"}
    return {
        "summary": text.splitlines()[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)", route.path)
        ],
        "responses": {
            str(route.status): good,
            "default": {"description": "refused", "content": {"application/json": {"schema": refusal}}},
        },
    }
