# SPDX-License-Identifier: Apache-2.0
"""Requests to create and delete subscriptions, and where these may begin. Part of ``model.Model``.

A creation that was requested but not answered may have happened or not, at any moment since; so messages before the
latest possible beginning need not be delivered.
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
"""Origin region -> position up to which nothing need be delivered."""


class Creations:
    """See the module's text."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._asked: dict[Name, dict[str, list[tuple[Topic, Places]]]] = defaultdict(lambda: defaultdict(list))
        """Region -> the open topics where creations were started, and their beginnings. The client may never learn
        their outcome, and other regions may know of them."""
        self._cut_off: dict[Name, list[Places]] = defaultdict(list)
        """Requested before a crash and never answered: created or not."""
        self._deleted: set[Name] = set()

    def asked(self, home: Region, topic: str, name: str, initial: Position, opened: Topic) -> None:
        """A client requests a creation now."""
        is_latest = initial == LATEST
        places = {**opened.log.last_origin, home.name: opened.log.last_own} if is_latest else {}
        self._asked[topic, name][home.name].append((opened, places))

    def refused(self, topic: str, name: str, initial: Position, opened: Topic | None) -> None:
        """The client learns that it was not created. It may have been, at any moment until now."""
        if initial == LATEST and opened is not None:
            self._cut_off[topic, name].append(_end(opened))

    def seen(self, home: Region, topic: str, subscription: Subscription, facts: SubscriptionFacts) -> None:
        """A region's view just after it found or created it."""
        created = subscription.record.created
        asked = self._asked[topic, subscription.name][home.name]
        first = next((at for at, (opened, _) in enumerate(asked) if opened is subscription.topic), None)
        asked_here = first is not None
        places = {} if first is None else asked.pop(first)[1]  # the first request creates it
        if home.name in places:  # the latest message at its creation, at some moment before the answer
            stored = subscription.topic.log
            places = {**stored.last_origin, home.name: stored.last_own}
        is_made_again = (
            subscription.cursor.progress.beginning.created != created
        )  # from a damaged record: that is not a creation
        if created.region == home.name and not is_made_again:
            if asked_here and (
                facts.nowhere is None or (facts.is_a_creation_forgotten and created not in facts.places)
            ):
                facts.nowhere = (facts.nowhere or frozenset()) | self._logs.nowhere(home.world, topic)
            facts.made.setdefault(home.name, created)
            facts.places.setdefault(created, places)

    def deleted(self, topic: str, name: str) -> None:
        """A client deletes it, or tries to, and with it all promises about this incarnation."""
        self._deleted.add((topic, name))

    def is_deleted(self, topic: str, name: str) -> bool:
        """Has anything deleted it, or tried to?"""
        return (topic, name) in self._deleted

    def crashed(self, home: Region) -> None:
        """A broker is gone: requests for topics that it had open will never be answered."""
        for key, asked in self._asked.items():
            waiting = asked.pop(home.name, [])
            asked[home.name] = [one for one in waiting if home.taker(one[0]) is not None]
            lost = [one for one in waiting if home.taker(one[0]) is None]
            self._cut_off[key] += [_end(opened) if home.name in places else places for opened, places in lost]

    def may_begin_behind(self, topic: str, name: str, origin: Origin) -> bool:
        """Whether an unanswered creation may begin after a message."""
        under_way = [places for some in self._asked[topic, name].values() for _, places in some]
        places = under_way + self._cut_off[topic, name]
        return any(origin.position <= one.get(origin.region, EARLIEST) for one in places)


def _end(opened: Topic) -> Places:
    """What the broker that has a topic open may take for its latest messages now."""
    return {**opened.log.last_origin, opened.region: opened.log.last_own}
