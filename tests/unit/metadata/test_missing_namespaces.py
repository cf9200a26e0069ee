# SPDX-License-Identifier: Apache-2.0
"""A namespace that another region deleted or hid still rules the topics that are open here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.policy_values import Retention
from meridian_broker.metadata.records import TenantRecord, encode
from meridian_broker.metadata.store import Change, Record
from meridian_broker.metadata.trees import unfold_namespace, unfold_tenant
from meridian_broker.metadata.view import View

NAME = "shop/orders"
BASE = keys.namespace(NAME)
TENANT = keys.tenant("shop")
RULED = NamespaceRecord(frozenset(("eu", "us")), own={"retention_policies": Retention(-1, -1)})


class World:
    """A store's changes, and a view that is told of them."""

    def __init__(self) -> None:
        self.view = View()
        self.version = 0
        self.stored: dict[str, Record] = {}
        self.write(unfold_tenant(TenantRecord(frozenset(), frozenset(("eu", "us")))), TENANT)
        self.write(unfold_namespace(RULED), BASE)

    def write(self, leaves: dict[str, Any], base: str) -> None:
        self.hear({base + leaf: encode(value, None) for leaf, value in leaves.items()})

    def hear(self, values: dict[str, bytes | None]) -> None:
        changes = []
        for path, value in values.items():
            self.version += 1
            record = None if value is None else Record(value, self.version)
            self.stored.pop(path, None)
            if record is not None:
                self.stored[path] = record
            changes.append(Change(path, record))
        self.view.apply(changes)

    def delete(self, below: str) -> None:
        self.hear({path: None for path in self.stored if path == below or path.startswith(below + "/")})

    def scan(self) -> None:
        """Scan as after a broken watch."""
        view = View.of(self.stored.items())
        view.follow(self.view)
        self.view = view


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def ruled(world: World, *, stands: bool) -> bool:
    found = world.view.ruling(NAME)
    return found is not None and replaced(found) == RULED and world.view.stands(NAME) is stands


def replaced(found: NamespaceRecord) -> NamespaceRecord:
    return NamespaceRecord(found.replication_clusters, own=found.own)


def test_its_last_policies_hold_while_it_is_missing(world: World) -> None:
    assert ruled(world, stands=True)
    world.delete(BASE)
    assert world.view.namespace(NAME) is None
    assert ruled(world, stands=False)
    world.scan()
    assert ruled(world, stands=False)


def test_a_namespace_deleted_while_the_watch_was_broken(world: World) -> None:
    world.stored = {path: record for path, record in world.stored.items() if not path.startswith(BASE)}
    world.scan()
    assert ruled(world, stands=False)


def test_policies_that_are_deleted_before_their_namespace(world: World) -> None:
    """A large namespace is deleted in several transactions, and another region may receive each of them alone."""
    world.write({"": {"deleting": True}}, BASE)
    world.delete(f"{BASE}/policies")
    assert ruled(world, stands=False)
    world.delete(BASE)
    assert ruled(world, stands=False)


def test_a_namespace_whose_tenant_is_hidden(world: World) -> None:
    world.delete(TENANT)
    assert world.view.namespace(NAME) is None
    assert ruled(world, stands=False)


def test_a_namespace_that_returns_rules_again(world: World) -> None:
    world.delete(BASE)
    back = NamespaceRecord(frozenset(("eu",)))
    world.write(unfold_namespace(back), BASE)
    found = world.view.ruling(NAME)
    assert found is not None and replaced(found) == back and world.view.stands(NAME)


def test_nothing_is_kept_of_namespaces_without_open_topics(world: World) -> None:
    world.delete(BASE)
    world.view.keep_only([NAME])
    assert ruled(world, stands=False)
    world.view.keep_only([])
    assert world.view.ruling(NAME) is None
