# SPDX-License-Identifier: Apache-2.0
"""What must survive a crash, and what a restore undoes. Part of ``model.Model``.

A region restored from a copy has lost everything later. It is owed that again: whatever another region has must come
back (``Agreement.disagreement`` checks). Only what no other region had may be lost (R6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.labels import Kind as LedgerKind
from meridian_broker.ledgers.labels import Label
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.topics.journal import changes
from meridian_broker.topics.journal.topic_record import stamp_of
from simulation.facts import CREATIONS, Acked, deletion_of, durable_progress, said_of, subscription_incarnation
from simulation.names import incarnation_of
from simulation.record import Record

if TYPE_CHECKING:
    from simulation.stage import Broker, Region


class Crashes(Record):
    """See the module's text."""

    def region_lost(self, region: str) -> None:
        """The region never returns: whatever it did that others had not received stays unknown."""
        for facts in self.facts.values():
            if facts.made.pop(region, None) is not None:
                facts.is_a_creation_forgotten = True

    def crashed(self, home: Region) -> None:
        """After a power cut, check what is left."""
        self.creations.crashed(home)
        self.check_replicas(home)
        self.told.crashed(home)
        for topic in self._topics():
            self.check_known(home, *durable_progress(home, topic))

    def check_open(self) -> None:
        """Regions must also have in memory what they confirmed."""
        for home in self._world.regions.values():
            for topic in self._topics():
                broker = home.broker_of(topic)
                opened = broker.topic(topic) if broker is not None else None
                if opened is not None:
                    progress = {name: one.cursor.progress for name, one in opened.subscriptions.items()}
                    self.check_known(home, incarnation_of(topic, opened.incarnation), progress, broker)

    def _topics(self) -> set[str]:
        return {incarnation.partition(" since ")[0] for incarnation, _ in self.facts}

    def check_known(
        self, home: Region, incarnation: str, progress: dict[str, Progress], broker: Broker | None = None
    ) -> None:
        """Every acknowledgement that the region confirmed, to a client or another region, must be there.

        :param broker: whose memory to check; None: the disk.
        """
        topic = incarnation.partition(" since ")[0]
        for (known, name_since), facts in self.facts.items():
            if known != incarnation or self.deletions.is_ended(incarnation):
                continue
            name = name_since.partition(" since ")[0]
            have = progress.get(name)
            if self.creations.is_deleted(topic, name) and (
                have is None or subscription_incarnation(name, have) != name_since
            ):
                continue
            for origin in facts.by_origin:
                bits = facts.surely_acked(origin, home.name, broker)
                if not bits:
                    continue
                left = None
                if have is not None:
                    time_ms = self.logs.published[origin]
                    left = have.remaining(origin.region, origin.position, bits.bit_length(), time_ms)
                if bits if left is None else left & bits:
                    self.violate(
                        "an acknowledgement was lost",
                        f"{home.name} confirmed {self._world.shown(origin)} of {topic}/{name} but lacks it "
                        + ("on its disk" if broker is None else "in memory"),
                    )
                    return

    def check_replicas(self, home: Region) -> None:
        """Whatever was confirmed to a replicator as stored must be there."""
        for (region, incarnation), places in self._replicated.items():
            if region == home.name and places and not self.deletions.is_ended(incarnation):
                durable = self._durable_origins(home, incarnation.partition(" since ")[0])
                for origin_region, last in places.items():
                    if last > durable.get(origin_region, EARLIEST):
                        has = durable.get(origin_region, EARLIEST)
                        text = f"{region} confirmed {origin_region}/{last}, but has only {has}"
                        self.violate("a replicator got a false confirmation", text)

    def _durable_origins(self, home: Region, topic: str) -> dict[str, Position]:
        last = dict(self.given_up[home.name, topic])
        for origin in self.trimmed[home.name, topic]:
            last[origin.region] = max(last.get(origin.region, EARLIEST), origin.position)
        for ledger in home.volume.disk.ledgers:
            if self._world.topic_of_ledger.get((home.name, ledger)) == topic:
                for found, _, _ in self.logs.ledger(home, ledger):
                    if found is not None:
                        last[found.region] = max(last.get(found.region, EARLIEST), found.position)
        return last

    def damage_read(self, home: Region, ledger: int, entry: int) -> None:
        """The region opens a topic without a damaged record of its progress log: what only that record held is lost."""
        stored = home.volume.disk.ledgers[ledger]
        label = Label.decode(stored.label) if stored.label else None
        if label is None or label.kind is not LedgerKind.PROGRESS:
            return
        incarnation = incarnation_of(label.belonging.topic, label.belonging.incarnation)
        record = changes.decode(stored.entries[entry])
        said, deleted = said_of(record), deletion_of(record)
        for (known, name_since), facts in self.facts.items():
            name, _, since = name_since.partition(" since ")
            if known != incarnation or name != record.subscription:
                continue
            is_ended = stamp_of(since) < deleted  # the region lost the deletion, so this incarnation may be back, empty
            if record.kind in CREATIONS and facts.made.pop(home.name, None) is not None:
                facts.is_a_creation_forgotten = True
            for one in facts.all():
                if is_ended or one.is_in(said, self.logs.published):
                    one.known.pop(home.name, None)
                    if isinstance(one, Acked):
                        one.heard_by.pop(home.name, None)
        self.told.forgotten(home.name, incarnation, record.subscription)

    def restored(self, home: Region, saved_us: int, lost: dict[str, set[Origin]]) -> None:
        """A region was restored from an older copy: everything later is lost there."""
        for facts in self.facts.values():
            if facts.made.pop(home.name, None) is not None:
                facts.is_a_creation_forgotten = True
            for one in facts.all():
                if one.known.get(home.name, -1) > saved_us:
                    del one.known[home.name]
                    if isinstance(one, Acked):
                        one.heard_by.pop(home.name, None)
        self.told.restored(home.name)
        for (region, _), places in self._replicated.items():
            if region == home.name:
                places.clear()
        for (region, _), given_up in self.given_up.items():
            if region == home.name:
                given_up.clear()
        self.logs.forget(home.name)
        for topic, origins in lost.items():
            self.trimmed[home.name, topic] -= origins
            own = {origin for origin in origins if origin.region == home.name}
            if own:
                self.rolled_back.add(home.name)
                self.lost_once |= own
        for (region, topic), receipts in self.receipts.items():
            if region == home.name:
                known = home.known_ledgers(topic)
                for position in [p for p in receipts if p.ledger not in known or not home.volume.holds(*p)]:
                    if Origin(region, *position) not in self.trimmed[region, topic]:
                        del receipts[position]
