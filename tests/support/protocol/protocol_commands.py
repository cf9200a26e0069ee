# SPDX-License-Identifier: Apache-2.0
"""Commands for the exchanges of ``protocol_table``, with common fields filled in."""

from __future__ import annotations

from typing import Any, Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.protocol.protocol_exchanges import Say, say

T = pb.BaseCommand
TOPIC: Final = "persistent://public/default/{t}"
SUBSCRIBE = pb.CommandSubscribe
VOLATILE: Final = "non-persistent://public/default/{t}"
NOWHERE: Final = "persistent://public/nowhere/{t}"
PARTITIONED: Final = (("PUT", "/admin/v2/persistent/public/default/{t}/partitions", 2),)
VOLATILE_PARTITIONED: Final = (("PUT", "/admin/v2/non-persistent/public/default/{t}/partitions", 2),)
ALONE: Final[Any] = (
    ("PUT", "/admin/v2/namespaces/public/{t}", {}),
    ("PUT", "/admin/v2/persistent/public/{t}/one", ...),
    ("PUT", "/admin/v2/persistent/public/{t}/two", ...),
)
"""A namespace for one exchange."""
EXISTS: Final = (("PUT", "/admin/v2/persistent/public/default/{t}", ...),)
ABSENT: Final = (1 << 64) - 1
LONG: Final = "persistent://public/default/{t}" + "x?" * 30
STRING: Final = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
JSON: Final = pb.Schema(name="j", type=pb.Schema.Json, schema_data=b'{"type":"record","name":"A","fields":[]}')
AVRO_INT: Final = b'{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'
AVRO_TEXT: Final = b'{"type":"record","name":"A","fields":[{"name":"a","type":"string"}]}'
EARLIEST: Final = pb.MessageIdData(ledgerId=ABSENT, entryId=ABSENT)
HELLO: Final = pb.CommandConnect(client_version="exchange", protocol_version=21)


def lookup(topic: str = TOPIC, request: int = 1, **more: Any) -> Say:
    return say(T.LOOKUP, pb.CommandLookupTopic(topic=topic, request_id=request, **more))


def partitions(topic: str = TOPIC, request: int = 1, **more: Any) -> Say:
    return say(T.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request, **more))


def topics(pattern: str | None = TOPIC, request: int = 1, namespace: str = "public/default", **more: Any) -> Say:
    asked = pb.CommandGetTopicsOfNamespace(request_id=request, namespace=namespace, topics_pattern=pattern, **more)
    return say(T.GET_TOPICS_OF_NAMESPACE, asked)


def watch(
    pattern: str = TOPIC,
    request: int = 1,
    watcher: int = 1,
    namespace: str = "public/default",
    on: int = 0,
    **more: Any,
) -> Say:
    asked = pb.CommandWatchTopicList(
        request_id=request, watcher_id=watcher, namespace=namespace, topics_pattern=pattern, **more
    )
    return say(T.WATCH_TOPIC_LIST, asked, on)


def unwatch(request: int = 2, watcher: int = 1) -> Say:
    return say(T.WATCH_TOPIC_LIST_CLOSE, pb.CommandWatchTopicListClose(request_id=request, watcher_id=watcher))


def producer(topic: str = TOPIC, request: int = 1, number: int = 1, on: int = 0, **more: Any) -> Say:
    fields = {"producer_name": "p"} | more
    return say(T.PRODUCER, pb.CommandProducer(topic=topic, producer_id=number, request_id=request, **fields), on)


def close_producer(request: int = 9, number: int = 1, on: int = 0) -> Say:
    return say(T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=number, request_id=request), on)


def subscribe(
    topic: str = TOPIC,
    request: int = 1,
    number: int = 1,
    kind: SUBSCRIBE.SubType = SUBSCRIBE.Exclusive,
    on: int = 0,
    **more: Any,
) -> Say:
    fields: dict[str, Any] = {"subscription": "s", "consumer_name": "c", "initialPosition": SUBSCRIBE.Earliest} | more
    command = SUBSCRIBE(topic=topic, consumer_id=number, request_id=request, subType=kind, **fields)
    return say(T.SUBSCRIBE, command, on)


def close_consumer(request: int = 9, number: int = 1, on: int = 0) -> Say:
    return say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=number, request_id=request), on)


def flow(permits: int = 10, number: int = 1) -> Say:
    return say(T.FLOW, pb.CommandFlow(consumer_id=number, messagePermits=permits))


def ack(
    ids: list[tuple[int, int]],
    kind: pb.CommandAck.AckType = pb.CommandAck.Individual,
    number: int = 1,
    request: int | None = 8,
    **more: Any,
) -> Say:
    places = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids]
    return say(T.ACK, pb.CommandAck(consumer_id=number, ack_type=kind, message_id=places, request_id=request, **more))


def redeliver(number: int = 1, ids: list[tuple[int, int]] | None = None, **more: Any) -> Say:
    places = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids or []]
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=number, message_ids=places, **more)
    return say(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, command)


def unsubscribe(request: int = 8, number: int = 1, **more: Any) -> Say:
    return say(T.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=number, request_id=request, **more))


def seek(request: int = 8, number: int = 1, **more: Any) -> Say:
    return say(T.SEEK, pb.CommandSeek(consumer_id=number, request_id=request, **more))


def last_id(request: int = 8, number: int = 1) -> Say:
    return say(T.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=number, request_id=request))


def stats(request: int = 8, number: int = 1) -> Say:
    return say(T.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=number, request_id=request))


def schema(topic: str = TOPIC, request: int = 8, **more: Any) -> Say:
    return say(T.GET_SCHEMA, pb.CommandGetSchema(topic=topic, request_id=request, **more))


def add_schema(given: pb.Schema, topic: str = TOPIC, request: int = 8) -> Say:
    return say(T.GET_OR_CREATE_SCHEMA, pb.CommandGetOrCreateSchema(topic=topic, request_id=request, schema=given))


def avro(definition: bytes) -> pb.Schema:
    return pb.Schema(name="a", type=pb.Schema.Avro, schema_data=definition)


def ranges(*given: tuple[int, int]) -> pb.KeySharedMeta:
    listed = [pb.IntRange(start=start, end=end) for start, end in given]
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=listed)
