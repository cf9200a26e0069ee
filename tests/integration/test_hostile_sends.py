# SPDX-License-Identifier: Apache-2.0
"""A client that sends messages with absurd numbers harms nobody else, on its topic or on another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meridian_broker.ledgers.entry import pack_extras
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.commands import Message
from meridian_broker.wire.pulsar.metadata import body_checksum, build_body, metadata_bounds
from support.brokers.broker_regions import regions
from support.protocol.raw_connection import RawConnection, T

TOPIC, ELSEWHERE = "persistent://public/default/shared", "persistent://public/default/elsewhere"
I32_MAX, I64_MAX, U32_MAX, U64_MAX = (1 << 31) - 1, (1 << 63) - 1, (1 << 32) - 1, (1 << 64) - 1
PLACE = {"ledger": 1, "entry": 1}

METADATA: list[dict[str, Any]] = [
    *({"publish_time": time} for time in (0, 1 << 63, U64_MAX)),
    *({"event_time": time} for time in (1 << 63, U64_MAX)),
    *({"deliver_at_time": time} for time in (-I64_MAX - 1, -1, I64_MAX)),
    *({"num_messages_in_batch": count} for count in (-1, 0, I32_MAX)),
    *({"compression": codec, "uncompressed_size": U32_MAX} for codec in (0, 1, 3)),
    *({"replicate_to": names} for names in (["r" * 65_470], ["r" * 65_535], ["r"] * 20_000)),
    {"partition_key": "k" * 1_000_000},
    {"partition_key": "!!!", "partition_key_b64_encoded": True},
    {"marker_type": 10},
    {"replicated_from": "us-west"},
]
COMMANDS: list[dict[str, Any]] = [
    *({"num_messages": count} for count in (-I32_MAX - 1, -1, 0, 2, I32_MAX)),
    {"highest_sequence_id": U64_MAX},
    {"marker": True},
    {"message_id": pb.MessageIdData(ledgerId=1, entryId=1)},
    {"origin": peer_pb2.OriginStamp(region="us-west", messages=U32_MAX, publish_time_ms=U64_MAX, **PLACE)},
    {"txnid_most_bits": 1},
    {"is_chunk": True},
]
CHUNKS: list[dict[str, Any]] = [
    {"uuid": "u" * 10_000, "chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": -1}
    for number, count in ((-1, -1), (0, 0), (I32_MAX, I32_MAX))
]
HOSTILE = [
    *((fields, {}) for fields in METADATA),
    *(({}, fields) for fields in COMMANDS),
    *((fields, {"is_chunk": True}) for fields in CHUNKS),
    ({"num_messages_in_batch": I32_MAX}, {"num_messages": I32_MAX}),
    ({"num_messages_in_batch": 1 << 20}, {"num_messages": 1 << 20}),
]


def frame(number: int, payload: bytes, said: dict[str, Any], asked: dict[str, Any], name: str = "hostile") -> bytes:
    """A SEND frame with any metadata and any command, valid or not."""
    fields: dict[str, Any] = {"producer_name": name, "sequence_id": number, "publish_time": 1_700_000_000_000} | said
    body = build_body(pb.MessageMetadata(**fields).SerializeToString(), payload)
    send = pb.CommandSend(**{"producer_id": 1, "sequence_id": number, **asked})
    command = pb.BaseCommand(type=T.SEND, send=send).SerializeToString()
    sizes = (4 + len(command) + len(body)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    return sizes + command + body


def wild_entries(counts: Iterable[int]) -> list[Any]:
    """Entries as an older version stored them, with these message counts and the latest possible publish time."""
    found = []
    for number, messages in enumerate(counts):
        said = pb.MessageMetadata(producer_name="old", sequence_id=number, publish_time=U64_MAX)
        body = build_body(said.SerializeToString(), b"wild-%d" % number)
        found.append((0, messages, 0, body_checksum(body), U64_MAX, pack_extras(None, None), body))
    return found


class Client:
    """A producer and consumers of a topic on one connection."""

    def __init__(self, wire: RawConnection, name: str) -> None:
        self.wire = wire
        self.name = name
        self.places: dict[bytes, tuple[int, int]] = {}
        """Payload -> the position in its receipt."""
        self._sequence = 0

    @classmethod
    async def of(cls, broker: BrokerProcess, topic: str, name: str) -> Client:
        made = cls(await RawConnection.open(broker.settings.network.broker_service_port), name)
        await made.wire.producer(topic, producer_name=name)
        return made

    async def consume(self, topic: str, consumer_id: int, kind: int) -> None:
        asked = pb.CommandSubscribe(
            topic=topic,
            subscription=f"s{consumer_id}",
            subType=kind,  # type: ignore[arg-type]
            consumer_id=consumer_id,
            request_id=consumer_id,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self.wire.say(T.SUBSCRIBE, asked)
        answer = await self.wire.hear_any()
        while answer[0] == T.ACTIVE_CONSUMER_CHANGE:
            answer = await self.wire.hear_any()
        assert answer[0] == T.SUCCESS
        self.wire.write(encode.flow(consumer_id, 1000))

    async def publish(self, payload: bytes) -> None:
        self.wire.write(frame(self._sequence, payload, {}, {}, self.name))
        self._sequence += 1
        receipt = await self.wire.hear(T.SEND_RECEIPT)
        self.places[payload] = receipt.message_id.ledgerId, receipt.message_id.entryId

    async def messages(self, until: bytes, consumer_ids: set[int]) -> dict[int, list[tuple[bytes, tuple[int, int]]]]:
        """The messages of each consumer, up to that payload."""
        found: dict[int, list[tuple[bytes, tuple[int, int]]]] = {one: [] for one in consumer_ids}
        while consumer_ids:
            heard = await self.wire.hear_any()
            if not isinstance(heard, Message):
                continue
            at = heard.command.message_id
            payload = heard.body[metadata_bounds(heard.body)[1] :]
            found[heard.command.consumer_id].append((payload, (at.ledgerId, at.entryId)))
            if payload == until:
                consumer_ids = consumer_ids - {heard.command.consumer_id}
        return found


async def test_messages_with_extreme_field_values_harm_nobody_else(inside: BrokerProcess) -> None:
    """Valid ones before and after each arrive in the same read. Everybody gets what was stored, at the position in its
    receipt."""
    honest = await Client.of(inside, TOPIC, "honest")
    elsewhere = await Client.of(inside, ELSEWHERE, "elsewhere")
    reader = await Client.of(inside, TOPIC, "reader")
    for consumer_id, kind in enumerate((pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive, 3), 1):
        await reader.consume(TOPIC, consumer_id, kind)
    hostile = await Client.of(inside, TOPIC, "hostile")
    for number, (said, asked) in enumerate(HOSTILE):
        before, bad, behind = (b"%s-%d" % (what, number) for what in (b"before", b"bad", b"behind"))
        sequence_id = 3 * number
        hostile.wire.write(
            frame(sequence_id, before, {}, {})
            + frame(sequence_id + 1, bad, said, asked)
            + frame(sequence_id + 2, behind, {}, {})
        )
        payloads = {sequence_id: before, sequence_id + 1: bad, sequence_id + 2: behind}
        for _ in range(3):
            answer = await hostile.wire.hear_any()
            payload = payloads.pop(answer.message.sequence_id)
            if answer[0] == T.SEND_RECEIPT:
                at = answer.message.message_id
                hostile.places[payload] = at.ledgerId, at.entryId
            else:
                assert (answer[0], payload) == (T.SEND_ERROR, bad), (said, asked)
                assert 0 < len(answer.message.message) < 300
        await honest.publish(b"honest-%d" % number)
        await elsewhere.publish(b"elsewhere-%d" % number)
    await honest.publish(b"last")
    stored = sorted((hostile.places | honest.places).items(), key=lambda one: one[1])
    assert len(stored) >= 3 * len(HOSTILE) + 1
    got = await reader.messages(b"last", {1, 2, 3})
    for messages in got.values():
        assert sorted(messages, key=lambda one: one[1]) == stored
    for client in (honest, elsewhere, reader, hostile):
        await client.wire.close()


async def test_a_consumer_gets_no_more_messages_than_it_has_room_for(inside: BrokerProcess) -> None:
    """Not even from a producer whose entries claim to hold zero messages."""
    hostile = await Client.of(inside, TOPIC, "hostile")
    hostile.wire.write(b"".join(frame(number, b"none", {}, {"num_messages": 0}) for number in range(50)))
    for _ in range(50):
        await hostile.wire.hear(T.SEND_ERROR)
    await hostile.publish(b"one")
    reader = await Client.of(inside, TOPIC, "reader")
    await reader.consume(TOPIC, 1, pb.CommandSubscribe.Shared)
    assert [payload for payload, _ in (await reader.messages(b"one", {1}))[1]] == [b"one"]
    for client in (reader, hostile):
        await client.wire.close()


async def test_what_one_region_takes_the_other_stores_and_delivers(tmp_path: Path) -> None:
    """Also what an older version stored with absurd numbers; replication goes on both ways."""
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        hostile = await Client.of(east.process, TOPIC, "hostile")
        reader, other = [await Client.of(west.process, topic, "reader") for topic in (TOPIC, ELSEWHERE)]
        await reader.consume(TOPIC, 1, pb.CommandSubscribe.Exclusive)
        await other.consume(ELSEWHERE, 2, pb.CommandSubscribe.Shared)
        for number, (said, asked) in enumerate(HOSTILE):
            hostile.wire.write(frame(number, b"bad-%d" % number, said, asked))
            answer = await hostile.wire.hear_any()
            if answer[0] == T.SEND_RECEIPT:
                hostile.places[b"bad-%d" % number] = (0, 0)
        log = east.process.service.topics[TOPIC].log
        wild = wild_entries((I32_MAX, 0, U32_MAX))
        for entry in wild:
            log.append_own([entry], lambda *_: None, [0])
        honest, elsewhere = await Client.of(east.process, TOPIC, "h"), await Client.of(east.process, ELSEWHERE, "e")
        await honest.publish(b"last")
        await elsewhere.publish(b"elsewhere")
        stored = {*hostile.places, *(b"wild-%d" % number for number in range(len(wild))), b"last"}
        got = [payload for payload, _ in (await reader.messages(b"last", {1}))[1]]
        assert (len(got), set(got)) == (len(stored), stored)
        assert [payload for payload, _ in (await other.messages(b"elsewhere", {2}))[2]] == [b"elsewhere"]
        back = await Client.of(east.process, TOPIC, "back")
        await back.consume(TOPIC, 3, pb.CommandSubscribe.Exclusive)
        await reader.publish(b"from the other side")
        assert len((await back.messages(b"from the other side", {3}))[3]) == len(stored) + 1
        for client in (hostile, reader, other, honest, elsewhere, back):
            await client.wire.close()


async def test_entries_that_an_older_version_stored_with_absurd_numbers_do_no_harm(inside: BrokerProcess) -> None:
    """They are delivered, acknowledged in part or whole, and use no permits for messages that do not exist."""
    honest = await Client.of(inside, TOPIC, "honest")
    await honest.publish(b"before")
    log = inside.service.topics[TOPIC].log
    for entry in wild_entries((I32_MAX, 0, U32_MAX)):
        log.append_own([entry], lambda *_: None, [0])
    await honest.publish(b"last")
    reader, other = await Client.of(inside, TOPIC, "reader"), await Client.of(inside, TOPIC, "other")
    await reader.consume(TOPIC, 1, pb.CommandSubscribe.Shared)
    await other.consume(TOPIC, 2, pb.CommandSubscribe.Exclusive)
    got = (await reader.messages(b"last", {1}))[1]
    assert [payload for payload, _ in got] == [b"before", b"wild-0", b"wild-1", b"wild-2", b"last"]
    assert (await other.messages(b"last", {2}))[2] == got
    ids = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for _, (ledger, entry) in got]
    ids[1].ack_set.append(2)
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids, request_id=5)
    reader.wire.say(T.ACK, ack)
    assert not (await reader.wire.hear(T.ACK_RESPONSE)).HasField("error")
    subscription = inside.service.topics[TOPIC].subscriptions["s1"]
    assert subscription.cursor.mark_delete == log.last_confirmed
    assert subscription.consumers[0].permits == 1000 - len(ids)
    for client in (honest, reader, other):
        await client.wire.close()
