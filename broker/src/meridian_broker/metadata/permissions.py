# SPDX-License-Identifier: Apache-2.0
"""Permissions of roles on namespaces and on topics.

They are kept whether brokers enforce them or not, as in Pulsar. Those on a namespace end with it; those on a topic end
with the topic, as its policies do (``policies_of_topics``), and with its namespace. A topic need not exist to be given
permissions: its first client may be the one that creates it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meridian_broker.bounds.permissions import GRANTS_PER_NAMESPACE, ROLES_PER_OBJECT
from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_namespace
from meridian_broker.metadata.actions import Permissions, check_role, fold_permissions, leaf_of
from meridian_broker.metadata.errors import NotFound, QuotaReached
from meridian_broker.metadata.store import Check
from meridian_broker.metadata.trees import Tree
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Held:
    """What one role was permitted."""

    in_namespace: frozenset[str] = frozenset()
    """Actions, for the namespace and all its topics."""
    on_topic: frozenset[str] = frozenset()
    """Actions, for the topic in question alone."""


NOTHING: Final = Held()


class PermissionsOfRoles:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access) -> None:
        self._access = access

    # -- at once, from memory

    def held(self, role: str, namespace: str, topic: TopicName | None = None) -> Held:
        """As last seen. Nothing if the namespace is missing or being deleted: permissions belong to it (R42)."""
        view = self._access.view
        if view.namespace(namespace) is None:
            return NOTHING
        own = {} if topic is None else view.topic_permissions(topic)
        return Held(view.namespace_permissions(namespace).get(role, frozenset()), own.get(role, frozenset()))

    # -- from the store

    async def on_namespace(self, name: str) -> Permissions:
        """By role. :raises NotFound: the namespace does not exist."""
        await self._check_exists(name)
        return fold_permissions(await self._access.tree(keys.namespace_permissions(name)))

    async def on_topic(self, topic: TopicName) -> Permissions:
        """By role, on the topic itself. :raises NotFound: its namespace does not exist."""
        await self._check_exists(topic.namespace_name)
        tree = await self._access.tree(keys.topic_permissions(topic))
        return fold_permissions(tree.after(await self._deleted(topic)))

    async def inside(self, name: str) -> tuple[Permissions, dict[TopicName, Permissions]]:
        """Those on the namespace, and those on each topic in it, existing or not.

        :raises NotFound: the namespace does not exist.
        """
        own, topics = await self.on_namespace(name), dict[TopicName, Permissions]()
        folder = keys.topic_permissions_of(name)
        tenant, _, namespace = name.partition("/")
        for path, _ in await self._access.store.scan(folder + "/"):
            domain, local_name = path.removeprefix(folder + "/").split("/")[:2]
            topic = TopicName(domain, tenant, namespace, keys.unescape(local_name))
            if topic not in topics and (found := self._access.view.topic_permissions(topic)):
                topics[topic] = found
        return own, topics

    async def grant_in_namespace(self, name: str, role: str, actions: frozenset[str]) -> None:
        """Permit a role these actions, and no others, in a namespace.

        :raises NotFound: the namespace does not exist.
        :raises Invalid: the role's name is not valid.
        :raises QuotaReached: too many roles have permissions there.
        """
        await self._change(keys.namespace_permissions(name), name, _setting(role, actions))

    async def grant_on_topic(self, topic: TopicName, role: str, actions: frozenset[str]) -> None:
        """The same, on a topic. Raises as ``grant_in_namespace`` does."""
        setting, namespace = _setting(role, actions), topic.namespace_name

        def changing(tree: Tree) -> dict[str, Any]:
            is_new = leaf_of(role) not in tree.records
            if is_new and self._access.view.grants_on_topics(namespace) >= GRANTS_PER_NAMESPACE:
                raise QuotaReached(
                    f"roles have {GRANTS_PER_NAMESPACE} permissions on topics of {namespace}, the limit: grant them "
                    "on the namespace, or revoke others"
                )
            return setting(tree)

        await self._change(keys.topic_permissions(topic), namespace, changing, await self._deleted(topic))

    async def revoke_in_namespace(self, name: str, role: str) -> None:
        """Revoke everything that a role was permitted in a namespace. It keeps its permissions on topics.

        :raises NotFound: the namespace does not exist.
        :raises Invalid: the role's name is not valid.
        """
        await self._change(keys.namespace_permissions(name), name, lambda tree: _without(tree, role))

    async def revoke_on_topic(self, topic: TopicName, role: str) -> bool:
        """Revoke everything that a role was permitted on a topic. Returns whether there was anything.

        :raises NotFound: the namespace does not exist.
        :raises Invalid: the role's name is not valid.
        """
        there = False

        def changing(tree: Tree) -> dict[str, Any]:
            nonlocal there
            wanted = _without(tree, role)
            there = wanted != tree.leaves()
            return wanted

        deleted = await self._deleted(topic)
        await self._change(keys.topic_permissions(topic), topic.namespace_name, changing, deleted)
        return there

    async def forget(self, topic: TopicName) -> None:
        """Remove the permissions on a deleted topic that had no record."""
        await self._access.change(keys.topic_permissions(topic), lambda _: {})

    async def _change(
        self, path: str, namespace: str, changing: Callable[[Tree], Mapping[str, Any]], deleted: Stamp | None = None
    ) -> None:
        """:raises NotFound: the namespace does not exist, or is being deleted."""
        base = await self._access.base_of_namespace(namespace)
        stands = Check(keys.namespace(namespace), base.version)
        await self._access.change(path, changing, [stands], deleted)

    async def _check_exists(self, name: str) -> None:
        if await self._access.store.get(keys.namespace(check_namespace(name))) is None:
            raise NotFound(f"namespace {name} does not exist")

    async def _deleted(self, topic: TopicName) -> Stamp | None:
        return (await self._access.value(keys.deletion(topic.base)))[1]


def _setting(role: str, actions: frozenset[str]) -> Callable[[Tree], dict[str, Any]]:
    """:raises Invalid: the role's name is not valid."""
    leaf = leaf_of(check_role(role))

    def changing(tree: Tree) -> dict[str, Any]:
        present = tree.leaves()
        if leaf not in present and len(present) >= ROLES_PER_OBJECT:
            raise QuotaReached(f"{ROLES_PER_OBJECT} roles have permissions there, the limit: revoke others first")
        return {**present, leaf: sorted(actions)}

    return changing


def _without(tree: Tree, role: str) -> dict[str, Any]:
    """:raises Invalid: the role's name is not valid."""
    gone = leaf_of(check_role(role))
    return {leaf: value for leaf, value in tree.leaves().items() if leaf != gone}
