# SPDX-License-Identifier: Apache-2.0
"""Lines of a story that ask for the state:

expect log us t             what is stored, in order
expect progress t sub       what each region counts as acked
expect floors t sub         per origin: acked without a gap up to here, and ids remembered above
expect next us t sub        what a consumer there would get
expect got c1               what it received since the last question
expect unnamed us t         the topic's ledgers that are on the volume but on no record
expect replication us t     state of replication to each other region
expect links us t sub       state of the exchange with each other region
expect agreement t          whether all regions agree
expect messages             messages of the exchange since the last question, by kind
trace on / trace off        show every message of the exchange as it arrives
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from meridian_broker.ledgers.labels import Label
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Origin, Position
from simulation.agreement import Agreement
from simulation.consumers import SimConsumer
from simulation.names import full_name
from simulation.teller import Teller
from simulation.telling import link_parts, tell


class Questions(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_expect(self, what: str, *arguments: str) -> None:
        getattr(self, "expect_" + what)(*arguments)

    def expect_log(self, region: str, topic: str) -> None:
        log = self.world.model.logs.of(self.world.regions[region], topic)
        self.say(self._names([origin for _, origin, _ in log]))

    def expect_unnamed(self, region: str, topic: str) -> None:
        home = self.world.regions[region]
        named, unnamed = home.named_ledgers(topic, every_kind=True), Counter[str]()
        for ledger_id, stored in home.volume.disk.ledgers.items():
            label = Label.decode(stored.label)
            if label.belonging.topic == full_name(topic) and ledger_id not in named:
                unnamed[label.kind.name.lower()] += 1
        self.say(", ".join(f"{count} of {kind}" for kind, count in sorted(unnamed.items())) or "none")

    def expect_progress(self, topic: str, name: str) -> None:
        for region in self.world.names:
            opened = self._open(region, topic)
            found = None if opened is None else opened.subscriptions.get(name)
            if found is None:
                self.say(f"{region}: " + ("no such subscription" if opened is not None else "down"))
            else:
                self.say(f"{region}: {self.acked(topic, found.cursor.progress)}")

    def expect_floors(self, topic: str, name: str) -> None:
        for region in self.world.names:
            subscription = self._subscription(region, topic, name)
            if subscription is not None:
                floors = sorted(subscription.cursor.progress.floors().items())
                shown = " ".join(self.world.shown(Origin(o, *at)) for o, at in floors if at > EARLIEST) or "none"
                self.say(f"{region}: {shown}, {subscription.cursor.progress.count_detail()} above")

    def acked(self, topic: str, progress: Progress) -> str:
        """Acked messages among those that exist anywhere."""
        logs = (self.world.model.logs.of(home, topic) for home in self.world.regions.values())
        sizes = {origin: messages for log in logs for _, origin, messages in log}
        times = self.world.model.logs.published
        text = self._names(o for o in sorted(sizes) if progress.is_acked(o.region, o.position, times[o]))
        for origin in sorted(sizes):
            left = progress.remaining(origin.region, origin.position, sizes[origin], times[origin])
            if left:
                have = [str(bit) for bit in range(sizes[origin]) if not left >> bit & 1]
                if have:
                    text += f", of {self.world.shown(origin)} number {' '.join(have)}"
        rewinds = len(progress.rewinds())
        return text + (f", after {rewinds} rewind" + "s" * (rewinds > 1) if rewinds else "")

    def expect_next(self, region: str, topic: str, name: str) -> None:
        subscription = self._subscription(region, topic, name)
        if subscription is not None:
            log = self.world.model.logs.of(self.world.regions[region], topic)
            done, times = subscription.cursor.progress.is_acked, self.world.model.logs.published
            self.say(self._names([o for _, o, _ in log if not done(o.region, o.position, times[o])]))

    def expect_got(self, name: str) -> None:
        consumer = self._consumer(name)
        if consumer is None:
            return
        places = {place: origin for place, origin, _ in self._log_of(consumer)}
        self.say(self._names([places[position] for position, _ in consumer.got if position in places]))
        consumer.got.clear()

    def _log_of(self, consumer: SimConsumer) -> list[tuple[Position, Origin, int]]:
        return self.world.model.logs.of(self.world.regions[consumer.region], consumer.topic)

    def expect_replication(self, region: str, topic: str) -> None:
        broker = self._broker(region)
        if broker is None:
            return
        for remote, status in sorted(broker.replication.status(full_name(topic)).items()):
            parts = [str(status.state.name).lower(), f"backlog {status.backlog}"]
            if status.hold is not None:
                parts.append(f"hold {status.hold.name}")
            self.say(f"{remote}: " + ", ".join(parts))

    def expect_links(self, region: str, topic: str, name: str) -> None:
        broker = self._broker(region)
        if broker is None:
            return
        for status in broker.exchange.core.status(full_name(topic), name, broker.mono_ms()):
            parts = ["up" if status.connected else "down"]
            self.say(f"{status.region}: " + ", ".join([*parts, *link_parts(status)]))

    def expect_agreement(self, topic: str) -> None:
        self.say(Agreement(self.world).disagreement() or "all regions agree")

    def expect_messages(self) -> None:
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(self.world.sent.items()))
        self.world.sent.clear()
        self.say(counts or "none")

    def do_trace(self, mode: str) -> None:
        self.world.on_message = (lambda a, b, message: self.say(tell(self, a, b, message))) if mode == "on" else None

    def _names(self, origins: Iterable[Origin]) -> str:
        """``us/1:0-2 eu/1:4``, in the order given, neighbours together."""
        shown: list[tuple[Origin, int]] = []
        for origin in origins:
            if shown and shown[-1][0][:2] == origin[:2] and shown[-1][1] + 1 == origin.entry:
                shown[-1] = (shown[-1][0], origin.entry)
            else:
                shown.append((origin, origin.entry))
        texts = [self.world.shown(first) + (f"-{last}" if last != first.entry else "") for first, last in shown]
        return " ".join(texts) or "nothing"
