# SPDX-License-Identifier: Apache-2.0
"""Commands that change several regions, or destroy something: they say where, and ask first."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
from meridian_broker.cli.output import NO, USAGE
from support.brokers.stand_in_admin import AdminServer, run, serving

NAMES = ("us-east", "us-west", "eu-central")
NAMESPACE = "/admin/v2/namespaces/shop/orders"
TOPIC = "/admin/v2/persistent/public/default/orders"
STATUS = "/meridian/v1/subscriptions/persistent/public/default/orders/billing/status"

Servers = dict[str, AdminServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Three regions; the tenant ``shop`` and its namespace exist in all of them."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(serving()) for name in NAMES}
        for name, server in found.items():
            listed = [{"name": one, "local": one == name} for one in NAMES]
            server.answers["GET /meridian/v1/regions"] = (200, {"region": name, "regions": listed})
            for other, its in found.items():
                server.answers[f"GET /admin/v2/clusters/{other}"] = (200, {"serviceUrl": its.url, "serviceUrlTls": ""})
            server.answers["GET /admin/v2/tenants/shop"] = (200, {})
            server.answers[f"GET {NAMESPACE}/replication"] = (200, [])
            for change in ("PUT /admin/v2/tenants/shop", f"PUT {NAMESPACE}", f"POST {NAMESPACE}/replication"):
                server.answers[change] = (204, None)
        yield found


def changed(servers: Servers) -> dict[str, list[tuple[str, Any]]]:
    return {name: server.changes() for name, server in servers.items() if server.changes()}


def lines(text: str) -> str:
    return " ".join(text.split())


def test_a_tenant_is_created_in_every_region_that_it_may_use(servers: Servers) -> None:
    url = servers["us-east"].url
    result = run("tenants", "create", "shop", "--url", url)
    assert (result.exit_code, result.output) == (0, "created tenant shop in eu-central, us-east, us-west\n")
    body = {"adminRoles": [], "allowedClusters": list(NAMES)}
    assert changed(servers) == {name: [("PUT /admin/v2/tenants/shop", body)] for name in NAMES}
    result = run("tenants", "create", "shop", "--allowed-cluster", "us-west", "--json", "--url", url)
    assert json.loads(result.output) == {
        "done": "created tenant shop in us-east, us-west",
        "regions": ["us-east", "us-west"],
    }


def test_only_here_changes_one_region(servers: Servers) -> None:
    url = servers["us-west"].url
    assert run("tenants", "create", "shop", "--only-here", "--url", url).exit_code == 0
    assert (
        run("namespaces", "create", "shop/orders", "--cluster", "us-east", "--only-here", "--url", url).exit_code == 0
    )
    assert run("namespaces", "set-clusters", "shop/orders", "us-east", "--only-here", "--url", url).exit_code == 0
    assert list(changed(servers)) == ["us-west"]


def test_what_exists_already_in_some_regions_is_created_in_the_others(servers: Servers) -> None:
    servers["us-west"].answers["PUT /admin/v2/tenants/shop"] = (409, {"reason": "there is one"})
    result = run("tenants", "create", "shop", "--url", servers["us-east"].url)
    said = "created tenant shop in eu-central, us-east; it exists already in us-west\n"
    assert (result.exit_code, result.output) == (0, said)
    for server in servers.values():
        server.answers["PUT /admin/v2/tenants/shop"] = (409, {"reason": "there is one"})
    result = run("tenants", "create", "shop", "--url", servers["us-east"].url)
    assert (result.exit_code, result.stderr[:49]) == (NO, "Error: tenant shop exists already in eu-central, ")


def test_a_namespace_is_created_in_all_its_clusters(servers: Servers) -> None:
    line = ("namespaces", "create", "shop/orders", "--cluster", "us-east", "--cluster", "us-west")
    result = run(*line, "--url", servers["us-east"].url)
    assert (result.exit_code, result.output) == (0, "created namespace shop/orders in us-east, us-west\n")
    request = (f"PUT {NAMESPACE}", {"replication_clusters": ["us-east", "us-west"]})
    assert changed(servers) == {"us-east": [request], "us-west": [request]}


def test_a_namespace_without_clusters_belongs_to_this_region(servers: Servers) -> None:
    result = run("namespaces", "create", "shop/orders", "--url", servers["us-east"].url)
    assert (result.exit_code, result.output) == (0, "created namespace shop/orders in us-east\n")
    assert changed(servers) == {"us-east": [(f"PUT {NAMESPACE}", {})]}


def test_a_namespace_whose_tenant_is_missing_somewhere_is_created_nowhere(servers: Servers) -> None:
    del servers["us-west"].answers["GET /admin/v2/tenants/shop"]
    line = ("namespaces", "create", "shop/orders", "--cluster", "us-east", "--cluster", "us-west")
    result = run(*line, "--url", servers["us-east"].url)
    assert result.exit_code == NO
    assert "nothing was created: tenant shop does not exist in us-west" in result.stderr
    assert not changed(servers)


def test_set_clusters_applies_in_each_cluster_and_in_those_that_leave(servers: Servers) -> None:
    servers["us-east"].answers[f"GET {NAMESPACE}/replication"] = (200, ["us-east", "eu-central"])
    result = run("namespaces", "set-clusters", "shop/orders", "us-east", "us-west", "--url", servers["us-east"].url)
    said = "shop/orders is replicated to us-east, us-west (set in us-east, us-west, eu-central)\n"
    assert (result.exit_code, result.output) == (0, said)
    assert changed(servers) == {name: [(f"POST {NAMESPACE}/replication", ["us-east", "us-west"])] for name in NAMES}


def test_set_clusters_changes_nothing_where_a_namespace_is_missing(servers: Servers) -> None:
    del servers["us-west"].answers[f"GET {NAMESPACE}/replication"]
    result = run("namespaces", "set-clusters", "shop/orders", "us-east", "us-west", "--url", servers["us-east"].url)
    assert result.exit_code == NO
    assert "nothing was changed: namespace shop/orders does not exist in us-west" in result.stderr
    assert "meridian namespaces create shop/orders --cluster us-east --cluster us-west" in lines(result.stderr)
    assert not changed(servers)


def test_set_clusters_with_a_region_that_is_down_is_an_outage_and_names_it(servers: Servers) -> None:
    for server in servers.values():
        server.answers["GET /admin/v2/clusters/us-west"] = (200, {"serviceUrl": "http://127.0.0.1:1"})
    result = run("namespaces", "set-clusters", "shop/orders", "us-east", "us-west", "--url", servers["us-east"].url)
    assert result.exit_code == 2
    assert "us-west cannot be asked, so nothing was changed" in result.stderr
    assert not changed(servers)


def test_a_region_that_refuses_is_named_with_what_was_done(servers: Servers) -> None:
    servers["us-west"].answers[f"POST {NAMESPACE}/replication"] = (403, {"reason": "not allowed"})
    result = run("namespaces", "set-clusters", "shop/orders", "us-east", "us-west", "--url", servers["us-east"].url)
    assert result.exit_code == NO
    assert "(set in us-east); not in us-west: not allowed (HTTP 403)" in result.stderr


def test_an_unknown_region_is_refused(servers: Servers) -> None:
    result = run("namespaces", "set-clusters", "shop/orders", "mars", "--url", servers["us-east"].url)
    assert result.exit_code == NO
    assert "us-east knows no region mars" in result.stderr


def test_a_token_is_sent_only_to_addresses_that_were_typed(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-of-a-test", encoding="ascii")
    line = ("namespaces", "set-clusters", "shop/orders", "us-east", "us-west", "--token-file", str(file))
    result = run(*line, "--url", servers["us-east"].url)
    assert result.exit_code == 2
    assert "--at us-west=URL" in result.stderr
    assert not servers["us-west"].asked
    result = run(*line, "--url", servers["us-east"].url, "--at", f"us-west={servers['us-west'].url}")
    assert result.exit_code == 0, result.stderr
    assert servers["us-west"].tokens == {"Bearer secret-of-a-test"}
    assert run(*line, "--url", servers["us-east"].url, "--at", "us-west").exit_code == USAGE


@pytest.fixture
def east(servers: Servers) -> AdminServer:
    """A region with a topic of two regions and a replicated subscription, ready to be destroyed."""
    server = servers["us-east"]
    status = {"region": "us-east", "replicated": True}
    server.answers |= {
        f"GET {TOPIC}/partitions": (200, {"partitions": 0}),
        f"GET {TOPIC}/replication?applied=true": (200, ["us-east", "us-west"]),
        f"GET {TOPIC}/subscriptions": (200, ["billing"]),
        f"GET {TOPIC}/internalStats": (200, {"ledgers": [{"ledgerId": 7}, {"ledgerId": 9}]}),
        f"GET {STATUS}": (200, status),
        f"DELETE {TOPIC}": (204, None),
        f"DELETE {TOPIC}?force=true": (204, None),
        f"DELETE {TOPIC}/partitions": (204, None),
        f"DELETE {TOPIC}/subscription/billing": (204, None),
        f"POST {TOPIC}/subscription/billing/resetcursor": (204, None),
        f"POST {TOPIC}/subscription/billing/resetcursor/1700000000000": (204, None),
        f"POST {TOPIC}/subscription/billing/expireMessages/0": (204, None),
        "DELETE /admin/v2/tenants/shop": (204, None),
    }
    return server


DESTROYING = {
    "topics delete orders": f"DELETE {TOPIC}",
    "subscriptions delete orders billing": f"DELETE {TOPIC}/subscription/billing",
    "subscriptions reset orders billing --to 7:0": f"POST {TOPIC}/subscription/billing/resetcursor",
    "subscriptions reset orders billing --to 1700000000000": (
        f"POST {TOPIC}/subscription/billing/resetcursor/1700000000000"
    ),
    "subscriptions expire orders billing --older-than 0": f"POST {TOPIC}/subscription/billing/expireMessages/0",
    "tenants delete shop": "DELETE /admin/v2/tenants/shop",
}


@pytest.mark.parametrize("line", DESTROYING)
def test_on_a_terminal_you_are_asked_before_something_is_destroyed(
    east: AdminServer, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, questions = [False, True], []

    def confirm(question: str, *, err: bool) -> bool:
        assert err, "stdout is for the result"
        questions.append(question)
        return answers.pop(0)

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr("meridian_broker.cli.asking.sys", type("", (), {"stdin": Terminal()}))
    result = run(*line.split(), "--url", east.url)
    assert (result.exit_code, result.stderr, east.changes()) == (NO, "nothing was changed\n", [])
    assert run(*line.split(), "--url", east.url).exit_code == 0
    assert [request for request, _ in east.changes()] == [DESTROYING[line]]
    assert len(questions) == 2
    assert run(*line.split(), "--yes", "--url", east.url).exit_code == 0
    assert len(questions) == 2, "--yes asks nothing"


@pytest.mark.parametrize("line", DESTROYING)
def test_scripts_are_not_asked(east: AdminServer, line: str) -> None:
    assert not sys.stdin.isatty()
    assert run(*line.split(), "--url", east.url).exit_code == 0
    assert [request for request, _ in east.changes()] == [DESTROYING[line]]


def test_what_was_destroyed_is_reported_with_its_regions(east: AdminServer) -> None:
    deleted = run("topics", "delete", "orders", "--url", east.url).output
    assert deleted == "deleted persistent://public/default/orders in us-east, us-west\n"
    forced = run("topics", "delete", "orders", "--force", "--url", east.url).output
    assert forced.startswith(deleted[:-1])
    assert "an unreachable region deletes it once it is back" in forced
    moved = run("subscriptions", "reset", "orders", "billing", "--to", "9:4", "--url", east.url).output
    assert moved == "moved subscription billing of persistent://public/default/orders in us-east, us-west\n"
    east.answers[f"GET {STATUS}"] = (200, {"region": "us-east", "replicated": False})
    moved = run("subscriptions", "delete", "orders", "billing", "--json", "--url", east.url).output
    assert json.loads(moved)["regions"] == ["us-east"]


def test_deleting_a_partitioned_topic_deletes_its_partitions(east: AdminServer) -> None:
    east.answers[f"GET {TOPIC}/partitions"] = (200, {"partitions": 2})
    assert run("topics", "delete", "orders", "--url", east.url).exit_code == 0
    assert east.changes() == [(f"DELETE {TOPIC}/partitions", None)]


def test_resetting_to_a_ledger_that_does_not_exist_moves_nothing_and_says_so(east: AdminServer) -> None:
    result = run("subscriptions", "reset", "orders", "billing", "--to", "1:1", "--url", east.url)
    assert result.exit_code == NO
    assert "has no ledger 1 in this region. It has 7 to 9" in result.stderr
    assert not east.changes()
    assert run("subscriptions", "reset", "orders", "billing", "--to", "earliest", "--url", east.url).exit_code == 0
