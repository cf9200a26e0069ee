# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about clients:

produce us t x3 [batch 4] [key k]  publish; messages without a receipt are sent again
marker us t                 store a marker, as replication of snapshots will
forge us t marker|origin    a client sends what only other regions' brokers may send
subscribe us t sub [latest] create a replicated subscription
consumer c1 us t sub [shared|exclusive|failover|key_shared] [latest] [auto] [compacted]
narrow c1                   on its next connection it takes only one message
ack c1 x3 [newest|every2]   one ACK of some of what it holds; or ``ack c1 us/1:2 ...``
ack us t sub us/1:2 ...     one ACK of a consumer that only acks
cumulative c1 x3            one cumulative ACK up to its third message; or ``cumulative c1 us/1:2``
stray c1 eu 5               one cumulative ACK with the id that the fifth entry stored in eu has there
late c1 x3 [0 2]            one ACK of messages from before it was disconnected; or of some messages of batches
part c1 us/1:2 0 2          some messages of a batch; or ``part c1 x1 0 2`` of the first it holds
nack c1 x2
seek us t sub us/1:0        makes this message the next; or ``seek us t sub 50%`` of what is stored
seek us t sub time 500      to what was published, by us's clock, 500 ms ago or later
skip us t sub x3            an operator acknowledges the next three; without a number, all that is stored
unsubscribe us t sub [force]
switch us t sub on|off      the replicated flag
close c1 / kill c1          closes cleanly / its connection breaks, and it reconnects
move c1 eu                  close, and once that is confirmed subscribe in eu
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meridian_broker.ledgers import entry as entries
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.service import subscribing
from meridian_broker.topics.subscriptions import administration
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.frames import Send
from simulation.consumers import SHARING, SimConsumer
from simulation.teller import Teller

KINDS: Final = {
    "shared": SHARED,
    "exclusive": EXCLUSIVE,
    "failover": FAILOVER,
    "key_shared": KEY_SHARED,
}


class ClientSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_produce(self, region: str, topic: str, count: str, *options: str) -> None:
        producer = self.world.producer(region, topic)
        chosen = dict(zip(options[::2], options[1::2], strict=True))
        for _ in range(_count(count)):
            producer.produce(int(chosen.get("batch", "1")), chosen.get("key"))

    def do_marker(self, region: str, topic: str) -> None:
        opened = self._open(region, topic)
        if opened is None:
            self.say(f"{region} does not serve {topic}")
            return
        body = metadata.build_body(b"", b"#marker")
        marked = opened

        def done(_: object, result: Position | LedgerError) -> None:
            if isinstance(result, LedgerError):
                marked.fence(str(result))

        opened.log.append_own([(entries.MARKER, 1, 0, 0, 0, b"", body)], done, [None])

    def do_forge(self, region: str, topic: str, what: str) -> None:
        opened = self._open(region, topic)
        if opened is None:
            self.say(f"{region} does not serve {topic}")
            return
        fields = pb.MessageMetadata(producer_name="forger", sequence_id=0, publish_time=1)
        if what == "marker":
            fields.marker_type = 10
        else:
            fields.replicated_from = "eu"
        body = metadata.build_body(fields.SerializeToString(), b"#forged")
        send = Send(6, 1, 0, None, 1, False, what == "marker", None, None, False, True, body)
        port = _Forger(self.say)
        forger = Producer(opened, port, 1, "forger", name_is_given=True, epoch=0, connected_since_ms=0)
        opened.publish(forger, [send])

    def do_subscribe(self, region: str, topic: str, name: str, place: str = "earliest") -> None:
        broker = self._broker(region, topic)
        if broker is None:
            return
        initial = LATEST if place == "latest" else EARLIEST

        async def work() -> None:
            opened = None
            try:
                opened = await broker.open_topic(topic)
                self.world.model.creation_asked(broker.home, topic, name, initial, opened)
                made = await subscribing.subscription(
                    broker.service.parts, opened, name, durable=True, replicated=True, initial=initial, properties={}
                )
                self.world.model.creation_seen(broker.home, topic, made)
            except (TopicError, LedgerError, MetadataError) as error:
                self.world.model.creation_refused(topic, name, initial, opened)
                self.say(f"refused: {error}")

        self.world.loop.spawn(broker, work(), "subscribe")

    def do_consumer(self, name: str, region: str, topic: str, subscription: str, *options: str) -> None:
        if name in self.world.consumers:
            self.say(f"there is a consumer {name}")
            return
        kind = next((KINDS[option] for option in options if option in KINDS), SHARED)
        consumer = self.world.consume(name, region, topic, subscription, kind)
        consumer.initial = LATEST if "latest" in options else EARLIEST
        consumer.auto = "auto" in options
        consumer.compacted = "compacted" in options
        consumer.connect()

    def do_ack(self, *words: str) -> None:
        if words[0] in self.world.regions:
            self._ack_at(words[0], words[1], words[2], words[3:])
            return
        consumer = self._consumer(words[0])
        if consumer is not None:
            consumer.ack(self._choose(consumer, words[1:]))

    def do_narrow(self, name: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None:
            consumer.is_narrow = True

    def do_late(self, name: str, count: str, *numbers: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None:
            consumer.ack_late(_count(count), sum(1 << int(number) for number in set(numbers)) if numbers else -1)

    def _choose(self, consumer: SimConsumer, words: tuple[str, ...]) -> list[Position]:
        if words[0].startswith("x"):
            return consumer.choose(_count(words[0]), words[1] if len(words) > 1 else "oldest")
        found = [self.world.position(consumer.region, one, consumer.topic) for one in self._origins(words)]
        return [position for position in found if position is not None]

    def _ack_at(self, region: str, topic: str, name: str, messages: tuple[str, ...]) -> None:
        subscription = self._subscription(region, topic, name)
        if subscription is None:
            return
        consumer = Consumer(subscription, _Nobody(), 0, "nobody", 0, 0, None, None, subscription.cursor.progress.epoch)
        places = [self.world.position(region, origin, topic) for origin in self._origins(messages)]
        positions = [place for place in places if place is not None]
        bits = {place: (1 << subscription.topic.log.messages(place)) - 1 for place in positions}
        home = self.world.regions[region]
        heard = self.world.model.acking(home, topic, consumer, bits, consumer.epoch)
        if subscription.cursor.resent is not None:
            for position in positions:
                subscription.cursor.resent.note(position)
        subscription.acknowledge(consumer, positions, None, heard)

    def do_cumulative(self, name: str, *words: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None and consumer.kind not in SHARING:
            chosen = self._choose(consumer, words)
            if chosen:
                consumer.ack_cumulative(max(chosen))

    def do_stray(self, name: str, region: str, number: str) -> None:
        consumer = self._consumer(name)
        if consumer is None or consumer.server is None or consumer.kind in SHARING:
            return
        log = self.world.model.logs.of(self.world.regions[region], consumer.topic)
        if log and region != consumer.region:
            consumer.server.ack_stray(log[int(number) % len(log)][0])

    def do_part(self, name: str, message: str, *numbers: str) -> None:
        consumer = self._consumer(name)
        if consumer is None:
            return
        if message.startswith("x"):
            held = [one.position for one in consumer.held.values() if one.messages > 1]
            chosen = held[_count(message) - 1 :][:1]
        else:
            chosen = self._choose(consumer, (message,))
        bits = sum(1 << int(number) for number in set(numbers))
        consumer.ack(chosen, dict.fromkeys(chosen, bits))

    def do_nack(self, name: str, *words: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None:
            consumer.nack(self._choose(consumer, words))

    def do_skip(self, region: str, topic: str, name: str, count: str = "") -> None:
        broker, subscription = self._broker(region, topic), self._subscription(region, topic, name)
        if broker is None or subscription is None:
            return
        chosen, home = subscription, self.world.regions[region]
        consumer = Consumer(chosen, _Nobody(), 0, "nobody", 0, 0, None, None, chosen.cursor.progress.epoch)
        times = self.world.model.logs.published
        owed = {
            place: (1 << messages) - 1
            for place, origin, messages in self.world.model.logs.of(home, topic)
            if not chosen.cursor.progress.is_acked(origin.region, origin.position, times[origin])
        }
        bits = dict(list(owed.items())[: _count(count) if count else None])
        heard = self.world.model.skipping(home, topic, consumer, bits)

        async def work() -> None:
            try:
                await administration.skip(chosen, len(bits))
            except (LedgerError, TopicError) as error:
                self.say(f"skip refused: {error}")
                return
            heard(None)

        self.world.loop.spawn(broker, work(), "skip")

    def do_unsubscribe(self, region: str, topic: str, name: str, *options: str) -> None:
        opened = self._open(region, topic)
        if opened is None or name not in opened.subscriptions:
            self.say("no such subscription")
            return
        forced = "force" in options
        if opened.subscriptions[name].consumers and not forced:
            self.say("unsubscribe refused: it has consumers")
            return
        self.world.model.creations.deleted(topic, name)
        opened.subscription_registry.delete(name, forced=forced)

    def do_switch(self, region: str, topic: str, name: str, how: str) -> None:
        opened = self._open(region, topic)
        if opened is None or name not in opened.subscriptions:
            self.say("no such subscription")
            return
        opened.subscription_registry.set_replicated(opened.subscriptions[name], how == "on")

    def do_seek(self, region: str, topic: str, name: str, place: str, ago: str = "") -> None:
        broker, subscription = self._broker(region, topic), self._subscription(region, topic, name)
        if broker is None or subscription is None:
            return
        log = self.world.model.logs.of(broker.home, topic)
        time_ms: int | None = None
        if place == "time":
            time_ms = broker.home.wall_ms() - int(ago)
            published = self.world.model.logs.published
            target = next((one for one, origin, _ in log if published[origin] >= time_ms), LATEST)
        elif place.endswith("%"):
            at = int(place[:-1]) * len(log) // 100
            target = log[at][0] if at < len(log) else LATEST
        else:
            found = self.world.position(region, self._origins((place,))[0], topic)
            if found is None:
                self.say(f"{region} has no {place}")
                return
            target = found
        if not log:
            return
        chosen, sought = subscription, target

        async def work() -> None:
            done = self.world.model.seeking(broker.home, topic, chosen, sought, time_ms)
            before = chosen.cursor.progress.epoch
            try:
                cursor = chosen.cursor
                await (seeking.seek(cursor, sought) if time_ms is None else seeking.seek_to_time(cursor, time_ms))
            except (LedgerError, TopicError) as error:
                self.say(f"seek refused: {error}")
                return
            chosen.topic.progress_log.when_durable(
                done(*_epochs(before, chosen.cursor.progress, region), chosen.cursor.progress)
            )

        self.world.loop.spawn(broker, work(), "seek")

    def do_close(self, name: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None:
            begun = self.world.loop.now_us
            consumer.close(lambda: self._closed(name, begun))

    def _closed(self, name: str, begun: int) -> None:
        self.say(f"{name} is closed after {(self.world.loop.now_us - begun) // 1000} ms")

    def do_kill(self, name: str) -> None:
        consumer = self._consumer(name)
        if consumer is not None:
            consumer.kill()

    def do_move(self, name: str, region: str) -> None:
        consumer = self._consumer(name)
        if consumer is None:
            return
        if consumer.is_closed:
            consumer.reopen(region)
        elif consumer.closing is None:
            moved = consumer
            consumer.close(lambda: moved.reopen(region))


class _Forger:
    """Port of a producer whose messages are refused."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def stored(self, *_: object) -> None:
        self._say("stored")

    def refused(self, _: Producer, __: Send, error: Exception) -> None:
        self._say(f"refused: {error}")

    def has_read(self, *_: object) -> None: ...
    def repeated(self, *_: object) -> None: ...

    def hold(self, wait_ms: Callable[[], int]) -> None: ...

    def dropped(self, _: list[Send]) -> None: ...

    def disconnect_producer(self, _: Producer) -> None: ...


class _Nobody:
    """Port of a consumer that only acks."""

    def deliver(self, *_: object) -> None:
        raise AssertionError("nothing is dispatched to a consumer that was not added")

    def writable(self) -> bool:
        return False

    def disconnect_consumer(self, _: Consumer) -> None: ...

    def active_consumer_changed(self, _: Consumer, __: bool) -> None: ...

    def reached_end(self, _: Consumer) -> None: ...


def _epochs(before: Stamp, progress: Progress, region: str) -> tuple[Stamp, Stamp]:
    """The epoch in which a seek acks what is before its position, and the epoch that it begins, if any."""
    epochs = [ZERO, *(epoch for epoch, _, _ in progress.rewinds())]
    if epochs[-1] != before and epochs[-1].region == region:
        return epochs[-2], epochs[-1]
    return epochs[-1], epochs[-1]


def _count(text: str) -> int:
    return int(text.removeprefix("x"))
