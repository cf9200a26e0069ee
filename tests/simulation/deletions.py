# SPDX-License-Identifier: Apache-2.0
"""What the deletion of a topic means for its messages (R8).

Where a client deleted the topic, and in regions told as part of that command, everything stored is deleted, as
requested. A region that learns of it later deletes only messages that had reached one of those regions. All others
have a receipt and were not meant to be deleted: they must be in a copy under another name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import EARLIEST, Origin, Position
from simulation.names import base_of, incarnation_of

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.metadata.topic_records import TopicRecord
    from simulation.stage import Region


class Deletions:
    """See the module's text."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        """Incarnations of topics whose deletion was requested somewhere. A partition is deleted with its topic."""
        self._newest: dict[str, Stamp] = {}
        """Topic -> its last deletion."""
        self.gone: dict[tuple[str, str], set[Origin]] = defaultdict(set)
        """(region, topic) -> what was deleted with the topic."""
        self._ends: dict[str, dict[str, Position]] = defaultdict(dict)
        """Topic -> origin -> last entry that had reached a region where it was deleted by command."""
        self._commanded: set[tuple[str, str]] = set()

    def begin(self, region: str, topic: str, incarnation: str | None, log: TopicLog | None) -> None:
        """The region now deletes it.

        :param incarnation: the model's name for it; None: the region has no such topic now.
        """
        self._commanded.add((region, topic))
        if incarnation is not None:
            self._ended.add(incarnation)
        if log is not None:
            self._seen(topic, [Origin(region, *log.last_own), *(Origin(o, *at) for o, at in log.last_origin.items())])

    def begun(self, region: str, topic: str, record: TopicRecord) -> None:
        """The region has recorded that it deletes the topic, and will do so even if it crashes."""
        self._ended.add(incarnation_of(topic, record.incarnation))
        if self._is_commanded(region, topic):
            own = Origin(region, *record.last_own)
            self._seen(topic, [own, *(Origin(origin, *last) for origin, last in record.last_origins.items())])

    def begun_with_base(self, region: str, topic: str, record: TopicRecord, stored: Iterable[Origin | None]) -> None:
        """The same for a partition whose topic is deleted, with everything that it stores."""
        self.begun(region, topic, record)
        if self._is_commanded(region, topic):
            self._seen(topic, [origin for origin in stored if origin is not None])

    def done(self, topic: str, stamp: Stamp) -> None:
        """A region has deleted it."""
        self._newest[topic] = max(stamp, self._newest.get(topic, ZERO))

    def is_ended(self, incarnation: str) -> bool:
        """Promises about its subscriptions end; those about messages that were not meant to be deleted remain."""
        topic, _, stamp = incarnation.partition(" since ")
        newest = max(self._newest.get(topic, ZERO), self._newest.get(base_of(topic), ZERO))
        is_older = newest > ZERO and (not stamp or Stamp.parse(stamp) < newest)
        return is_older or incarnation in self._ended

    def end(self, region: str, topic: str) -> None:
        self._commanded.discard((region, topic))

    def ledger_goes(self, home: Region, topic: str, origins: Iterable[Origin | None]) -> Origin | None:
        """A message among these that was not meant to be deleted; None: there is none."""
        some = [origin for origin in origins if origin is not None]
        if self._is_commanded(home.name, topic):
            self._seen(topic, some)
            return None
        ends = self._ends[topic]
        return min((one for one in some if one.position > ends.get(one.region, EARLIEST)), default=None)

    def _is_commanded(self, region: str, topic: str) -> bool:
        return (region, topic) in self._commanded or (region, base_of(topic)) in self._commanded

    def _seen(self, topic: str, origins: Iterable[Origin]) -> None:
        ends = self._ends[topic]
        for one in origins:
            ends[one.region] = max(one.position, ends.get(one.region, EARLIEST))
