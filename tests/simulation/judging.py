# SPDX-License-Identifier: Apache-2.0
"""What must hold once all is quiet: logs, records, and the messages of a consumer that read everything.

Part of ``model.Model``. Its core is ``owed``: the messages that must come, whatever a crash left undecided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.topics.backfill.gaps import BY_BROKER
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation import passing
from simulation.facts import Rewound, SubscriptionFacts, later

if TYPE_CHECKING:
    from simulation.crashes import Crashes
    from simulation.stage import Region, Stage


class Judging:
    """See the module's text."""

    def __init__(self, world: Stage, model: Crashes) -> None:
        self._world = world
        self._model = model

    def check_logs(self, topic: str) -> None:
        """Check entries: none lost, none twice, each origin's in order, each chained to the one before."""
        for home in self._world.regions.values():
            if home.name not in self._world.gone:
                self._check_order(home, topic)
                self._check_receipts(home, topic)
                broker = home.broker_of(topic)
                if broker is not None and (opened := broker.topic(topic)) is not None:
                    self._model.ends.check(home, topic, opened)
                self._model.check_replicas(home)

    def _check_order(self, home: Region, topic: str) -> None:
        last: dict[str, Position] = {}
        seen: set[Origin] = set()
        for position, origin, _ in self._model.logs.of(home, topic):
            what = f"{home.name} has {self._world.shown(origin)} at {position}"
            if origin in seen:
                self._model.violate("stored twice", f"{what} again")
            seen.add(origin)
            # Entries that a region lost and got back may come late, and so may those before the start of a copy whose
            # origin could not be asked: but even then in order.
            is_late = origin.region in self._model.rolled_back or origin.position <= self.begins(
                home.name, topic, origin.region
            )
            key = f"{origin.region}/{origin.ledger}" if is_late else origin.region
            if origin.position <= last.get(key, EARLIEST):
                self._model.violate("order of an origin", f"{what}, out of order")
            last[key] = origin.position

    def _check_receipts(self, home: Region, topic: str) -> None:
        model = self._model
        gone = model.trimmed[home.name, topic] | model.deletions.gone[home.name, topic] | model.logs.lost(home, topic)
        logs = [model.logs.of(home, one) for one in (topic, *model.copies(home.name, topic))]
        stored = {position for log in logs for position, _, _ in log}
        for position, payload in model.receipts[home.name, topic].items():
            origin = Origin(home.name, *position)
            if position not in stored and origin not in gone:
                model.violate("lost", f"{home.name} confirmed {self._world.shown(origin)} but no longer has it")
            elif model.logs.payloads[origin] != payload:
                model.violate("another message under the receipt's id", f"{self._world.shown(origin)} in {home.name}")

    def check_record(self, topic: str, subscription: Subscription) -> None:
        """Of several creations the earliest counts (R15), if regions exchange the subscription."""
        if not subscription.replicated:
            return
        name, created = subscription.name, subscription.record.created
        homes = self._world.homes_of(topic)
        made = [stamp for region, stamp in self._model.facts_of(subscription).made.items() if region in homes]
        for one in made:
            if later(created, one):
                self._model.violate(
                    "a later creation won", f"{topic}/{name} was created at {one}, but {created} counts"
                )

    def is_dropped_somewhere(self, topic: str, subscription: Subscription, origin: Origin) -> bool:
        """Whether some region may have dropped it, perhaps the one that dispatches it (R14)."""
        facts = self._model.facts_of(subscription)
        return any(
            facts.perhaps_dropped(origin, region, self._model.logs.published[origin]) for region in self._world.names
        )

    def _let_go_elsewhere(self, home: Region, topic: str, facts: SubscriptionFacts, origin: Origin) -> bool:
        """Whether all other regions of the topic may have dropped it."""
        others = self._world.homes_of(topic).keys() - {home.name}
        published_ms = self._model.logs.published[origin]
        return bool(others) and all(facts.perhaps_dropped(origin, other, published_ms) for other in others)

    def check_delivered(self, home: Region, topic: str, subscription: Subscription, got: dict[Position, int]) -> None:
        """Check what a consumer that read everything received, after all was quiet."""
        for position, origin, messages in self._model.logs.of_topic(home, subscription.topic):
            missing = self.owed(home, topic, subscription, origin, messages) & ~got.get(position, 0)
            if missing:
                what = f"{self._world.shown(origin)} of {topic}/{subscription.name} (bits {missing:b})"
                self._model.violate("skipped", f"{home.name} never delivers {what}, which nobody acked")
            # What must not be delivered is noticed when it is sent.

    def check_passed(self, home: Region, subscription: Subscription) -> None:
        """Check that no subscription may still be owed what the region passed without an operator (R4)."""
        model, opened = self._model, subscription.topic
        topic = opened.name.rpartition("/")[2]
        facts = model.facts_of(subscription)
        passed = [one for one in passing.accepted(opened) if one.by == BY_BROKER]
        if not passed or any(isinstance(one, Rewound) for one in facts.all()):
            return  # it may have been acknowledged before the rewind
        for origin in model.logs.published.keys() - (facts.nowhere or ()):
            is_here = self._world.topic_of_ledger.get((origin.region, origin.ledger)) == topic
            if not is_here or not passing.lies_in(passed, origin):
                continue
            is_dropped = self.is_dropped_somewhere(topic, subscription, origin)  # perhaps a floor passed it
            if not is_dropped and self.owed(home, topic, subscription, origin, 1):
                text = f"{home.name} continues behind {self._world.shown(origin)} of {topic}/{subscription.name}"
                model.violate("passed over unread", f"{text}, which nobody acked")

    def begins(self, region: str, topic: str, origin: str) -> Position:
        """The position after which a region that joined has entries of an origin."""
        broker = self._world.regions[region].broker_of(topic)
        opened = None if broker is None else broker.topic(topic)
        return EARLIEST if opened is None else opened.log.joined.get(origin, EARLIEST)

    def owed(
        self,
        home: Region,
        topic: str,
        subscription: Subscription,
        origin: Origin,
        messages: int,
        *,
        alone: bool = False,
    ) -> int:
        """Bits still owed to a consumer there, whatever a crash left undecided.

        :param alone: as far as that region knows; else it knows all that the others do.
        """
        facts = self._model.facts_of(subscription)
        alone = alone or not subscription.replicated or (home.name, subscription.topic.name) in self._model.quarantined
        homes = {} if alone else self._world.homes_of(topic)
        agreeing = frozenset(homes) if home.name in homes else frozenset((home.name,))
        if facts.perhaps_dropped(origin, home.name, self._model.logs.published[origin]):
            return 0
        if facts.lies_before(origin, is_agreed=len(agreeing) > 1 and facts.made.keys() <= agreeing):
            return 0
        if topic in self._world.told and origin in self._model.lost_once:
            return 0  # a region outside the topic, perhaps not asked, may have it
        if home.name in self._world.outside[topic] and self._let_go_elsewhere(home, topic, facts, origin):
            return 0  # a region that is added back takes over the floors of those that stayed
        was_named, _, _ = self._model.key(subscription)[0].partition(" since ")  # before it was quarantined
        if self._model.creations.may_begin_behind(was_named, subscription.name, origin):
            return 0
        return ((1 << messages) - 1) & ~facts.perhaps_acked(origin, agreeing)
