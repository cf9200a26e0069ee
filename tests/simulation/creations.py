# SPDX-License-Identifier: Apache-2.0
"""Who asked for a subscription, where it may begin therefore, and who deleted it. A part of ``model.Model``.

A creation that was asked for and not answered may have happened or not, at any moment since; so what lies before the
latest place where it may begin need not come.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST, LATEST, Origin, Position
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation.facts import SubscriptionFacts

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic
    from simulation.logs import Logs
    from simulation.stage import Region

Name = tuple[str, str]
"""Topic, subscription."""
Places = dict[str, Position]
"""Origin region -> up to here nothing need come."""


class Creations:
    """See the module's text."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._asked: dict[Name, dict[str, list[Places]]] = defaultdict(lambda: defaultdict(list))
        """Region -> where creations begin that have begun there. Who asked may never hear how they ended, and other
        regions may have heard of them."""
        self._cut_off: dict[Name, list[Places]] = defaultdict(list)
        """What was asked for before a crash and never answered: made or not."""
        self._deleted: set[Name] = set()

    def asked(self, home: Region, topic: str, name: str, initial: Position, opened: Topic) -> None:
        """Somebody asks for it now."""
        is_latest = initial == LATEST
        places = {**opened.log.last_origin, home.name: opened.log.last_own} if is_latest else {}
        self._asked[topic, name][home.name].append(places)

    def refused(self, topic: str, name: str, initial: Position, opened: Topic | None) -> None:
        """Whoever asked hears that it was not made. It may have been, at any moment until now."""
        if initial == LATEST and opened is not None:
            self._cut_off[topic, name].append({**opened.log.last_origin, opened.region: opened.log.last_own})

    def seen(self, home: Region, topic: str, subscription: Subscription, facts: SubscriptionFacts) -> None:
        """What a region thinks when it has just found or made it."""
        created = subscription.record.created
        asked = self._asked[topic, subscription.name][home.name]
        asked_here = bool(asked)
        places = asked.pop(0) if asked else {}  # who asks first makes it
        if home.name in places:  # the latest message when it was made, which is at some moment before the answer
            stored = subscription.topic.log
            places = {**stored.last_origin, home.name: stored.last_own}
        is_made_again = (
            subscription.cursor.progress.beginning.created != created
        )  # from a damaged record: that is no creation
        if created.region == home.name and not is_made_again:
            if asked_here and (
                facts.nowhere is None or (facts.is_a_creation_forgotten and created not in facts.places)
            ):
                facts.nowhere = (facts.nowhere or frozenset()) | self._logs.nowhere(home.world, topic)
            facts.made.setdefault(home.name, created)
            facts.places.setdefault(created, places)

    def deleted(self, topic: str, name: str) -> None:
        """Somebody deletes it, or tries to, and all that was promised of this life of it."""
        self._deleted.add((topic, name))

    def is_deleted(self, topic: str, name: str) -> bool:
        """Somebody did, or tried to, at some time."""
        return (topic, name) in self._deleted

    def crashed(self, region: str) -> None:
        """Nobody will answer any more what was asked there."""
        for key, asked in self._asked.items():
            self._cut_off[key] += asked.pop(region, [])

    def may_begin_behind(self, topic: str, name: str, origin: Origin) -> bool:
        """Whether a creation that nobody answered yet may begin behind a message."""
        under_way = [places for some in self._asked[topic, name].values() for places in some]
        places = under_way + self._cut_off[topic, name]
        return any(origin.position <= one.get(origin.region, EARLIEST) for one in places)
