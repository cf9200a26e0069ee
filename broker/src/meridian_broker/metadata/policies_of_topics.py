# SPDX-License-Identifier: Apache-2.0
"""Policies set on topics, which override those of their namespaces. They end with the topic, as permissions on it do.

What was written up to the topic's last deletion (R8) belonged to an earlier topic of that name, and is not
served, wherever and whenever it arrives. So removing it is only tidying up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import DELETED_TOGETHER, Access
from meridian_broker.metadata.policies import TopicPolicies
from meridian_broker.metadata.store import Check, Delete
from meridian_broker.metadata.trees import Tree, fold_topic_policies, unfold_topic_policies
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.wire.pulsar.topic_name import TopicName


class PoliciesOfTopics:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def get(self, topic: TopicName) -> TopicPolicies:
        """The topic's own policies; empty if none is set."""
        tree = await self._access.tree(keys.topic_policies(topic))
        return fold_topic_policies(tree.after(await self._deleted(topic))) or TopicPolicies()

    async def set_policy(self, topic: TopicName, policy: str, value: Any, element: str | None = None) -> None:
        """Set one policy, or one element of it, to a JSON value; None removes it. Concurrent changes of other policies
        are kept.

        :raises Invalid: the value is not valid.
        """
        deleted = await self._deleted(topic)

        def changing(tree: Tree) -> dict[str, Any]:
            present = fold_topic_policies(tree) or TopicPolicies()
            return unfold_topic_policies(present.with_policy(policy, value, element))

        path = keys.topic_policies(topic)
        await self._access.change(path, changing, deleted=deleted, seen=self._access.remembered(path))

    async def _deleted(self, topic: TopicName) -> Stamp | None:
        return (await self._access.value(keys.deletion(topic.base)))[1]

    async def set_policies(self, topic: TopicName, values: Mapping[str, Any]) -> None:
        """Set several policies to JSON values, all or none; None removes one.

        :raises Invalid: a value is not valid.
        """

        def changing(tree: Tree) -> dict[str, Any]:
            record = fold_topic_policies(tree) or TopicPolicies()
            for policy, value in values.items():
                record = record.with_policy(policy, value)
            return unfold_topic_policies(record)

        path = keys.topic_policies(topic)
        await self._access.change(path, changing, seen=self._access.remembered(path))


async def forget_policies(access: Access, topic: TopicName, deleted: Stamp) -> None:
    """Remove the policies of a deleted topic, and the permissions on it; an earlier transaction recorded the deletion.

    Those that were set here while it was being deleted are removed as well; what other regions set later belongs to the
    next topic of that name.
    """
    now = access.stamp(deleted)

    def goes(stamp: Stamp) -> bool:
        return stamp <= deleted or (stamp.region == access.region and stamp <= now)

    await _forget_below(access, topic, deleted, goes)


async def forget_own_policies(access: Access, topic: TopicName) -> None:
    """As ``forget_policies``, of a topic that no other region had. What another region set belongs to a topic of its
    own that has the same name."""
    await _forget_below(access, topic, access.stamp(None), lambda stamp: stamp.region in ("", access.region))


async def _forget_below(access: Access, topic: TopicName, deleted: Stamp, goes: Callable[[Stamp], bool]) -> None:
    for path in (keys.topic_policies(topic), keys.topic_permissions(topic)):
        await _forget_leaves(access, path, topic, deleted, goes)


async def _forget_leaves(
    access: Access, path: str, topic: TopicName, deleted: Stamp, goes: Callable[[Stamp], bool]
) -> None:
    async def attempt() -> bool | None:
        tree = await access.tree(path)
        leaves = sorted(leaf for leaf in tree.records if goes(tree.stamp(leaf) or ZERO))
        for begin in range(0, len(leaves), DELETED_TOGETHER):
            if not await _forget(access, tree, leaves[begin : begin + DELETED_TOGETHER], deleted):
                return None
        return True

    await access.retry(f"removing the policies and permissions of {topic}", attempt)


async def _forget(access: Access, tree: Tree, leaves: list[str], deleted: Stamp) -> bool:
    stamps: Mapping[str, Stamp] = {leaf: tree.stamp(leaf) or ZERO for leaf in leaves}
    checks = [Check(tree.path + leaf, tree.version(leaf)) for leaf in leaves]
    operations = [Delete(tree.path + leaf, deleted if stamps[leaf] <= deleted else None) for leaf in leaves]
    return await access.write(tree, checks, operations)
