# SPDX-License-Identifier: Apache-2.0
"""Progress that a region has reported to others must be on its disk (R10, R60).

A region that reports what it has only in memory and is then killed has reported something recorded nowhere: the others
count as acknowledged what no region has received. So after each crash everything reported must be on the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.positions import Progress
from meridian_broker.replication.progress.messages import Barrier, BarrierDone, Delta, PeerMessage, State
from simulation.facts import Key, durable_progress
from simulation.names import incarnation_of

if TYPE_CHECKING:
    from simulation.stage import Broker, Region


class Told:
    """See the module's text."""

    def __init__(self, violate: Callable[[str, str], None], is_deleted: Callable[[str], bool]) -> None:
        """:param is_deleted: whether the deletion of this incarnation of a topic was requested."""
        self._violate = violate
        self._is_deleted = is_deleted
        self._progress: dict[str, dict[Key, Progress]] = defaultdict(dict)
        """Region -> incarnation of a topic and subscription -> everything it said to be acknowledged there."""
        self._taken_back: dict[tuple[str, Key], Progress] = {}
        """(region, incarnation of a topic, subscription) -> what was on disk when the topic was removed there."""
        self._asked: dict[tuple[Broker, int], tuple[str, str, str]] = {}

    def heard(self, teller: Broker, asker: Broker, message: PeerMessage) -> None:
        """A broker sends a message on a link.

        :param asker: who opened the link and asks on it.
        """
        match message:
            case Delta(items=items) | State(items=items):
                for item in items:
                    self._note(teller, item.topic, item.incarnation, item.subscription, item.progress)
            case Barrier():
                self._asked[teller, message.number] = message.topic, message.incarnation, message.subscription
            case BarrierDone(progress=progress) if progress:
                self._note(teller, *self._asked[asker, message.number], progress)

    def _note(self, teller: Broker, topic: str, incarnation: str, name: str, progress: bytes) -> None:
        key, said = (incarnation_of(topic, incarnation), name), Progress.decode(progress)
        before = self._taken_back.get((teller.region, key))
        if before is not None and not before.copy().join(said):
            return  # it has waited for a link since, and was on the disk before
        self._progress[teller.region].setdefault(key, Progress()).join(said)

    def crashed(self, home: Region) -> None:
        """The region lost power: what it reported must be on its disk."""
        topics = {incarnation.partition(" since ")[0] for incarnation, _ in self._progress[home.name]}
        for topic in topics:
            found, have = durable_progress(home, topic)
            for (incarnation, name), told in self._progress[home.name].items():
                if incarnation != found or self._is_deleted(incarnation):
                    continue
                if have.get(name, Progress()).copy().join(told):
                    self._violate(
                        "told too early", f"{home.name} reported more of {topic}/{name} than it has on its disk"
                    )

    def forgotten(self, region: str, incarnation: str, name: str) -> None:
        """The disk damaged a record of the subscription: what the region reported may be gone."""
        self._progress[region].pop((incarnation, name), None)

    def taken_back(self, home: Region, topic: str) -> None:
        """The topic had no message and is removed as if it had never been created. Others know, or will know, what was
        reported about it: a recreated one asks them for that."""
        now, have = durable_progress(home, topic)
        for name, progress in have.items():
            self._taken_back.setdefault((home.name, (now, name)), Progress()).join(progress)
        told = self._progress[home.name]
        for incarnation, name in [key for key in told if key[0].partition(" since ")[0] == topic]:
            del told[incarnation, name]

    def restored(self, region: str) -> None:
        """The region was restored to an older copy: what it reported since may be gone."""
        self._progress.pop(region, None)
