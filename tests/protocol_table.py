# SPDX-License-Identifier: Apache-2.0
"""What is said in the exchanges of ``protocol_answers.txt``: every command as it should be, and in every wrong way.

One line each: a name that says the situation, and the steps. Requests are numbered in the order in which they are made.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from protocol_commands import (
    SUBSCRIBE,
    TOPIC,
    T,
    ack,
    add_schema,
    avro,
    close_consumer,
    close_producer,
    flow,
    last_id,
    lookup,
    partitions,
    producer,
    ranges,
    redeliver,
    schema,
    seek,
    stats,
    subscribe,
    topics,
    unsubscribe,
    unwatch,
    watch,
)
from protocol_exchanges import Exchange, Say, say, send

VOLATILE: Final = "non-persistent://public/default/{t}"
NOWHERE: Final = "persistent://public/nowhere/{t}"
PARTITIONED: Final = (("PUT", "/admin/v2/persistent/public/default/{t}/partitions", 2),)
VOLATILE_PARTITIONED: Final = (("PUT", "/admin/v2/non-persistent/public/default/{t}/partitions", 2),)
ALONE: Final = (
    ("PUT", "/admin/v2/namespaces/public/{t}", {}),
    ("PUT", "/admin/v2/persistent/public/{t}/one", ...),
    ("PUT", "/admin/v2/persistent/public/{t}/two", ...),
)
"""A namespace of the exchange's own."""
EXISTS: Final = (("PUT", "/admin/v2/persistent/public/default/{t}", ...),)
ABSENT: Final = (1 << 64) - 1
LONG: Final = "persistent://public/default/{t}" + "x?" * 30
STRING: Final = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
JSON: Final = pb.Schema(name="j", type=pb.Schema.Json, schema_data=b'{"type":"record","name":"A","fields":[]}')
AVRO_INT: Final = b'{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'
AVRO_TEXT: Final = b'{"type":"record","name":"A","fields":[{"name":"a","type":"string"}]}'


EARLIEST: Final = pb.MessageIdData(ledgerId=ABSENT, entryId=ABSENT)
HELLO: Final = pb.CommandConnect(client_version="exchange", protocol_version=21)

HANDSHAKE: Final = (
    Exchange("a command before CONNECT", (lookup(),), connect=False),
    Exchange("PING before CONNECT", (say(T.PING, pb.CommandPing()),), connect=False),
    Exchange(
        "CONNECT of an old client",
        (say(T.CONNECT, pb.CommandConnect(client_version="old", protocol_version=3)),),
        connect=False,
    ),
    Exchange(
        "CONNECT of a newer client",
        (say(T.CONNECT, pb.CommandConnect(client_version="new", protocol_version=99)),),
        connect=False,
    ),
    Exchange("CONNECT twice", (say(T.CONNECT, HELLO),)),
    Exchange("a PONG nobody asked for", (say(T.PONG, pb.CommandPong()),)),
    Exchange("SUCCESS from a client", (say(T.SUCCESS, pb.CommandSuccess(request_id=1)),)),
    Exchange("ERROR from a client", (say(T.ERROR, pb.CommandError(request_id=1, error=1, message="m")),)),
    Exchange("AUTH_RESPONSE without a challenge", (say(T.AUTH_RESPONSE, pb.CommandAuthResponse()),)),
    Exchange("a command that brokers say", (say(T.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=1)),)),
    Exchange("a command without a type", (Say(lambda _: b"\0\0\0\4\0\0\0\0"),)),
    Exchange("a frame of nonsense", (Say(lambda _: b"\0\0\0\x08\0\0\0\4\xff\xff\xff\xff"),)),
    Exchange("a frame larger than any", (Say(lambda _: b"\x7f\0\0\0\0\0\0\4"),)),
)

LOOKUPS: Final = (
    Exchange("LOOKUP of a topic that is not there", (lookup(),)),
    Exchange("LOOKUP in a namespace that is not there", (lookup(NOWHERE),)),
    Exchange("LOOKUP of a tenant that is not there", (lookup("persistent://nobody/default/{t}"),)),
    Exchange("LOOKUP of a name that is none", (lookup("persistent://{t}"), lookup("what://a/b/{t}", 2))),
    Exchange("LOOKUP with a listener nobody has", (lookup(advertised_listener_name="other"),)),
    Exchange("LOOKUP of a partition", (lookup(TOPIC + "-partition-1"),), PARTITIONED),
    Exchange("LOOKUP of a non-persistent topic", (lookup(VOLATILE),)),
    Exchange(
        "partitions of a topic that is made by asking",
        (partitions(), partitions(request=2, metadata_auto_creation_enabled=False)),
    ),
    Exchange("partitions of a topic that is not made by asking", (partitions(metadata_auto_creation_enabled=False),)),
    Exchange(
        "partitions of a partitioned topic",
        (partitions(), partitions(TOPIC + "-partition-1", 2), partitions(TOPIC + "-partition-7", 3)),
        PARTITIONED,
    ),
    Exchange(
        "partitions of a partition's name without a topic",
        (partitions(TOPIC + "-partition-1", metadata_auto_creation_enabled=False),),
    ),
    Exchange("partitions in a namespace that is not there", (partitions(NOWHERE),)),
    Exchange("partitions of a name that is none", (partitions("persistent://{t}"),)),
    Exchange(
        "partitions of a non-persistent topic",
        (partitions(VOLATILE), partitions(VOLATILE, 2, metadata_auto_creation_enabled=False)),
    ),
    Exchange(
        "partitions of a non-persistent topic not made by asking",
        (partitions(VOLATILE, metadata_auto_creation_enabled=False),),
    ),
    Exchange("partitions of a partitioned non-persistent topic", (partitions(VOLATILE),), VOLATILE_PARTITIONED),
    Exchange(
        "topics of a namespace that match", (topics(), topics("public/default/{t}", 2), topics(TOPIC + "z", 3)), EXISTS
    ),
    Exchange("topics with their partitions", (topics(),), PARTITIONED),
    Exchange(
        "topics by a part of their name only",
        (topics("{t}"), topics("persistent://public/default/{t}$", 2), topics("^persistent://public/default/{t}", 3)),
        EXISTS,
    ),
    Exchange("topics of a namespace that is not there", (topics(namespace="public/nowhere"),)),
    Exchange(
        "topics of a namespace that is no name", (topics(namespace="nowhere"), topics(namespace="a/b/c/d", request=2))
    ),
    Exchange("topics by a pattern that is none", (topics("public/{t}/one(", namespace="public/{t}"),), ALONE),
    Exchange("topics by a pattern of other engines", (topics("public/{t}/(?!a)one", namespace="public/{t}"),), ALONE),
    Exchange("topics by a long pattern", (topics("public/{t}/one" + "x?" * 30, namespace="public/{t}"),), ALONE),
    Exchange("topics without a pattern", (topics(None, namespace="public/{t}"),), ALONE),
    Exchange(
        "topics of both kinds",
        (
            subscribe(VOLATILE),
            topics("public/default/{t}", mode=pb.CommandGetTopicsOfNamespace.ALL, request=2),
            topics("public/default/{t}", mode=pb.CommandGetTopicsOfNamespace.NON_PERSISTENT, request=3),
            topics("public/default/{t}", request=4),
        ),
        EXISTS,
    ),
    Exchange("a watcher's first list", (watch(), unwatch(), unwatch(3)), EXISTS),
    Exchange(
        "a watcher hears of a topic",
        (watch(), producer(request=2)),
    ),
    Exchange(
        "a watcher hears of a subscriber's topic",
        (watch(TOPIC + ".*"), subscribe(request=2)),
    ),
    Exchange(
        "a watcher does not hear of a non-persistent topic",
        (watch("public/default/{t}"), subscribe(VOLATILE, request=2)),
    ),
    Exchange("a watcher's id twice", (watch(), watch(request=2), watch(TOPIC + "z", request=3)), EXISTS),
    Exchange("a watcher of a namespace that is not there", (watch(namespace="public/nowhere"),)),
    Exchange("a watcher of a namespace that is no name", (watch(namespace="nowhere"),)),
    Exchange("a watcher with a long pattern", (watch(LONG),)),
    Exchange("a watcher with a pattern that is none", (watch("public/default/("),)),
    Exchange("a watcher that nobody has is closed", (unwatch(),)),
)

SCHEMAS: Final = (
    Exchange(
        "GET_SCHEMA of a topic without one",
        (producer(), schema()),
    ),
    Exchange("GET_SCHEMA of a topic that is not there", (schema(),)),
    Exchange("GET_SCHEMA with an empty version", (add_schema(avro(AVRO_INT)), schema(schema_version=b"")), EXISTS),
    Exchange(
        "GET_SCHEMA of a version",
        (add_schema(avro(AVRO_INT)), schema(schema_version=bytes(8)), schema(schema_version=bytes(7) + b"\5")),
        EXISTS,
    ),
    Exchange("GET_SCHEMA of a name that is none", (schema("persistent://{t}"),)),
    Exchange("GET_OR_CREATE_SCHEMA of a topic that is not there", (add_schema(avro(AVRO_INT)),)),
    Exchange("GET_OR_CREATE_SCHEMA twice", (add_schema(avro(AVRO_INT)), add_schema(avro(AVRO_INT))), EXISTS),
    Exchange(
        "GET_OR_CREATE_SCHEMA that does not fit", (add_schema(avro(AVRO_INT)), add_schema(avro(AVRO_TEXT))), EXISTS
    ),
    Exchange("GET_OR_CREATE_SCHEMA that is none", (add_schema(avro(b"nonsense")),), EXISTS),
    Exchange(
        "a producer with a schema",
        (producer(schema=STRING), schema()),
    ),
    Exchange(
        "a producer whose schema does not fit",
        (producer(schema=avro(AVRO_INT)), producer(request=2, number=2, producer_name="q", schema=avro(AVRO_TEXT))),
    ),
    Exchange(
        "a consumer whose schema does not fit",
        (producer(schema=avro(AVRO_INT)), subscribe(request=2, schema=avro(AVRO_TEXT))),
    ),
    Exchange(
        "a producer without a schema where there is one",
        (producer(schema=avro(AVRO_INT)), producer(request=2, number=2, producer_name="q")),
    ),
)

PRODUCERS: Final = (
    Exchange(
        "PRODUCER, SEND and CLOSE_PRODUCER",
        (producer(), send(0), send(1), close_producer(), close_producer(10)),
    ),
    Exchange(
        "PRODUCER with the same id again",
        (producer(), producer(request=2)),
    ),
    Exchange(
        "PRODUCER with a name that is taken",
        (producer(), producer(request=2, number=2), producer(request=3, on=1)),
    ),
    Exchange(
        "PRODUCER of a newer epoch with a given name",
        (producer(), producer(request=2, epoch=3, on=1)),
    ),
    Exchange(
        "PRODUCER of a newer epoch with a generated name",
        (
            producer(user_provided_producer_name=False),
            producer(request=2, epoch=3, user_provided_producer_name=False, on=1),
        ),
    ),
    Exchange("PRODUCER in a namespace that is not there", (producer(NOWHERE),)),
    Exchange("PRODUCER on a name that is none", (producer("persistent://{t}"),)),
    Exchange("PRODUCER on a partitioned topic itself", (producer(),), PARTITIONED),
    Exchange("PRODUCER on a partition", (producer(TOPIC + "-partition-1"),), PARTITIONED),
    Exchange("PRODUCER on a partition that is not there", (producer(TOPIC + "-partition-7"),), PARTITIONED),
    Exchange("PRODUCER on a partition's name without a topic", (producer(TOPIC + "-partition-0"),)),
    Exchange("PRODUCER with a replicator's name", (producer(producer_name="pulsar.repl.other"),)),
    Exchange("PRODUCER that encrypts", (producer(encrypted=True),)),
    Exchange("PRODUCER with transactions", (producer(txn_enabled=True),)),
    Exchange(
        "PRODUCER with an initial subscription",
        (producer(initial_subscription_name="first"), subscribe(request=2, subscription="first")),
    ),
    Exchange("PRODUCER with an initial subscription without a name", (producer(initial_subscription_name=""),)),
    Exchange(
        "Exclusive beside Shared",
        (producer(), producer(request=2, number=2, producer_name="q", producer_access_mode=pb.Exclusive)),
    ),
    Exchange(
        "Shared beside Exclusive",
        (producer(producer_access_mode=pb.Exclusive), producer(request=2, number=2, producer_name="q")),
    ),
    Exchange(
        "WaitForExclusive waits and comes in",
        (
            producer(),
            producer(request=2, number=2, producer_name="q", producer_access_mode=pb.WaitForExclusive),
            close_producer(3),
        ),
    ),
    Exchange(
        "WaitForExclusive gives up",
        (
            producer(),
            producer(request=2, number=2, producer_name="q", producer_access_mode=pb.WaitForExclusive),
            close_producer(3, 2),
            send(0),
        ),
    ),
    Exchange(
        "ExclusiveWithFencing sends the others away",
        (
            producer(),
            producer(request=2, producer_name="q", producer_access_mode=pb.ExclusiveWithFencing, on=1),
            send(0),
        ),
    ),
    Exchange("CLOSE_PRODUCER of an id nobody has", (close_producer(),)),
    Exchange("SEND for a producer nobody has", (send(0),)),
    Exchange(
        "SEND after CLOSE_PRODUCER",
        (producer(), close_producer(), send(0)),
    ),
    Exchange(
        "SEND that was damaged",
        (producer(), send(0, damage=True), send(1)),
    ),
    Exchange(
        "SEND with another's name in its metadata",
        (producer(), send(0, metadata={"producer_name": "z"})),
    ),
    Exchange(
        "SEND of a repeated sequence id",
        (producer(), send(0), send(0)),
    ),
    Exchange(
        "SEND of a batch",
        (
            producer(),
            send(
                0,
                command={"num_messages": 3, "highest_sequence_id": 2},
                metadata={"num_messages_in_batch": 3, "highest_sequence_id": 2},
                payload=b"\0\0\0\2\x18\0" * 3,
            ),
        ),
    ),
    Exchange(
        "SEND with a place of its own",
        (producer(), send(0, command={"message_id": pb.MessageIdData(ledgerId=1, entryId=1)})),
    ),
    Exchange(
        "SEND of a marker",
        (producer(), send(0, command={"marker": True})),
    ),
    Exchange(
        "SEND in a transaction",
        (producer(), send(0, command={"txnid_most_bits": 1, "txnid_least_bits": 1})),
    ),
)

CONSUMERS: Final = (
    Exchange(
        "SUBSCRIBE, FLOW, ACK and CLOSE_CONSUMER",
        (
            producer(),
            subscribe(request=2),
            flow(),
            send(0),
            last_id(),
            ack([(1, 0)]),
            close_consumer(),
            close_consumer(10),
        ),
    ),
    Exchange(
        "SUBSCRIBE with the same id again",
        (subscribe(), subscribe(request=2)),
    ),
    Exchange(
        "SUBSCRIBE to what is Exclusive",
        (subscribe(), subscribe(request=2, number=2), subscribe(request=3, on=1)),
    ),
    Exchange(
        "SUBSCRIBE in another type",
        (subscribe(kind=SUBSCRIBE.Shared), subscribe(request=2, number=2, kind=SUBSCRIBE.Failover)),
    ),
    Exchange("SUBSCRIBE in a namespace that is not there", (subscribe(NOWHERE),)),
    Exchange("SUBSCRIBE on a name that is none", (subscribe("persistent://{t}"),)),
    Exchange("SUBSCRIBE where no topic is and none is made", (subscribe(force_topic_creation=False),)),
    Exchange("SUBSCRIBE to a partitioned topic itself", (subscribe(),), PARTITIONED),
    Exchange("SUBSCRIBE to a partition that is not there", (subscribe(TOPIC + "-partition-7"),), PARTITIONED),
    Exchange("SUBSCRIBE without a name", (subscribe(subscription=""),)),
    Exchange("SUBSCRIBE with a slash in the name", (subscribe(subscription="a/b"),)),
    Exchange("SUBSCRIBE with a replicator's name", (subscribe(subscription="pulsar.repl.other"),)),
    Exchange(
        "a reader",
        (subscribe(durable=False, start_message_id=EARLIEST), last_id()),
    ),
    Exchange(
        "a reader by a durable subscription's name",
        (subscribe(), close_consumer(), subscribe(request=3, number=2, durable=False, start_message_id=EARLIEST)),
    ),
    Exchange(
        "a durable consumer by a reader's name",
        (subscribe(durable=False, start_message_id=EARLIEST), subscribe(request=3, number=2)),
    ),
    Exchange(
        "a Failover consumer and another",
        (
            subscribe(kind=SUBSCRIBE.Failover, consumer_name="a"),
            subscribe(request=2, number=2, kind=SUBSCRIBE.Failover, consumer_name="b"),
        ),
    ),
    Exchange(
        "Key_Shared with ranges over each other",
        (
            subscribe(kind=SUBSCRIBE.Key_Shared, keySharedMeta=ranges((0, 10))),
            subscribe(request=2, number=2, kind=SUBSCRIBE.Key_Shared, keySharedMeta=ranges((5, 20))),
        ),
    ),
    Exchange("Key_Shared without ranges", (subscribe(kind=SUBSCRIBE.Key_Shared, keySharedMeta=ranges()),)),
    Exchange(
        "Key_Shared in another mode",
        (
            subscribe(kind=SUBSCRIBE.Key_Shared),
            subscribe(request=2, number=2, kind=SUBSCRIBE.Key_Shared, keySharedMeta=ranges((5, 20))),
        ),
    ),
    Exchange("read_compacted on Shared", (subscribe(kind=SUBSCRIBE.Shared, read_compacted=True),)),
    Exchange("FLOW for a consumer nobody has", (flow(),)),
    Exchange(
        "FLOW without permits",
        (subscribe(), flow(0)),
    ),
    Exchange(
        "ACK for a consumer nobody has",
        (ack([(1, 1)], request=None), ack([(1, 1)])),
    ),
    Exchange(
        "ACK of an entry nobody has",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1 << 40, 1)])),
    ),
    Exchange(
        "ACK of nothing",
        (subscribe(kind=SUBSCRIBE.Shared), ack([])),
    ),
    Exchange(
        "cumulative ACK of two",
        (subscribe(), ack([(1, 1), (1, 2)], kind=1)),
    ),
    Exchange(
        "cumulative ACK on Shared",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], kind=1)),
    ),
    Exchange(
        "cumulative ACK of an entry nobody has",
        (subscribe(), ack([(1 << 40, 1)], kind=1)),
    ),
    Exchange(
        "ACK with a validation error",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], validation_error=pb.CommandAck.ChecksumMismatch)),
    ),
    Exchange(
        "ACK in a transaction",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], txnid_most_bits=1, txnid_least_bits=1)),
    ),
    Exchange("redelivery for a consumer nobody has", (redeliver(),)),
    Exchange(
        "redelivery of what was sent",
        (producer(), subscribe(request=2, kind=SUBSCRIBE.Shared), flow(), send(0), redeliver()),
    ),
    Exchange(
        "redelivery of entries nobody has",
        (subscribe(kind=SUBSCRIBE.Shared), redeliver(ids=[(1 << 40, 1)])),
    ),
    Exchange(
        "UNSUBSCRIBE",
        (subscribe(), unsubscribe(), unsubscribe(9)),
    ),
    Exchange("UNSUBSCRIBE for a consumer nobody has", (unsubscribe(),)),
    Exchange(
        "UNSUBSCRIBE with other consumers",
        (
            subscribe(kind=SUBSCRIBE.Shared),
            subscribe(request=2, number=2, kind=SUBSCRIBE.Shared),
            unsubscribe(),
            flow(),
        ),
    ),
    Exchange(
        "UNSUBSCRIBE by force",
        (
            subscribe(kind=SUBSCRIBE.Shared),
            subscribe(request=2, number=2, kind=SUBSCRIBE.Shared),
            unsubscribe(force=True),
        ),
    ),
    Exchange(
        "UNSUBSCRIBE of a reader",
        (subscribe(durable=False, start_message_id=EARLIEST), unsubscribe()),
    ),
    Exchange(
        "SEEK",
        (subscribe(), seek(message_id=EARLIEST)),
    ),
    Exchange(
        "SEEK by time",
        (subscribe(), seek(message_publish_time=1)),
    ),
    Exchange("SEEK for a consumer nobody has", (seek(message_id=EARLIEST),)),
    Exchange(
        "SEEK to nowhere",
        (subscribe(), seek()),
    ),
    Exchange(
        "SEEK of a reader",
        (subscribe(durable=False, start_message_id=EARLIEST), seek(message_id=EARLIEST)),
    ),
    Exchange("the last message for a consumer nobody has", (last_id(),)),
    Exchange(
        "the last message of an empty topic",
        (subscribe(), last_id()),
    ),
    Exchange(
        "the last message is a batch",
        (
            producer(),
            subscribe(request=2),
            send(
                0,
                command={"num_messages": 3, "highest_sequence_id": 2},
                metadata={"num_messages_in_batch": 3, "highest_sequence_id": 2},
                payload=b"\0\0\0\2\x18\0" * 3,
            ),
            last_id(),
        ),
    ),
    Exchange(
        "CONSUMER_STATS",
        (subscribe(), stats()),
    ),
    Exchange("CONSUMER_STATS for a consumer nobody has", (stats(),)),
    Exchange("CLOSE_CONSUMER for a consumer nobody has", (close_consumer(),)),
)

VOLATILES: Final = (
    Exchange(
        "a non-persistent message to who listens",
        (
            producer(VOLATILE),
            subscribe(VOLATILE, 2),
            flow(),
            send(0),
            ack([(0, 0)]),
            close_consumer(),
            close_producer(10),
        ),
    ),
    Exchange(
        "a non-persistent message to nobody",
        (producer(VOLATILE), send(0)),
    ),
    Exchange(
        "a non-persistent message without permits",
        (producer(VOLATILE), subscribe(VOLATILE, 2), send(0), flow(), send(1)),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic in a namespace that is not there",
        (subscribe("non-persistent://public/nowhere/{t}"),),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic that is not made", (subscribe(VOLATILE, force_topic_creation=False),)
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic twice",
        (subscribe(VOLATILE), subscribe(VOLATILE, 2, 2)),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic in another type",
        (subscribe(VOLATILE, kind=SUBSCRIBE.Shared), subscribe(VOLATILE, 2, 2, kind=SUBSCRIBE.Failover)),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic as a reader",
        (subscribe(VOLATILE, durable=False, start_message_id=EARLIEST),),
    ),
    Exchange("SUBSCRIBE to a non-persistent topic, read_compacted", (subscribe(VOLATILE, read_compacted=True),)),
    Exchange(
        "Failover on a non-persistent topic",
        (
            subscribe(VOLATILE, kind=SUBSCRIBE.Failover, consumer_name="a"),
            subscribe(VOLATILE, 2, 2, kind=SUBSCRIBE.Failover, consumer_name="b"),
        ),
    ),
    Exchange(
        "the last message of a non-persistent topic",
        (subscribe(VOLATILE), last_id()),
    ),
    Exchange(
        "SEEK on a non-persistent topic",
        (subscribe(VOLATILE), seek(message_id=EARLIEST), seek(9, message_publish_time=1)),
    ),
    Exchange(
        "UNSUBSCRIBE from a non-persistent topic",
        (subscribe(VOLATILE), unsubscribe()),
    ),
    Exchange(
        "redelivery on a non-persistent topic",
        (
            producer(VOLATILE),
            subscribe(VOLATILE, 2, kind=SUBSCRIBE.Shared),
            flow(),
            send(0),
            redeliver(),
            redeliver(ids=[(0, 0)]),
        ),
    ),
    Exchange(
        "CONSUMER_STATS on a non-persistent topic",
        (subscribe(VOLATILE), stats()),
    ),
    Exchange(
        "access modes on a non-persistent topic",
        (producer(VOLATILE, producer_access_mode=pb.Exclusive), producer(VOLATILE, 2, 2, producer_name="q")),
    ),
    Exchange(
        "the same name on a non-persistent topic",
        (producer(VOLATILE), producer(VOLATILE, 2, 2)),
    ),
    Exchange(
        "a schema on a non-persistent topic",
        (producer(VOLATILE, schema=STRING), schema(VOLATILE)),
    ),
    Exchange(
        "a partition of a non-persistent topic",
        (producer(VOLATILE + "-partition-1"), producer(VOLATILE + "-partition-7", 2, 2), producer(VOLATILE, 3, 3)),
        VOLATILE_PARTITIONED,
    ),
    Exchange(
        "a damaged message on a non-persistent topic",
        (producer(VOLATILE), send(0, damage=True)),
    ),
)

TRANSACTIONS: Final = (
    Exchange(
        "TC_CLIENT_CONNECT",
        (say(T.TC_CLIENT_CONNECT_REQUEST, pb.CommandTcClientConnectRequest(request_id=1, tc_id=0)),),
    ),
    Exchange("NEW_TXN", (say(T.NEW_TXN, pb.CommandNewTxn(request_id=1, txn_ttl_millis=1000, tc_id=0)),)),
    Exchange("ADD_PARTITION_TO_TXN", (say(T.ADD_PARTITION_TO_TXN, pb.TxnRequest(request_id=1)),)),
    Exchange("ADD_SUBSCRIPTION_TO_TXN", (say(T.ADD_SUBSCRIPTION_TO_TXN, pb.TxnRequest(request_id=1)),)),
    Exchange("END_TXN", (say(T.END_TXN, pb.TxnRequest(request_id=1)),)),
    Exchange("END_TXN_ON_PARTITION", (say(T.END_TXN_ON_PARTITION, pb.TxnRequest(request_id=1)),)),
    Exchange("END_TXN_ON_SUBSCRIPTION", (say(T.END_TXN_ON_SUBSCRIPTION, pb.TxnRequest(request_id=1)),)),
)

EXCHANGES: Final = (*HANDSHAKE, *LOOKUPS, *SCHEMAS, *PRODUCERS, *CONSUMERS, *VOLATILES, *TRANSACTIONS)
