# SPDX-License-Identifier: Apache-2.0
"""What ``model.Model`` has on record: the facts, and the parts that each keep one kind of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Origin, Position
from simulation.creations import Creations
from simulation.deletions import Deletions
from simulation.ends import Ends
from simulation.facts import Key, SubscriptionFacts, Violation, subscription_incarnation
from simulation.logs import Logs
from simulation.names import incarnation_of
from simulation.told import Told

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from simulation.stage import Stage


class Record:
    """See the module's text."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.receipts: dict[tuple[str, str], dict[Position, bytes]] = defaultdict(dict)
        """(region, topic) -> entries with a receipt."""
        self.facts: dict[Key, SubscriptionFacts] = defaultdict(SubscriptionFacts)
        """(incarnation of a topic, incarnation of a subscription) -> what is known of it."""
        self.logs = Logs(self.violate)
        self.ends = Ends(self.logs, lambda origin: world.shown(origin), self.violate)
        self.creations = Creations(self.logs)
        self.deletions = Deletions()
        self.told = Told(self.violate, self.deletions.is_ended)
        self.quarantined: dict[tuple[str, str], str] = {}
        """(region, name of a quarantined copy) -> the topic and incarnation that it is a copy of."""
        self._replicated: dict[tuple[str, str], dict[str, Position]] = defaultdict(dict)
        """(region, incarnation of a topic) -> origin region -> last entry confirmed to its replicator."""
        self.trimmed: dict[tuple[str, str], set[Origin]] = defaultdict(set)
        """(region, topic) -> trimmed entries, with reason."""
        self.given_to: dict[tuple[str, str], dict[Origin, frozenset[str]]] = defaultdict(dict)
        """(region, topic) -> trimmed entries -> the topic's regions then, for which they had been kept."""
        self.given_up: dict[tuple[str, str], dict[str, Position]] = defaultdict(dict)
        """(region, topic) -> origin region -> up to here it continues without entries that no region has."""
        self.rolled_back: set[str] = set()
        """Regions restored from a copy that lacked entries of their own."""
        self.lost_once: set[Origin] = set()
        """Entries that their own region lost in a restore: a rewind covers them even where they are not back yet."""

    def violate(self, kind: str, text: str) -> None:
        if not self.violations:
            self.violations.append(Violation(kind, f"after {self._world.loop.now_us / 1e6:.3f} s: {text}"))

    def key(self, subscription: Subscription) -> Key:
        """One incarnation of a subscription, of one incarnation of a topic."""
        topic = subscription.topic
        named = incarnation_of(topic.name, topic.incarnation)
        return self.quarantined.get((topic.region, topic.name), named), subscription_incarnation(
            subscription.name, subscription.cursor.progress
        )

    def facts_of(self, subscription: Subscription) -> SubscriptionFacts:
        """What is known of this incarnation."""
        return self.facts[self.key(subscription)]

    def copies(self, region: str, topic: str) -> list[str]:
        """Short names of the region's quarantined copies of a topic."""
        return [
            name.rpartition("/")[2]
            for (of, name), what in self.quarantined.items()
            if of == region and what.partition(" since ")[0] == topic
        ]
