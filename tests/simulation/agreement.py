# SPDX-License-Identifier: Apache-2.0
"""Checks that regions agree: the same entries, progress bytes and records, except for excused differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.metadata import keys
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from simulation import passing
from simulation.names import full_name

if TYPE_CHECKING:
    from simulation.world import World


class Agreement:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world

    def disagreement(self) -> str:
        """The remaining differences between regions; empty: none."""
        world = self._world
        for one in world.producers.values():
            if one.pending and one.region not in world.gone:
                return f"the producer of {one.topic} in {one.region} waits for {len(one.pending)} receipts"
        if difference := world.partitions.disagreement():
            return difference
        for topic in world.topics():
            record = keys.topic(topic_name.parse(full_name(topic)))
            if not any(record in home.metadata.records for home in world.homes_of(topic).values()):
                continue  # some region has quarantined a copy of its own
            if difference := self._topic_differs(topic):
                return difference
        return ""

    def _topic_differs(self, topic: str) -> str:
        opened: dict[str, Topic] = {}
        for name in self._world.homes_of(topic):
            if (found := self._opened(name, topic)) is None:
                return f"{name} does not serve {topic}"
            if any(gap.is_damage for gap in found.gaps.all()):
                return f"{name} has not yet noticed that the damaged entries of {topic} are intact again"
            opened[name] = found
        if difference := self._logs_differ(topic):
            return difference
        names = {s for one in opened.values() for s, sub in one.subscriptions.items() if sub.replicated}
        for subscription in sorted(names):
            known = {}
            for name, one in opened.items():
                if (here := one.subscriptions.get(subscription)) is None:
                    return f"{name} has no subscription {subscription}"
                known[name] = here
            if len({here.cursor.progress.encode() for here in known.values()}) != 1:
                shown = "; ".join(f"{name} {here.cursor.progress!r}" for name, here in known.items())
                return f"progress of {topic}/{subscription} differs: {shown}"
            records = {str(here.record) for here in known.values()}
            if len(records) != 1:
                return f"records of {topic}/{subscription} differ: {records}"
        return ""

    def _logs_differ(self, topic: str) -> str:
        model = self._world.model
        have = {
            name: {origin for _, origin, _ in model.logs.of(home, topic)} | model.trimmed[name, topic]
            for name, home in self._world.homes_of(topic).items()
        }
        for source in have:
            for target in have:
                if source == target or self._is_ended(target, topic):
                    continue
                joined = self._joined(source, target, topic)
                lacks = {o for o in have[source] - have[target] if o.region == source and o.position >= joined}
                given_to = model.given_to[source, topic]
                lacks = {one for one in lacks if one not in given_to or target in given_to[one]}
                if {source, target} <= self._world.outside[topic]:
                    # The target joined while the source was outside the topic: it began where the other regions were.
                    begins = model.judging.begins(target, topic, source)
                    lacks = {one for one in lacks if one.position > begins}
                if topic in self._world.told:
                    lacks -= model.lost_once  # returned late, from a region outside the topic
                if self._world.regions[target].restores:
                    lacks -= model.trimmed[source, topic]  # it had them once, so they were trimmed
                accepted = passing.accepted(self._opened(target, topic))
                lacks -= {one for one in model.trimmed[source, topic] if passing.lies_in(accepted, one)}
                if not lacks:
                    continue
                hold = self.hold(source, target, topic)
                if self._is_stopped(source, target, topic):
                    continue  # what it lost or never got was trimmed everywhere; that is reported, not skipped (R4)
                first = self._world.shown(min(lacks))
                return f"{target} lacks {len(lacks)} entries of {source}, the first {first}; hold {hold or 'none'}"
        return self._copies_differ(topic, have)

    def _copies_differ(self, topic: str, have: dict[str, set[Origin]]) -> str:
        """Entries of another region that a region stores are also stored in that region and in all others (R5, R6)."""
        for holder, home in self._world.homes_of(topic).items():
            stored = {origin for _, origin, _ in self._world.model.logs.of(home, topic)}
            for target in have:
                if self._is_ended(target, topic):
                    continue
                lacks = stored - have[target]
                begins = self._world.model.judging.begins
                lacks = {one for one in lacks if one.position > begins(target, topic, one.region)}
                # No subscription waited for it at its origin or, if that region is gone, in one of the others.
                for region in have:
                    given = self._world.model.trimmed[region, topic]
                    lacks -= {one for one in given if one.region == region or one.region not in have}
                if topic in self._world.told:
                    lacks -= self._world.model.lost_once
                lacks = {one for one in lacks if not self._is_stopped(one.region, target, topic)}
                if lacks:
                    first = self._world.shown(min(lacks))
                    return f"{target} lacks {len(lacks)} entries that {holder} has, the first {first}"
        return ""

    def _is_ended(self, region: str, topic: str) -> bool:
        """The topic was terminated there and accepts no more entries."""
        opened = self._opened(region, topic)
        return opened is not None and opened.terminated is not None

    def _is_stopped(self, source: str, target: str, topic: str) -> bool:
        """Replication waits for an operator, reports it, and has a reason to.

        A region that was restored, or was outside the topic for a while, can lack what all others trimmed; and they may
        lack what it trimmed while outside.
        """
        if self.hold(source, target, topic) != "GAP":
            return False
        outside, opened = self._world.outside[topic], self._opened(target, topic)
        has_reason = self._world.regions[target].restores > 0 or target in outside
        has_reason = has_reason or (source in outside and passing.is_nowhere(opened, source))
        goes_on = self._world.accepts_gaps or passing.goes_on(opened, source)
        return has_reason and not goes_on

    def _opened(self, region: str, topic: str) -> Topic | None:
        broker = self._world.regions[region].broker_of(topic)
        return broker.topic(topic) if broker is not None else None

    def _joined(self, source: str, target: str, topic: str) -> Position:
        """Where a region that had nothing of the source began: entries trimmed before are not sent to it."""
        broker = self._world.regions[source].broker_of(topic)
        run = broker.replication.runs.get((full_name(topic), target)) if broker is not None else None
        return EARLIEST if run is None else run.core.joined_at or EARLIEST

    def hold(self, source: str, target: str, topic: str) -> str:
        """Why the replicator is blocked; empty: it is not."""
        broker = self._world.regions[source].broker_of(topic) if source in self._world.regions else None
        run = broker.replication.runs.get((full_name(topic), target)) if broker is not None else None
        return "" if run is None or run.core.hold is None else run.core.hold.name
