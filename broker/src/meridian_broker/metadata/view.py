# SPDX-License-Identifier: Apache-2.0
"""Clusters, tenants, namespaces, topic policies, permissions and deletions in memory: for decisions that cannot wait
for the store.

The view holds the store's content at the paths it knows, by version: an update that is older than the known version is
ignored. A namespace's record is built when it is first needed, and rebuilt after one of its paths changed.

A namespace may be deleted, or hidden with its tenant, by a region that does not know its topics (R42). Its last record
is kept until ``keep_only``, because its topics must not fall back to the broker's settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, Literal, TypeVar

from meridian_broker.metadata import keys
from meridian_broker.metadata.actions import Permissions, fold_permissions
from meridian_broker.metadata.policies import NamespaceRecord, TopicPolicies
from meridian_broker.metadata.records import ClusterRecord, TenantRecord, decode
from meridian_broker.metadata.store import Change, MetadataError, Record
from meridian_broker.metadata.trees import Tree, fold_namespace, fold_tenant, fold_topic_policies
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.wire.pulsar.topic_name import TopicName

Kind = Literal[
    "cluster",
    "tenant",
    "namespace",
    "partitioned",
    "schema",
    "deletion",
    "topic policies",
    "permissions",
    "topic permissions",
    "introduction",
    "everything",
]


@dataclass(frozen=True, slots=True)
class Changed:
    """A change in what regions agree on. ``everything``: changes may have been missed, read everything again."""

    kind: Kind
    name: str
    """A cluster, a tenant, ``tenant/namespace``, or a topic as ``tenant/namespace/name``; empty for ``everything``."""


T = TypeVar("T")

_KINDS: Final[dict[str, tuple[Kind, int]]] = {
    "clusters": ("cluster", 1),
    "introductions": ("introduction", 1),
    "tenants": ("tenant", 1),
    "namespaces": ("namespace", 2),
    "partitioned": ("partitioned", 4),
    "schemas": ("schema", 3),
    "deletions": ("deletion", 4),
    "topic-policies": ("topic policies", 4),
    "permissions/namespaces": ("permissions", 2),
    "permissions/topics": ("topic permissions", 4),
}
"""For each folder below ``/geo``: the kind, and how many segments its names have."""
_BEGINNINGS: Final = {kind: 3 + folder.count("/") for folder, (kind, _) in _KINDS.items()}
"""By kind, the first segment of the name in a path."""


def split(path: str) -> tuple[Kind, str, str] | None:
    """Kind, base path and rest of a path below ``/geo``; None for one this version does not know."""
    segments = path.split("/")
    known = _KINDS.get(segments[2]) or _KINDS.get("/".join(segments[2:4])) if len(segments) > 2 else None
    if known is None or len(segments) < (end := _BEGINNINGS[known[0]] + known[1]):
        return None
    rest = "/".join(segments[end:])
    return known[0], "/".join(segments[:end]), "/" + rest if rest else ""


def name_of(kind: Kind, base: str) -> str:
    """The name in a base path."""
    segments = [keys.unescape(segment) for segment in base.split("/")[_BEGINNINGS.get(kind, 3) :]]
    if kind in ("partitioned", "deletion", "topic policies", "topic permissions"):
        del segments[2]  # the domain
    return "/".join(segments)


class _Shelf(Generic[T]):
    """All of one kind: trees by base path, and the records folded from them."""

    def __init__(self, fold: Callable[[Tree], T | None]) -> None:
        self._fold = fold
        self._trees: dict[str, Mapping[str, Record]] = {}
        self._folded: dict[str, T | None] = {}

    def set(self, base: str, leaf: str, record: Record | None) -> None:
        tree = dict(self._trees.get(base, {}))
        known = tree.get(leaf)
        if record is None:
            tree.pop(leaf, None)
        elif known is None or known.version < record.version:
            tree[leaf] = record
        self.replace(base, tree)

    def replace(self, base: str, tree: Mapping[str, Record]) -> None:
        self._folded.pop(base, None)
        if tree:
            self._trees[base] = tree
        else:
            self._trees.pop(base, None)

    def fold_again(self, base: str) -> None:
        """What its record depends on has changed."""
        self._folded.pop(base, None)

    def get(self, base: str) -> T | None:
        if base not in self._folded:
            tree = self._trees.get(base)
            if tree is None:
                return None  # not remembered: there is no end of names that do not exist
            self._folded[base] = self._fold(Tree(base, tree))
        return self._folded[base]

    def tree(self, base: str) -> Mapping[str, Record]:
        return self._trees.get(base, {})

    def trees(self) -> Iterable[tuple[str, Mapping[str, Record]]]:
        return self._trees.items()

    def bases(self) -> list[str]:
        return sorted(base for base, tree in self._trees.items() if "" in tree)


class _TopicPermissions(_Shelf[Permissions]):
    """Permissions on topics, counted by namespace."""

    def __init__(self, fold: Callable[[Tree], Permissions | None]) -> None:
        super().__init__(fold)
        self.counts: Counter[str] = Counter()
        """By the folder of a namespace's permissions on topics."""

    def replace(self, base: str, tree: Mapping[str, Record]) -> None:
        folder = base.rsplit("/", 2)[0]
        self.counts[folder] += len(tree) - len(self.tree(base))
        if not self.counts[folder]:
            del self.counts[folder]
        super().replace(base, tree)


_AnyShelf = (
    _Shelf[ClusterRecord] | _Shelf[TenantRecord] | _Shelf[NamespaceRecord] | _Shelf[TopicPolicies] | _Shelf[Permissions]
)


class View:
    """See the module's text. Changes come through ``apply``, whole states through ``of``."""

    def __init__(self) -> None:
        self._clusters: _Shelf[ClusterRecord] = _Shelf(_fold_cluster)
        self._introductions: _Shelf[ClusterRecord] = _Shelf(_fold_cluster)
        self._tenants: _Shelf[TenantRecord] = _Shelf(fold_tenant)
        self._namespaces: _Shelf[NamespaceRecord] = _Shelf(fold_namespace)
        self._kept: _Shelf[NamespaceRecord] = _Shelf(fold_namespace)
        """The last records of namespaces that are missing or being deleted."""
        self._topic_policies: _Shelf[TopicPolicies] = _Shelf(self._fold_topic_policies)
        self._permissions: _Shelf[Permissions] = _Shelf(fold_permissions)
        self._topic_permissions = _TopicPermissions(self._fold_topic_permissions)
        self._deletions: dict[str, Stamp] = {}
        """By path. Stamps only grow, so the latest one counts, whatever the order of arrival."""

    @classmethod
    def of(cls, found: Iterable[tuple[str, Record]]) -> View:
        """A view from a scan of ``/geo/``."""
        view = cls()
        view.apply(Change(path, record) for path, record in found)
        return view

    def apply(self, changes: Iterable[Change]) -> list[Changed]:
        """Apply changes. Returns what they concern, each object once, even if our own write was applied before."""
        news: dict[Changed, None] = {}
        before: dict[str, Mapping[str, Record]] = {}
        for change in changes:
            where = split(change.path)
            if where is None:
                continue
            kind, base, leaf = where
            if kind == "namespace" and base not in before:
                before[base] = self._namespaces.tree(base)
            shelf = self._shelf(kind)
            if shelf is not None:
                shelf.set(base, leaf, change.record)
            elif kind == "deletion":
                self._hear_of_deletion(change)
            news[Changed(kind, name_of(kind, base))] = None
        for base, tree in before.items():
            self._keep(base, tree)
        return list(news)

    def replace(self, tree: Tree) -> None:
        """All that is known at and below one cluster's, tenant's or namespace's path."""
        where = split(tree.path)
        shelf = None if where is None else self._shelf(where[0])
        if shelf is not None:
            before = self._namespaces.tree(tree.path)
            shelf.replace(tree.path, tree.records)
            if shelf is self._namespaces:
                self._keep(tree.path, before)

    def follow(self, earlier: View) -> None:
        """This view replaces an earlier one: keep its records of namespaces that are missing here."""
        for shelf in (earlier._kept, earlier._namespaces):
            for base, tree in shelf.trees():
                self._keep(base, tree)

    def tree(self, path: str) -> Mapping[str, Record]:
        """What is known at and below the path of a cluster, tenant, namespace or topic's policies."""
        where = split(path)
        shelf = None if where is None else self._shelf(where[0])
        return {} if shelf is None else shelf.tree(path)

    def record(self, path: str) -> tuple[Record | None] | None:
        """What is known at a path; None: the view keeps nothing there."""
        where = split(path)
        shelf = None if where is None else self._shelf(where[0])
        if where is None or shelf is None:
            return None
        return (shelf.tree(where[1]).get(where[2]),)

    def cluster(self, name: str) -> ClusterRecord | None:
        return self._clusters.get(keys.cluster(name))

    def clusters(self) -> list[str]:
        return [name_of("cluster", base) for base in self._clusters.bases()]

    def introduction(self, name: str) -> ClusterRecord | None:
        return self._introductions.get(keys.introduction(name))

    def introduced(self) -> list[str]:
        return [name_of("introduction", base) for base in self._introductions.bases()]

    def tenant(self, name: str) -> TenantRecord | None:
        return self._tenants.get(keys.tenant(name))

    def namespace(self, name: str) -> NamespaceRecord | None:
        if self._tenants.get(keys.tenant(name.partition("/")[0])) is None:
            return None  # its tenant was deleted in another region (R42)
        return self._namespaces.get(keys.namespace(name))

    def ruling(self, name: str) -> NamespaceRecord | None:
        """The record that rules a namespace's topics: the present one or, if it is missing or being deleted, the last
        one."""
        base = keys.namespace(name)
        return self._kept.get(base) or self._namespaces.get(base)

    def stands(self, name: str) -> bool:
        """Whether a namespace exists and is not being deleted."""
        tenant = self._tenants.tree(keys.tenant(name.partition("/")[0]))
        return "" in tenant and _stands(self._namespaces.tree(keys.namespace(name)))

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget the last records of all namespaces except these."""
        wanted = set(map(keys.namespace, names))
        for base in [base for base, _ in self._kept.trees() if base not in wanted]:
            self._kept.replace(base, {})

    def _keep(self, base: str, before: Mapping[str, Record]) -> None:
        """Keep this earlier state of a namespace if it has gone since."""
        if _stands(self._namespaces.tree(base)):
            self._kept.replace(base, {})
        elif _stands(before):
            self._kept.replace(base, before)

    def namespaces(self) -> list[str]:
        return [name_of("namespace", base) for base in self._namespaces.bases()]

    def topic_policies(self, topic: TopicName) -> TopicPolicies | None:
        return self._topic_policies.get(keys.topic_policies(topic))

    def namespace_permissions(self, name: str) -> Permissions:
        """On the namespace, whether it exists or not."""
        return self._permissions.get(keys.namespace_permissions(name)) or {}

    def topic_permissions(self, topic: TopicName) -> Permissions:
        """On the topic itself, whether its namespace exists or not."""
        return self._topic_permissions.get(keys.topic_permissions(topic)) or {}

    def grants_on_topics(self, namespace: str) -> int:
        """How many paths permissions on topics of the namespace have."""
        return self._topic_permissions.counts[keys.topic_permissions_of(namespace)]

    def deleted(self, path: str, stamp: Stamp) -> None:
        """A deletion is on record at this path."""
        self._deletions[path] = max(stamp, self._deletions.get(path, ZERO))
        topic = path.removeprefix(keys.DELETIONS)
        self._topic_policies.fold_again(keys.TOPIC_POLICIES + topic)
        self._topic_permissions.fold_again(keys.TOPIC_PERMISSIONS + topic)

    def deletion(self, topic: TopicName) -> Stamp | None:
        """The last deletion of the topic, or of the one that it is a partition of; None: it was never deleted."""
        paths = (keys.deletion(topic), keys.deletion(topic.base))
        return max((self._deletions[path] for path in paths if path in self._deletions), default=None)

    def _fold_topic_policies(self, tree: Tree) -> TopicPolicies | None:
        deleted = self._deletions.get(keys.DELETIONS + tree.path.removeprefix(keys.TOPIC_POLICIES))
        return fold_topic_policies(tree.after(deleted))

    def _fold_topic_permissions(self, tree: Tree) -> Permissions:
        deleted = self._deletions.get(keys.DELETIONS + tree.path.removeprefix(keys.TOPIC_PERMISSIONS))
        return fold_permissions(tree.after(deleted))

    def _hear_of_deletion(self, change: Change) -> None:
        if change.record is None:
            self._deletions.pop(change.path, None)
            return
        try:
            _, stamp = decode(change.path, change.record.value)
        except MetadataError:
            return  # opening the topic reads it again and reports the error
        if stamp is not None:
            self.deleted(change.path, stamp)

    def _shelf(self, kind: Kind) -> _AnyShelf | None:
        if kind == "cluster":
            return self._clusters
        if kind == "introduction":
            return self._introductions
        if kind == "tenant":
            return self._tenants
        if kind == "topic policies":
            return self._topic_policies
        if kind == "permissions":
            return self._permissions
        if kind == "topic permissions":
            return self._topic_permissions
        return self._namespaces if kind == "namespace" else None


def _fold_cluster(tree: Tree) -> ClusterRecord | None:
    record = tree.records.get("")
    return None if record is None else ClusterRecord.from_json(*decode(tree.path, record.value))


def _stands(tree: Mapping[str, Record]) -> bool:
    """Whether a namespace with these records exists, can be read, and is not being deleted."""
    base = tree.get("")
    return base is not None and _says_it_stands(base.value)


@lru_cache(maxsize=1024)
def _says_it_stands(record: bytes) -> bool:
    """Cached, because every new subscription asks."""
    try:
        return not decode("a namespace", record)[0].get("deleting", False)
    except MetadataError:
        return False
