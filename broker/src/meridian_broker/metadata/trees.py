# SPDX-License-Identifier: Apache-2.0
"""Tenants and namespaces as small trees of paths.

A namespace is one value for readers and many paths for writers (R41): its own path says that it
exists, each policy is below it, and each region or role of a list below that. *Leaves* are the paths below a base,
relative to it (``""`` is the base itself), with their values. The served record is a pure function of the leaves (R42).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from meridian_broker.metadata.keys import escape, unescape
from meridian_broker.metadata.policies import NAME_SETS, NamespaceRecord, TopicPolicies
from meridian_broker.metadata.policy_table import TABLE, parse_level, show_level
from meridian_broker.metadata.records import TenantRecord, decode, encode
from meridian_broker.metadata.store import Check, Delete, Put, Record
from meridian_broker.positions.clock import Stamp

BASE: Final = ""
ROLES: Final = "/roles/"
CLUSTERS: Final = "/clusters/"
POLICIES: Final = "/policies/"

Leaves = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tree:
    """The store's content at ``path`` and below: records by relative path. Without the base the object does not
    exist."""

    path: str
    records: Mapping[str, Record]
    deleted: Stamp | None = None
    """Values written up to this stamp do not count: they belonged to an earlier object of that name."""

    def after(self, deleted: Stamp | None) -> Tree:
        """The tree without what was written up to that stamp."""
        return replace(self, deleted=deleted)

    @property
    def exists(self) -> bool:
        return BASE in self.records

    def version(self, leaf: str) -> int:
        record = self.records.get(leaf)
        return 0 if record is None else record.version

    def leaves(self) -> dict[str, Any]:
        found = {leaf: decode(self.path + leaf, record.value) for leaf, record in self.records.items()}
        return {leaf: value for leaf, (value, stamp) in found.items() if self._counts(stamp)}

    def _counts(self, stamp: Stamp | None) -> bool:
        return self.deleted is None or (stamp is not None and stamp > self.deleted)

    def stamp(self, leaf: str = BASE) -> Stamp | None:
        record = self.records.get(leaf)
        return None if record is None else decode(self.path + leaf, record.value)[1]

    def writes(self, wanted: Leaves, stamp: Callable[[Stamp | None], Stamp]) -> tuple[list[Check], list[Put | Delete]]:
        """The operations that turn this tree into ``wanted``. Only differing leaves, and the base, are written and
        checked.

        ``stamp`` gives the stamp of a write from the stamp that it replaces (R40).
        """
        present = self.leaves()
        touched = [leaf for leaf in present.keys() | wanted.keys() if not _same(leaf, present, wanted)]
        checks = [Check(self.path + leaf, self.version(leaf)) for leaf in sorted({BASE, *touched})]
        operations: list[Put | Delete] = []
        for leaf in sorted(touched):
            if leaf in wanted:
                replaced = max((one for one in (self.stamp(leaf), self.deleted) if one is not None), default=None)
                operations.append(Put(self.path + leaf, encode(wanted[leaf], stamp(replaced))))
            else:
                operations.append(Delete(self.path + leaf))
        return checks, operations


def _same(leaf: str, present: Leaves, wanted: Leaves) -> bool:
    return leaf in present and leaf in wanted and present[leaf] == wanted[leaf]


def unfold_tenant(record: TenantRecord) -> dict[str, Any]:
    leaves: dict[str, Any] = {BASE: {"deleting": True} if record.deleting else {}}
    leaves.update({ROLES + escape(role): True for role in record.admin_roles})
    leaves.update({CLUSTERS + escape(cluster): True for cluster in record.allowed_clusters})
    return leaves


def fold_tenant(tree: Tree) -> TenantRecord | None:
    if not tree.exists:
        return None
    return TenantRecord(
        frozenset(_below(tree, ROLES)), frozenset(_below(tree, CLUSTERS)), _deleting(tree), tree.stamp()
    )


def unfold_namespace(record: NamespaceRecord) -> dict[str, Any]:
    leaves: dict[str, Any] = {BASE: {"deleting": True} if record.deleting else {}}
    for policy, value in record.policies().items():
        if policy in NAME_SETS:
            at = POLICIES + escape(policy)
            leaves.update({f"{at}/{escape(element)}": True for element in value})
        else:
            leaves.update(_unfold(POLICIES, policy, value))
    return leaves


def fold_namespace(tree: Tree) -> NamespaceRecord | None:
    """:raises MetadataError: a stored policy is not valid."""
    if not tree.exists:
        return None
    policies = _fold(tree, POLICIES)
    for policy in NAME_SETS & policies.keys():
        policies[policy] = list(policies[policy])
    return replace(NamespaceRecord.from_json(policies), deleting=_deleting(tree), stamp=tree.stamp())


def unfold_topic_policies(record: TopicPolicies) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for policy, value in show_level(record.own).items():
        leaves.update(_unfold("/", policy, value))
    return leaves


def fold_topic_policies(tree: Tree) -> TopicPolicies | None:
    """None when the topic sets nothing itself. :raises MetadataError: a policy is not valid."""
    return TopicPolicies(parse_level(_fold(tree, "/"))) if tree.leaves() else None


def _unfold(prefix: str, policy: str, value: Any) -> dict[str, Any]:
    """One path per policy, or per element of a policy that is made of several."""
    at = prefix + escape(policy)
    if policy in TABLE and TABLE[policy].each:
        return {f"{at}/{escape(element)}": one for element, one in value.items()}
    return {at: value}


def _fold(tree: Tree, prefix: str) -> dict[str, Any]:
    """Policies by name. One with a path per element is a map, which overrides a value stored for the whole."""
    whole: dict[str, Any] = {}
    elements: dict[str, dict[str, Any]] = {}
    for leaf, value in tree.leaves().items():
        if not leaf.startswith(prefix):
            continue
        policy, separator, element = leaf.removeprefix(prefix).partition("/")
        if separator:
            elements.setdefault(unescape(policy), {})[unescape(element)] = value
        else:
            whole[unescape(policy)] = value
    for policy, found in elements.items():
        whole[policy] = {**whole.get(policy, {}), **found}
    return whole


def _below(tree: Tree, prefix: str) -> list[str]:
    return [unescape(leaf.removeprefix(prefix)) for leaf in tree.records if leaf.startswith(prefix)]


def _deleting(tree: Tree) -> bool:
    return bool(tree.leaves()[BASE].get("deleting", False))
