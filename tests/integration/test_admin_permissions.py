# SPDX-License-Identifier: Apache-2.0
"""Permissions over real HTTP on a broker that does not enforce them: it stores them all the same, as Pulsar does."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from support.brokers.broker_process import BrokerProcess

NAMESPACE = "/admin/v2/namespaces/public/default"
ROLES = f"{NAMESPACE}/permissions"
TOPIC = "/admin/v2/persistent/public/default/permitted/permissions"


def test_on_a_namespace(broker: BrokerProcess) -> None:
    assert broker.http("GET", ROLES).json == {}
    assert broker.http("POST", f"{ROLES}/app", ["produce", "consume", "produce"]).status == 204
    assert broker.http("POST", f"{ROLES}/fn", ["functions", "sources", "sinks", "packages"]).status == 204
    assert broker.http("POST", f"{ROLES}/none", []).status == 204
    shown = {"app": ["consume", "produce"], "fn": ["functions", "packages", "sinks", "sources"], "none": []}
    assert broker.http("GET", ROLES).json == shown
    assert broker.http("GET", NAMESPACE).json["auth_policies"]["namespace_auth"] == shown
    assert broker.http("POST", f"{ROLES}/app", ["consume"]).status == 204
    assert broker.http("GET", ROLES).json["app"] == ["consume"], "a grant sets all of a role's actions"
    for role in ("app", "fn", "none", "nobody"):
        assert broker.http("DELETE", f"{ROLES}/{role}").status == 204
    assert broker.http("GET", ROLES).json == {}


def test_on_a_topic(broker: BrokerProcess) -> None:
    """The topic need not exist. Permissions on its namespace are shown too, but not revoked with the topic's."""
    assert broker.http("POST", f"{ROLES}/app", ["consume"]).status == 204
    assert broker.http("POST", f"{TOPIC}/app", ["produce"]).status == 204
    assert broker.http("POST", f"{TOPIC}/b", ["produce"]).status == 204
    partition = TOPIC.replace("permitted", "permitted-partition-1")
    for path in (TOPIC, partition):
        assert broker.http("GET", path).json == {"app": ["consume", "produce"], "b": ["produce"]}
    assert broker.http("GET", TOPIC.replace("persistent", "non-persistent")).json == {"app": ["consume"]}
    name = "persistent://public/default/permitted"
    on_topics = broker.http("GET", NAMESPACE).json["auth_policies"]["destination_auth"]
    assert on_topics == {name: {"app": ["produce"], "b": ["produce"]}}
    assert broker.http("DELETE", f"{TOPIC}/app").status == 204
    refused = broker.http("DELETE", f"{TOPIC}/app")
    assert refused.status == 412
    assert "itself" in refused.reason
    assert broker.http("GET", TOPIC).json == {"app": ["consume"], "b": ["produce"]}
    broker.http("DELETE", f"{ROLES}/app")
    broker.http("DELETE", f"{TOPIC}/b")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("partitions", ["", "/partitions"])
def test_they_end_with_the_topic(broker: BrokerProcess, domain: str, partitions: str) -> None:
    topic = f"/admin/v2/{domain}/public/default/ending{len(partitions)}"
    assert broker.http("PUT", f"{topic}{partitions}", *([2] if partitions else [])).status == 204
    assert broker.http("POST", f"{topic}/permissions/app", ["produce"]).status == 204
    assert broker.http("GET", f"{topic}/permissions").json == {"app": ["produce"]}
    assert broker.http("DELETE", f"{topic}{partitions}").status == 204
    assert broker.http("GET", f"{topic}/permissions").json == {}


@pytest.mark.parametrize("role", ["a/b", "100%", "%2F", "a b", "Büro", "..x", "subscription", "x" * 1024])
def test_roles_are_named_as_tokens_name_them(broker: BrokerProcess, role: str) -> None:
    quoted = quote(role, safe="")
    for path in (ROLES, TOPIC):
        assert broker.http("POST", f"{path}/{quoted}", ["consume"]).status == 204
        assert broker.http("GET", path).json == {role: ["consume"]}
        assert broker.http("DELETE", f"{path}/{quoted}").status == 204


@pytest.mark.parametrize("role", ["a\nb", "\x1b[2J", "x" * 1025, "a\u2028b"])
def test_names_that_are_no_roles(broker: BrokerProcess, role: str) -> None:
    for path in (ROLES, TOPIC):
        for method in ("POST", "DELETE"):
            assert broker.http(method, f"{path}/{quote(role, safe='')}", ["consume"]).status == 412


@pytest.mark.parametrize("body", [["write"], ["PRODUCE"], "produce", {"produce": True}, None, [None]])
def test_invalid_actions(broker: BrokerProcess, body: object) -> None:
    for path in (ROLES, TOPIC):
        assert broker.http("POST", f"{path}/app", body).status == 400
        assert broker.http("POST", f"{path}/app", raw=b"[").status == 400
        assert broker.http("GET", path).json == {}


def test_a_namespace_that_does_not_exist(broker: BrokerProcess) -> None:
    for path in (ROLES, TOPIC):
        missing = path.replace("default", "none")
        assert broker.http("GET", missing).status == 404
        assert broker.http("POST", f"{missing}/app", ["produce"]).status == 404
        assert broker.http("DELETE", f"{missing}/app").status == 404


def test_a_new_namespace_has_no_permissions(broker: BrokerProcess) -> None:
    """Tools send an empty policy. A policy with permissions would be lost, so it is refused."""
    path = "/admin/v2/namespaces/public/new"
    empty: dict[str, Any] = {"namespace_auth": {}, "destination_auth": {}}
    filled = {"auth_policies": empty | {"namespace_auth": {"app": ["produce"]}}}
    assert broker.http("PUT", path, filled).status == 412
    assert broker.http("PUT", path, {"auth_policies": empty}).status == 204
    assert broker.http("POST", f"{path}/permissions/app", ["produce"]).status == 204
    assert broker.http("DELETE", path).status == 204
    assert broker.http("PUT", path).status == 204
    assert broker.http("GET", f"{path}/permissions").json == {}
