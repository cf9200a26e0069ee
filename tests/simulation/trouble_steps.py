# SPDX-License-Identifier: Apache-2.0
"""Lines of a story that cause faults:

cut us-eu / heal us-eu      nobody can dial; ``heal`` alone: all
cut us>eu / heal us>eu      us cannot dial eu
reset us-eu                 every connection between them breaks
stall us>eu / flow us>eu    nothing arrives in that direction / messages flow again
hush us-eu                  their connections fall silent without an end; new ones work
crash us [silent]           power cut; what was not synced is lost. ``silent``: its connections fall silent
start us
version us 3                us is stopped by a power cut, and starts with a broker of this older peer protocol
stop us                     drain, as SIGTERM does
second us / retire us       another broker takes the region over without the previous one's knowledge / that one ends
disk us 20                  a sync takes this many ms longer
full us / room us           the disk refuses writes / accepts them again
metadata us away / back     the metadata store does not answer / answers again
metadata us 50              each request to it takes this many ms longer
fails us read 3 x2          after three more reads of its disk the next two fail; or ``write``, ``metadata``,
                            ``answer``: see disk_faults.py
works us                    nothing more fails
clock us +5000              the wall clock jumps
rot us t 3 / mend us        an entry's bytes change by themselves / an operator restores them
rot us t progress 3         the same for a record of the topic's progress log, or (view) of its compacted view;
                            with ``head`` appended, its first byte, otherwise the last
rot us checkpoint 0         with ``disks engine``: the same for its newest checkpoint, at the next power cut
save us / restore us        keep a copy of volume and metadata / crash, and start from the copy
trim us                     trim what is not needed
expire us t 500             drop there, for every subscription, what was published more than 500 ms ago
evict us t x3               drop there the three oldest, as a backlog quota does
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from meridian_broker.ledgers.labels import Kind
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Cause
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import closing, rounds
from simulation.broker import SimBroker, SimRegion, raise_bugs
from simulation.teller import Teller


class TroubleSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_cut(self, pair: str) -> None:
        self.world.trouble()
        for dialler, target in _pairs(pair):
            self.world.network.cut(dialler, target)

    def do_heal(self, pair: str | None = None) -> None:
        self.world.trouble()
        for dialler, target in _pairs(pair) if pair else list(self.world.network.cuts):
            self.world.network.heal(dialler, target)

    def do_reset(self, pair: str) -> None:
        self.world.trouble()
        self.world.network.reset(*_pairs(pair)[0])

    def do_stall(self, pair: str) -> None:
        self.world.trouble()
        for source, target in _pairs(pair):
            self.world.network.stall(source, target)

    def do_flow(self, pair: str) -> None:
        self.world.trouble()
        for source, target in _pairs(pair):
            self.world.network.release(source, target)

    def do_hush(self, pair: str) -> None:
        self.world.trouble()
        self.world.network.hush(*_pairs(pair)[0])

    def do_crash(self, region: str, how: str = "") -> None:
        self.world.crash(region, silently=how == "silent")

    def do_version(self, region: str, number: str) -> None:
        self.world.crash(region)
        self.world.regions[region].version = int(number)
        self.world.regions[region].start()

    def do_start(self, region: str) -> None:
        self.world.trouble()
        self.world.regions[region].start()

    def do_stop(self, region: str) -> None:
        broker = self._broker(region)
        if broker is None:
            return
        self.world.trouble()
        stopped = self.world.model.stopping(broker)

        async def work() -> None:
            try:
                await closing.close(broker.service.opener)
                stopped()
            except (LedgerError, MetadataError) as error:
                self.say(f"{region}: {error}")
            self.world.crash(region)

        self.world.loop.spawn(broker, work(), "drain")

    def do_second(self, region: str) -> None:
        self.world.trouble()
        if not self.world.regions[region].second():
            self.say(f"{region} is down, or its volume is one machine's")

    def do_retire(self, region: str) -> None:
        self.world.trouble()
        self.world.regions[region].retire()

    def do_disk(self, region: str, ms: str) -> None:
        self.world.trouble()
        self.world.regions[region].disk_us = int(ms) * 1000

    def do_full(self, region: str) -> None:
        broker = self._broker(region)
        self.world.trouble()
        if broker is not None:
            broker.store.fail_writes("no space left")

    def do_room(self, region: str) -> None:
        broker = self._broker(region)
        self.world.trouble()
        if broker is not None:
            broker.store.repair()

    def do_metadata(self, region: str, state: str) -> None:
        self.world.trouble()
        home = self.world.regions[region]
        if state.isdigit():
            home.metadata_slow_us = int(state) * 1000
        else:
            home.metadata.away = state == "away"

    def do_fails(self, region: str, kind: str, after: str, count: str) -> None:
        self.world.trouble()
        self.world.regions[region].faults.arm(kind, int(after), int(count.removeprefix("x")))

    def do_works(self, region: str) -> None:
        self.world.trouble()
        self.world.regions[region].faults.clear()

    def do_clock(self, region: str, ms: str) -> None:
        self.world.regions[region].skew_ms += int(ms)

    def do_rot(self, region: str, topic: str, what: str, number: str = "", where: str = "") -> None:
        self.world.trouble()
        home, is_progress = self.world.regions[region], what == "progress"
        if topic == "checkpoint":
            home.volume.rot_checkpoint(int(what))
            return
        if number:
            records = home.records(topic, Kind.PROGRESS if is_progress else Kind.COMPACTED)
        else:
            records, number = [position for position, _, _ in self.world.model.logs.of(home, topic)], what
        if records:
            home.volume.rot(*records[int(number) % len(records)], 0 if where == "head" else -1, lasting=is_progress)

    def do_mend(self, region: str) -> None:
        self.world.regions[region].volume.mend()

    def do_save(self, region: str) -> None:
        self.world.regions[region].save()

    def do_trim(self, region: str) -> None:
        home = self.world.regions[region]
        for broker in home.everyone():
            if broker.ready:
                self.world.loop.spawn(broker, self._trim(broker), "trim")

    async def _trim(self, broker: SimBroker) -> None:
        broker.home.trimming += 1
        self.world.model.trimming(broker.home)
        self.world.shadows.trimming(broker.home)
        try:
            await rounds.trim_all(broker.service)
        except SomeFailed as some:  # what cannot be trimmed now is trimmed later
            raise_bugs(some)
        finally:
            broker.home.trimming -= 1
        self.world.model.check_open()

    def do_expire(self, region: str, topic: str, age_ms: str) -> None:
        opened = self._open(region, topic)
        if opened is None:
            self.say(f"{region} does not serve {topic}")
            return
        expiring, home = opened, self.world.regions[region]
        before_ms = home.wall_ms() - int(age_ms)
        some = list(opened.subscriptions.values())
        self.world.model.expiring(home, some, before_ms)
        self._drop(home, topic, lambda: drops.drop_old(expiring, [one.cursor for one in some], before_ms))

    def do_evict(self, region: str, topic: str, count: str) -> None:
        opened, home = self._open(region, topic), self.world.regions[region]
        log = self.world.model.logs.of(home, topic)
        if opened is None or not log:
            self.say(f"{region} has nothing of {topic}")
            return
        evicting, upto = opened, log[min(int(count.removeprefix("x")), len(log)) - 1][0]
        some = list(opened.subscriptions.values())
        self.world.model.evicting(home, topic, some, upto)
        self._drop(home, topic, lambda: drops.drop_upto(evicting, [one.cursor for one in some], Cause.QUOTA, upto))

    def _drop(self, home: SimRegion, topic: str, drop: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async def work() -> None:
            try:
                await drop()
            except (LedgerError, TopicError) as error:
                self.say(f"refused: {error}")

        self.world.loop.spawn(home.broker_of(topic), work(), "drop")


def _pairs(text: str) -> list[tuple[str, str]]:
    if ">" in text:
        one, two = text.split(">")
        return [(one, two)]
    one, two = text.split("-")
    return [(one, two), (two, one)]
