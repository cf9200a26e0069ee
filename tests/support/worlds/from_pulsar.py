# SPDX-License-Identifier: Apache-2.0
"""The replicator of an Apache Pulsar region, as a topic sees it."""

from __future__ import annotations

from typing import Any

from meridian_broker.positions.position import Position
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send
from support.worlds.topic_of_one_region import Region

APACHE = "apache"


class Port:
    """The connection; records its answers in order."""

    def __init__(self) -> None:
        self.answers: list[tuple[Any, ...]] = []

    def stored(self, _: Producer, sends: list[Send], first: Position) -> None:
        self.answers += [("stored", one.sequence_id, one.highest_sequence_id) for one in sends]

    def dropped(self, sends: list[Send]) -> None:
        self.answers += [("dropped", one.sequence_id) for one in sends]

    def has_read(self, *_: object) -> None: ...

    def repeated(self, _: Producer, send: Send) -> None:
        self.answers.append(("repeated", send.sequence_id, send.highest_sequence_id))

    def refused(self, _: Producer, send: Send, error: Exception) -> None:
        self.answers.append(("refused", send.sequence_id, str(error)))

    def disconnect_producer(self, _: Producer) -> None:
        self.answers.append(("closed",))

    def hold(self, _: object) -> None:
        raise AssertionError


def sent(number: int, source: str | None, **fields: Any) -> Send:
    """A message as Pulsar's replicator sends it."""
    said = pb.MessageMetadata(
        producer_name="theirs", sequence_id=number, publish_time=1, **({"replicated_from": APACHE} | fields)
    )
    if source is not None:
        said.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value=source)
    body = metadata.build_body(said.SerializeToString(), b"x")
    (send,) = FrameDecoder().feed(b"".join(encode.send(1, number, body)))
    assert isinstance(send, Send)
    return send


async def entered(one: Region, *, names_sources: bool = True) -> tuple[Producer, Port]:
    """Connect the replicator."""
    port = Port()
    producer = Producer(
        *(one.topic, port, 1, f"pulsar.repl.{APACHE}-->{one.name}"),
        name_is_given=True,
        epoch=0,
        connected_since_ms=0,
        remote_region=APACHE,
        names_sources=names_sources,
    )
    one.topic.pulsar.begin(APACHE)
    one.topic.admission.add(producer)
    await one.settle()
    return producer, port
