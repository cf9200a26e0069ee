# SPDX-License-Identifier: Apache-2.0
"""Clusters (Pulsar's word for regions), tenants and namespaces, and their policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, absent, check_name, check_namespace
from meridian_broker.metadata.errors import Invalid, NotEmpty, NotFound
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.records import ClusterRecord, TenantRecord
from meridian_broker.metadata.store import ABSENT, Check, MetadataError, Record
from meridian_broker.metadata.trees import BASE, Tree, fold_namespace, fold_tenant, unfold_namespace, unfold_tenant
from meridian_broker.wire.pulsar.topic_name import DOMAINS


class Clusters:
    """Every region that this one knows, itself included."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def names(self) -> list[str]:
        return _named(await self._access.store.children(keys.CLUSTERS))

    async def get(self, name: str) -> ClusterRecord:
        """:raises NotFound: the cluster does not exist."""
        value, stamp, version = await self._access.value(keys.cluster(check_name(name, "cluster")))
        if not version:
            raise NotFound(f"cluster {name} is not known here")
        return ClusterRecord.from_json(value, stamp)

    async def create(self, name: str, record: ClusterRecord) -> None:
        """:raises AlreadyExists: there is one of that name."""

        def changing(tree: Tree) -> dict[str, Any]:
            absent(tree, f"cluster {name}")
            return {BASE: record.to_json()}

        await self._access.change(keys.cluster(check_name(name, "cluster")), changing)

    async def update(self, name: str, record: ClusterRecord) -> None:
        """:raises NotFound: the cluster does not exist."""

        def changing(tree: Tree) -> dict[str, Any]:
            if not tree.exists:
                raise NotFound(f"cluster {name} is not known here")
            return {BASE: record.to_json()}

        await self._access.change(keys.cluster(check_name(name, "cluster")), changing)

    async def put(self, name: str, record: ClusterRecord) -> None:
        """Create or replace it; if nothing changes, nothing is written."""
        await self._access.change(keys.cluster(check_name(name, "cluster")), lambda _: {BASE: record.to_json()})

    async def delete(self, name: str) -> None:
        """:raises NotFound: the cluster does not exist.
        :raises NotEmpty: a tenant or namespace uses it.
        """
        await self.get(name)
        users = await self._users(name)
        if users:
            raise NotEmpty(f"cluster {name} is used by {', '.join(users[:3])}: remove it there first")
        await self._access.change(keys.cluster(name), lambda _: {})

    async def check_known(self, wanted: Iterable[str]) -> None:
        """:raises Invalid: one of the names is not a known cluster."""
        unknown = sorted(set(wanted) - set(await self.names()))
        if unknown:
            raise Invalid(f"{', '.join(unknown)}: not a cluster known here; create it first")

    async def _users(self, name: str) -> list[str]:
        users: list[str] = []
        for base, tree in _trees(await self._access.store.scan(keys.TENANTS + "/"), 1):
            tenant = fold_tenant(tree)
            if tenant is not None and name in tenant.allowed_clusters:
                users.append(f"tenant {base}")
        for base, tree in _trees(await self._access.store.scan(keys.NAMESPACES + "/"), 2):
            namespace = fold_namespace(tree)
            if namespace is not None and name in namespace.replication_clusters | namespace.allowed_clusters:
                users.append(f"namespace {base}")
        return users


class Tenants:
    """The owners of namespaces."""

    def __init__(self, access: Access, clusters: Clusters) -> None:
        self._access = access
        self._clusters = clusters

    async def names(self) -> list[str]:
        return _named(await self._access.store.children(keys.TENANTS))

    async def get(self, name: str) -> TenantRecord:
        """:raises NotFound: the tenant does not exist."""
        record = fold_tenant(await self._access.tree(keys.tenant(check_name(name, "tenant"))))
        if record is None:
            raise NotFound(f"tenant {name} does not exist")
        return record

    async def create(self, name: str, record: TenantRecord) -> None:
        """:raises AlreadyExists: there is one of that name.
        :raises Invalid: the name is bad, or an allowed cluster is not known.
        """
        await self._clusters.check_known(record.allowed_clusters)

        def changing(tree: Tree) -> dict[str, Any]:
            absent(tree, f"tenant {name}")
            return unfold_tenant(record)

        await self._access.change(keys.tenant(check_name(name, "tenant")), changing)

    async def update(self, name: str, record: TenantRecord) -> None:
        """Set its roles and clusters. :raises NotFound: the tenant does not exist."""
        await self._clusters.check_known(record.allowed_clusters)

        def changing(tree: Tree) -> dict[str, Any]:
            present = fold_tenant(tree)
            if present is None:
                raise NotFound(f"tenant {name} does not exist")
            return unfold_tenant(replace(record, deleting=present.deleting))

        await self._access.change(keys.tenant(check_name(name, "tenant")), changing)

    async def delete(self, name: str) -> None:
        """:raises NotFound: the tenant does not exist.
        :raises NotEmpty: it has namespaces.
        """

        async def inhabitants() -> list[str]:
            return [f"{name}/{short}" for short in _named(await self._access.store.children(keys.namespaces_of(name)))]

        await self._access.delete_in_two_steps(keys.tenant(check_name(name, "tenant")), f"tenant {name}", inhabitants)


class Namespaces:
    """Groups of topics with shared policies."""

    def __init__(self, access: Access, clusters: Clusters) -> None:
        self._access = access
        self._clusters = clusters

    async def names(self, tenant: str) -> list[str]:
        """``tenant/namespace`` of each. :raises NotFound: the tenant does not exist."""
        await self._base_of_tenant(tenant)
        return [f"{tenant}/{short}" for short in _named(await self._access.store.children(keys.namespaces_of(tenant)))]

    async def get(self, name: str) -> NamespaceRecord:
        """:raises NotFound: the namespace does not exist."""
        return _namespace(await self._access.tree(keys.namespace(check_namespace(name))), name)

    async def create(self, name: str, record: NamespaceRecord | None = None) -> None:
        """Without replication clusters it exists in this region only. Nobody has permissions in it.

        :raises AlreadyExists: the namespace exists.
        :raises NotFound: its tenant does not exist.
        :raises Invalid: an invalid name, or a cluster that is unknown or not allowed for the tenant.
        """
        wanted = record or NamespaceRecord()
        if not wanted.replication_clusters:
            wanted = replace(wanted, replication_clusters=frozenset({self._access.region}))
        path = keys.namespace(check_namespace(name))
        tenant, tenant_base = await self._base_of_tenant(name.partition("/")[0])
        await self._check_clusters(wanted, tenant)

        def changing(tree: Tree) -> dict[str, Any]:
            absent(tree, f"namespace {name}")
            return unfold_namespace(wanted)

        # An earlier namespace may have left permissions that another region granted while it was being deleted.
        await self._access.remove_belongings(_permissions(name), [Check(path, ABSENT)])
        await self._access.change(path, changing, [tenant_base])

    async def update(self, name: str, change: Callable[[NamespaceRecord], NamespaceRecord]) -> NamespaceRecord:
        """Change its policies; ``change`` may run several times. Concurrent changes of other policies are kept.

        :raises NotFound: the namespace does not exist.
        :raises Invalid: ``change`` returned something impossible.
        """
        path, tenant = keys.namespace(check_namespace(name)), name.partition("/")[0]
        known = self._access.view.tenant(tenant)
        if known is None or known.deleting:
            await self._base_of_tenant(tenant)

        def changed(present: NamespaceRecord) -> NamespaceRecord:
            return replace(change(present), deleting=present.deleting)

        seen = self._access.remembered(path)
        try:
            present = _namespace(seen, name)
            is_known = (wanted := changed(present)) != present
        except MetadataError:
            is_known = False
        if not is_known:  # what was seen last never makes a change refused or skipped
            seen = await self._access.tree(path)
            present = _namespace(seen, name)
            wanted = changed(present)
        if _clusters_of(wanted) != _clusters_of(present):
            await self._check_clusters(wanted, (await self._base_of_tenant(tenant))[0])

        def changing(tree: Tree) -> dict[str, Any]:
            nonlocal wanted
            if tree.records is not seen.records:
                wanted = changed(_namespace(tree, name))
            return unfold_namespace(wanted)

        await self._access.change(path, changing, seen=seen)
        return wanted

    async def set_policy(self, name: str, policy: str, value: Any, element: str | None = None) -> NamespaceRecord:
        """Set one policy, by Pulsar's name, or one element of it, to a JSON value; None removes it.

        Raises as ``update`` does.
        """
        return await self.update(name, lambda record: record.with_policy(policy, value, element))

    async def set_policies(self, name: str, values: Mapping[str, Any]) -> NamespaceRecord:
        """Set several policies, by Pulsar's names, to JSON values, all or none; None removes one.

        Raises as ``update`` does.
        """

        def change(record: NamespaceRecord) -> NamespaceRecord:
            for policy, value in values.items():
                record = record.with_policy(policy, value)
            return record

        return await self.update(name, change)

    async def delete(self, name: str) -> None:
        """:raises NotFound: the namespace does not exist.
        :raises NotEmpty: it has topics.
        """

        async def inhabitants() -> list[str]:
            found: list[str] = []
            for domain in sorted(DOMAINS):
                for folder in (keys.partitioned_topics_of(name, domain), keys.topics_of(name, domain)):
                    found.extend(_named(await self._access.store.children(folder)))
            return found

        path = keys.namespace(check_namespace(name))
        await self._access.delete_in_two_steps(path, f"namespace {name}", inhabitants, _permissions(name))

    async def _base_of_tenant(self, name: str) -> tuple[TenantRecord, Check]:
        tree = await self._access.tree(keys.tenant(check_name(name, "tenant")))
        tenant = fold_tenant(tree)
        if tenant is None or tenant.deleting:
            raise NotFound(
                f"tenant {name} {'does not exist: create it first' if tenant is None else 'is being deleted'}"
            )
        return tenant, Check(tree.path, tree.version(BASE))

    async def _check_clusters(self, record: NamespaceRecord, tenant: TenantRecord) -> None:
        wanted = record.replication_clusters
        if not wanted:
            raise Invalid("a namespace needs at least one replication cluster")
        await self._clusters.check_known(wanted | record.allowed_clusters)
        refused = sorted(wanted - tenant.allowed_clusters)
        if refused:
            raise Invalid(f"{', '.join(refused)}: not among the tenant's allowed clusters; allow it there first")


def _permissions(name: str) -> list[str]:
    """Where permissions on a namespace, and on its topics, are."""
    return [keys.namespace_permissions(name), keys.topic_permissions_of(name)]


def _clusters_of(record: NamespaceRecord) -> tuple[frozenset[str], frozenset[str]]:
    """What has to be allowed by the tenant and be among the known clusters."""
    return record.replication_clusters, record.allowed_clusters


def _namespace(tree: Tree, name: str) -> NamespaceRecord:
    """:raises NotFound: it does not exist."""
    record = fold_namespace(tree)
    if record is None:
        raise NotFound(f"namespace {name} does not exist")
    return record


def _named(segments: Iterable[str]) -> list[str]:
    return [keys.unescape(segment) for segment in segments]


def _trees(found: Iterable[tuple[str, Record]], depth: int) -> Iterable[tuple[str, Tree]]:
    """The trees in a scan of a folder whose members' names have ``depth`` segments: names and trees."""
    grouped: dict[str, dict[str, Record]] = {}
    for path, record in found:
        segments = path.split("/")
        base, rest = "/".join(segments[: 3 + depth]), segments[3 + depth :]
        grouped.setdefault(base, {})["/" + "/".join(rest) if rest else ""] = record
    for base, records in grouped.items():
        yield "/".join(_named(base.split("/")[3:])), Tree(base, records)
