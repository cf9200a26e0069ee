# SPDX-License-Identifier: Apache-2.0
"""The paths of the admin API are a promise: this list changes only on purpose."""

from __future__ import annotations

import json
import re
from pathlib import Path

from meridian_broker.admin.openapi import document
from meridian_broker.admin.routes import ROUTES

FROZEN = Path(__file__).with_name("admin_paths.txt")


def test_no_path_is_added_or_removed_unnoticed() -> None:
    served = sorted(
        f"{method.upper():6} {path} {next(iter(operation['responses']))}"
        for path, verbs in document(ROUTES)["paths"].items()
        for method, operation in verbs.items()
    )
    frozen = FROZEN.read_text(encoding="utf-8").splitlines()
    assert served == frozen, f"write {FROZEN.name} again if this is intended, and say so in docs/compatibility.md"


def test_only_brokers_of_other_regions_make_these_calls() -> None:
    called = [route for route in ROUTES if route.peers is not None]
    policies = [route for route in called if route.peers == "region"]
    assert {route.method for route in policies} == {"POST", "DELETE"}
    named = {"/".join((route.method, *route.path.split("/")[-2:])) for route in called if route not in policies}
    assert named == {
        "DELETE/{namespace}/{topic}",
        *(f"{method}/{{topic}}/partitions" for method in ("GET", "PUT", "POST", "DELETE")),
        *(f"GET/{{topic}}/{what}" for what in ("stats", "partitioned-stats", "shadowTopics")),
        "DELETE/{topic}/truncate",
        "POST/{subscription}/expireMessages",
        "POST/expireMessages/{seconds}",
        "GET/messageid/translate",
        *(f"{method}/{{topic}}/growth" for method in ("GET", "PUT")),
        *(f"GET/{{subscription}}/{what}" for what in ("status", "progress")),
        "POST/{subscription}/preview",
        "GET/{namespace}/topics",
        *(f"GET/metadata/{what}" for what in ("digest", "applying")),
        *(f"POST/metadata/{what}" for what in ("compare", "parts", "listing", "states", "replace")),
    }
    handlers = [route.handler for route in ROUTES]
    assert all(handlers.count(route.handler) == 1 for route in called), "a call is identified by its handler"


def test_every_route_has_its_own_path_and_a_summary() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    for path, verbs in document(ROUTES)["paths"].items():
        for method, operation in verbs.items():
            assert operation["summary"].endswith("."), f"{method} {path}: {operation['summary']!r}"
            named = {parameter["name"] for parameter in operation["parameters"]}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_every_path_of_pulsar_is_in_the_compatibility_table() -> None:
    table = (Path(__file__).parents[3] / "docs/compatibility.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([/.][^`]*)`", table)
    missing = []
    for path in document(ROUTES)["paths"]:
        short = path.removeprefix("/admin/v2").replace("{domain}/", "persistent/")
        known = any(short == one or (one.startswith("...") and short.endswith(one[3:])) for one in listed)
        if not path.startswith("/meridian/") and not known and path not in listed:
            missing.append(path)
    assert not missing


def test_the_document_is_json() -> None:
    assert json.loads(json.dumps(document(ROUTES)))["openapi"].startswith("3.1")
