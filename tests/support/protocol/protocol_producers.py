# SPDX-License-Identifier: Apache-2.0
"""The part of ``protocol_table`` about producers and schemas."""

from __future__ import annotations

from typing import Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.protocol.protocol_commands import (
    AVRO_INT,
    AVRO_TEXT,
    EXISTS,
    NOWHERE,
    PARTITIONED,
    STRING,
    TOPIC,
    add_schema,
    avro,
    close_producer,
    producer,
    schema,
    subscribe,
)
from support.protocol.protocol_exchanges import Exchange, send

SCHEMAS: Final = (
    Exchange(
        "GET_SCHEMA of a topic without one",
        (producer(), schema()),
    ),
    Exchange("GET_SCHEMA of a missing topic", (schema(),)),
    Exchange("GET_SCHEMA with an empty version", (add_schema(avro(AVRO_INT)), schema(schema_version=b"")), EXISTS),
    Exchange(
        "GET_SCHEMA of a version",
        (add_schema(avro(AVRO_INT)), schema(schema_version=bytes(8)), schema(schema_version=bytes(7) + b"\5")),
        EXISTS,
    ),
    Exchange("GET_SCHEMA of an invalid name", (schema("persistent://{t}"),)),
    Exchange("GET_OR_CREATE_SCHEMA of a missing topic", (add_schema(avro(AVRO_INT)),)),
    Exchange("GET_OR_CREATE_SCHEMA twice", (add_schema(avro(AVRO_INT)), add_schema(avro(AVRO_INT))), EXISTS),
    Exchange(
        "GET_OR_CREATE_SCHEMA with an incompatible schema",
        (add_schema(avro(AVRO_INT)), add_schema(avro(AVRO_TEXT))),
        EXISTS,
    ),
    Exchange("GET_OR_CREATE_SCHEMA with an invalid schema", (add_schema(avro(b"nonsense")),), EXISTS),
    Exchange(
        "a producer with a schema",
        (producer(schema=STRING), schema()),
    ),
    Exchange(
        "a producer with an incompatible schema",
        (producer(schema=avro(AVRO_INT)), producer(request=2, number=2, producer_name="q", schema=avro(AVRO_TEXT))),
    ),
    Exchange(
        "a consumer with an incompatible schema",
        (producer(schema=avro(AVRO_INT)), subscribe(request=2, schema=avro(AVRO_TEXT))),
    ),
    Exchange(
        "a producer without a schema on a topic with one",
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
    Exchange("PRODUCER in a missing namespace", (producer(NOWHERE),)),
    Exchange("PRODUCER on an invalid name", (producer("persistent://{t}"),)),
    Exchange("PRODUCER on a partitioned topic itself", (producer(),), PARTITIONED),
    Exchange("PRODUCER on a partition", (producer(TOPIC + "-partition-1"),), PARTITIONED),
    Exchange("PRODUCER on a missing partition", (producer(TOPIC + "-partition-7"),), PARTITIONED),
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
        "WaitForExclusive waits and is admitted",
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
        "ExclusiveWithFencing fences the others",
        (
            producer(),
            producer(request=2, producer_name="q", producer_access_mode=pb.ExclusiveWithFencing, on=1),
            send(0),
        ),
    ),
    Exchange("CLOSE_PRODUCER of an unknown id", (close_producer(),)),
    Exchange("SEND for an unknown producer", (send(0),)),
    Exchange(
        "SEND after CLOSE_PRODUCER",
        (producer(), close_producer(), send(0)),
    ),
    Exchange(
        "SEND with a wrong checksum",
        (producer(), send(0, damage=True), send(1)),
    ),
    Exchange(
        "SEND with another producer's name in its metadata",
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
        "SEND with a message id",
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
