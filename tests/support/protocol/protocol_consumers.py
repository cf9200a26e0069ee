# SPDX-License-Identifier: Apache-2.0
"""The part of ``protocol_table`` about consumers."""

from __future__ import annotations

from typing import Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.protocol.protocol_commands import (
    EARLIEST,
    NOWHERE,
    PARTITIONED,
    SUBSCRIBE,
    TOPIC,
    ack,
    close_consumer,
    flow,
    last_id,
    producer,
    ranges,
    redeliver,
    seek,
    stats,
    subscribe,
    unsubscribe,
)
from support.protocol.protocol_exchanges import Exchange, send

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
        "SUBSCRIBE to an Exclusive subscription",
        (subscribe(), subscribe(request=2, number=2), subscribe(request=3, on=1)),
    ),
    Exchange(
        "SUBSCRIBE with another type",
        (subscribe(kind=SUBSCRIBE.Shared), subscribe(request=2, number=2, kind=SUBSCRIBE.Failover)),
    ),
    Exchange("SUBSCRIBE in a missing namespace", (subscribe(NOWHERE),)),
    Exchange("SUBSCRIBE on an invalid name", (subscribe("persistent://{t}"),)),
    Exchange("SUBSCRIBE to a missing topic without creating it", (subscribe(force_topic_creation=False),)),
    Exchange("SUBSCRIBE to a partitioned topic itself", (subscribe(),), PARTITIONED),
    Exchange("SUBSCRIBE to a missing partition", (subscribe(TOPIC + "-partition-7"),), PARTITIONED),
    Exchange("SUBSCRIBE without a name", (subscribe(subscription=""),)),
    Exchange("SUBSCRIBE with a slash in the name", (subscribe(subscription="a/b"),)),
    Exchange("SUBSCRIBE with a replicator's name", (subscribe(subscription="pulsar.repl.other"),)),
    Exchange(
        "a reader",
        (subscribe(durable=False, start_message_id=EARLIEST), last_id()),
    ),
    Exchange(
        "a reader with a durable subscription's name",
        (subscribe(), close_consumer(), subscribe(request=3, number=2, durable=False, start_message_id=EARLIEST)),
    ),
    Exchange(
        "a durable consumer with a reader's name",
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
        "Key_Shared with overlapping ranges",
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
    Exchange("FLOW for an unknown consumer", (flow(),)),
    Exchange(
        "FLOW without permits",
        (subscribe(), flow(0)),
    ),
    Exchange(
        "ACK for an unknown consumer",
        (ack([(1, 1)], request=None), ack([(1, 1)])),
    ),
    Exchange(
        "ACK of an unknown entry",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1 << 40, 1)])),
    ),
    Exchange(
        "ACK of nothing",
        (subscribe(kind=SUBSCRIBE.Shared), ack([])),
    ),
    Exchange(
        "cumulative ACK of two entries",
        (subscribe(), ack([(1, 1), (1, 2)], kind=pb.CommandAck.Cumulative)),
    ),
    Exchange(
        "cumulative ACK on Shared",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], kind=pb.CommandAck.Cumulative)),
    ),
    Exchange(
        "cumulative ACK of an unknown entry",
        (subscribe(), ack([(1 << 40, 1)], kind=pb.CommandAck.Cumulative)),
    ),
    Exchange(
        "ACK with a validation error",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], validation_error=pb.CommandAck.ChecksumMismatch)),
    ),
    Exchange(
        "ACK in a transaction",
        (subscribe(kind=SUBSCRIBE.Shared), ack([(1, 1)], txnid_most_bits=1, txnid_least_bits=1)),
    ),
    Exchange("redelivery for an unknown consumer", (redeliver(),)),
    Exchange(
        "redelivery of delivered messages",
        (producer(), subscribe(request=2, kind=SUBSCRIBE.Shared), flow(), send(0), redeliver()),
    ),
    Exchange(
        "redelivery of unknown entries",
        (subscribe(kind=SUBSCRIBE.Shared), redeliver(ids=[(1 << 40, 1)])),
    ),
    Exchange(
        "UNSUBSCRIBE",
        (subscribe(), unsubscribe(), unsubscribe(9)),
    ),
    Exchange("UNSUBSCRIBE for an unknown consumer", (unsubscribe(),)),
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
    Exchange("SEEK for an unknown consumer", (seek(message_id=EARLIEST),)),
    Exchange(
        "SEEK without a position",
        (subscribe(), seek()),
    ),
    Exchange(
        "SEEK of a reader",
        (subscribe(durable=False, start_message_id=EARLIEST), seek(message_id=EARLIEST)),
    ),
    Exchange("the last message for an unknown consumer", (last_id(),)),
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
    Exchange("CONSUMER_STATS for an unknown consumer", (stats(),)),
    Exchange("CLOSE_CONSUMER for an unknown consumer", (close_consumer(),)),
)
