# SPDX-License-Identifier: Apache-2.0
"""Policies set on topics, which override those of their namespaces. They are deleted with the topic."""

from __future__ import annotations

from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.policies import TopicPolicies
from meridian_broker.metadata.store import Check, Delete
from meridian_broker.metadata.trees import Tree, fold_topic_policies, unfold_topic_policies
from meridian_broker.wire.pulsar.topic_name import TopicName


class PoliciesOfTopics:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def get(self, topic: TopicName) -> TopicPolicies:
        """The topic's own policies; empty if none is set."""
        return fold_topic_policies(await self._access.tree(keys.topic_policies(topic))) or TopicPolicies()

    async def set_policy(self, topic: TopicName, policy: str, value: Any, element: str | None = None) -> None:
        """Set one policy, or one element of it, to a JSON value; None removes it. Concurrent changes of other policies
        are kept.

        :raises Invalid: the value is not valid.
        """

        def changing(tree: Tree) -> dict[str, Any]:
            present = fold_topic_policies(tree) or TopicPolicies()
            return unfold_topic_policies(present.with_policy(policy, value, element))

        await self._access.change(keys.topic_policies(topic), changing)


async def policies_to_forget(access: Access, topic: TopicName) -> list[Delete]:
    """The operations that a transaction deleting the topic must contain."""
    tree = await access.tree(keys.topic_policies(topic))
    return [Delete(tree.path + leaf) for leaf in tree.records]


async def forget_older(access: Access, topic: TopicName) -> None:
    """Remove policies that were set while the topic was being deleted; later ones belong to the next topic."""
    now = access.stamp(None)

    async def attempt() -> bool | None:
        tree = await access.tree(keys.topic_policies(topic))
        older = [leaf for leaf in tree.records if (tree.stamp(leaf) or now) <= now]
        if not older:
            return True
        checks = [Check(tree.path + leaf, tree.version(leaf)) for leaf in older]
        return await access.write(tree, checks, [Delete(tree.path + leaf) for leaf in older]) or None

    await access.retry(f"forgetting the policies of {topic}", attempt)
