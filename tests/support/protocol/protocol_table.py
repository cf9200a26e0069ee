# SPDX-License-Identifier: Apache-2.0
"""The exchanges of ``protocol_answers.txt``: every command, used correctly and incorrectly.

Each has a name that describes the situation, and steps. Requests are numbered in the order of their creation.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.protocol.protocol_commands import (
    ALONE,
    EARLIEST,
    EXISTS,
    HELLO,
    LONG,
    NOWHERE,
    PARTITIONED,
    STRING,
    SUBSCRIBE,
    TOPIC,
    VOLATILE,
    VOLATILE_PARTITIONED,
    T,
    ack,
    close_consumer,
    close_producer,
    flow,
    last_id,
    lookup,
    partitions,
    producer,
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
from support.protocol.protocol_consumers import CONSUMERS
from support.protocol.protocol_exchanges import Exchange, Say, say, send
from support.protocol.protocol_producers import PRODUCERS, SCHEMAS

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
    Exchange("an unsolicited PONG", (say(T.PONG, pb.CommandPong()),)),
    Exchange("SUCCESS from a client", (say(T.SUCCESS, pb.CommandSuccess(request_id=1)),)),
    Exchange("ERROR from a client", (say(T.ERROR, pb.CommandError(request_id=1, error=1, message="m")),)),
    Exchange("AUTH_RESPONSE without a challenge", (say(T.AUTH_RESPONSE, pb.CommandAuthResponse()),)),
    Exchange(
        "a command that only brokers send", (say(T.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=1)),)
    ),
    Exchange("a command without a type", (Say(lambda _: b"\0\0\0\4\0\0\0\0"),)),
    Exchange("a frame of nonsense", (Say(lambda _: b"\0\0\0\x08\0\0\0\4\xff\xff\xff\xff"),)),
    Exchange("a frame larger than the limit", (Say(lambda _: b"\x7f\0\0\0\0\0\0\4"),)),
)

LOOKUPS: Final = (
    Exchange("LOOKUP of a missing topic", (lookup(),)),
    Exchange("LOOKUP in a missing namespace", (lookup(NOWHERE),)),
    Exchange("LOOKUP in a missing tenant", (lookup("persistent://nobody/default/{t}"),)),
    Exchange("LOOKUP of an invalid name", (lookup("persistent://{t}"), lookup("what://a/b/{t}", 2))),
    Exchange("LOOKUP with an unknown listener", (lookup(advertised_listener_name="other"),)),
    Exchange("LOOKUP of a partition", (lookup(TOPIC + "-partition-1"),), PARTITIONED),
    Exchange("LOOKUP of a non-persistent topic", (lookup(VOLATILE),)),
    Exchange(
        "partitions of a topic that the request creates",
        (partitions(), partitions(request=2, metadata_auto_creation_enabled=False)),
    ),
    Exchange(
        "partitions of a topic that the request does not create", (partitions(metadata_auto_creation_enabled=False),)
    ),
    Exchange(
        "partitions of a partitioned topic",
        (partitions(), partitions(TOPIC + "-partition-1", 2), partitions(TOPIC + "-partition-7", 3)),
        PARTITIONED,
    ),
    Exchange(
        "partitions of a partition's name without a topic",
        (partitions(TOPIC + "-partition-1", metadata_auto_creation_enabled=False),),
    ),
    Exchange("partitions in a missing namespace", (partitions(NOWHERE),)),
    Exchange("partitions of an invalid name", (partitions("persistent://{t}"),)),
    Exchange(
        "partitions of a non-persistent topic",
        (partitions(VOLATILE), partitions(VOLATILE, 2, metadata_auto_creation_enabled=False)),
    ),
    Exchange(
        "partitions of a non-persistent topic that the request does not create",
        (partitions(VOLATILE, metadata_auto_creation_enabled=False),),
    ),
    Exchange("partitions of a partitioned non-persistent topic", (partitions(VOLATILE),), VOLATILE_PARTITIONED),
    Exchange(
        "topics of a namespace by pattern", (topics(), topics("public/default/{t}", 2), topics(TOPIC + "z", 3)), EXISTS
    ),
    Exchange("topics with their partitions", (topics(),), PARTITIONED),
    Exchange(
        "topics by a part of their name",
        (topics("{t}"), topics("persistent://public/default/{t}$", 2), topics("^persistent://public/default/{t}", 3)),
        EXISTS,
    ),
    Exchange("topics of a missing namespace", (topics(namespace="public/nowhere"),)),
    Exchange(
        "topics of an invalid namespace name", (topics(namespace="nowhere"), topics(namespace="a/b/c/d", request=2))
    ),
    Exchange("topics by an invalid pattern", (topics("public/{t}/one(", namespace="public/{t}"),), ALONE),
    Exchange("topics by a pattern that RE2 lacks", (topics("public/{t}/(?!a)one", namespace="public/{t}"),), ALONE),
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
    Exchange("a watcher with the same id again", (watch(), watch(request=2), watch(TOPIC + "z", request=3)), EXISTS),
    Exchange("a watcher of a missing namespace", (watch(namespace="public/nowhere"),)),
    Exchange("a watcher of an invalid namespace name", (watch(namespace="nowhere"),)),
    Exchange("a watcher with a long pattern", (watch(LONG),)),
    Exchange("a watcher with an invalid pattern", (watch("public/default/("),)),
    Exchange("an unknown watcher is closed", (unwatch(),)),
)


VOLATILES: Final = (
    Exchange(
        "a non-persistent message to a consumer",
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
        "SUBSCRIBE to a non-persistent topic in a missing namespace",
        (subscribe("non-persistent://public/nowhere/{t}"),),
    ),
    Exchange(
        "SUBSCRIBE to a missing non-persistent topic without creating it",
        (subscribe(VOLATILE, force_topic_creation=False),),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic twice",
        (subscribe(VOLATILE), subscribe(VOLATILE, 2, 2)),
    ),
    Exchange(
        "SUBSCRIBE to a non-persistent topic with another type",
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
        "the same producer name on a non-persistent topic",
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
        "a message with a wrong checksum on a non-persistent topic",
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
