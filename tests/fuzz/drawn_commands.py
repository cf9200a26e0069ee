# SPDX-License-Identifier: Apache-2.0
"""Commands of a hostile client, drawn field by field from the protocol's own description.

Most fields are omitted or name what exists, so that the client gets far enough to do harm; the others take extreme
values of their types, lengths from zero to far too much, and repeat up to thousands of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.metadata import build_body

T = pb.BaseCommand
PRODUCERS: Final = (1, 1, 1, 2)
CONSUMERS: Final = (1, 1, 2, 2, 3)
TOPIC: Final = "{topic}"
"""Stands for the topic in a command drawn before the topic exists."""
SUBSCRIPTIONS: Final = ("hostile", "hostile-2")

_ENDS: Final[dict[str, tuple[int, ...]]] = {
    "int32": (-(1 << 31), -1, 0, 1, 2, 1000, 1 << 20, (1 << 20) + 1, (1 << 31) - 1),
    "uint32": (0, 1, 1000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    "int64": (-(1 << 63), -1, 0, 1, (1 << 63) - 1, 0x5555555555555555),
    "uint64": (0, 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
}
_TEXTS: Final = ("", "x", "a\x1b[2Jb\nc", "ä" * 40, "y" * 1025, "z" * 65_536, "../..", "pulsar.repl.x", "__compaction")
_SIZES: Final = (1000, 20_000)
_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "producer_id": PRODUCERS,
    "consumer_id": CONSUMERS,
    "subscription": SUBSCRIPTIONS,
    "producer_name": ("hostile", "hostile-2"),
    "publish_time": (1_790_000_000_000,),
    "uuid": ("chunks",),
    "protocol_version": (21,),
}
"""Field -> its usual values."""
_KEPT: Final[dict[tuple[str, str], tuple[Any, ...]]] = {
    # Without authorization, any client may fence or exclude other producers of a topic, delete its messages by a seek,
    # or use any subscription. This client may not: it sends nothing that is allowed to do harm.
    ("CommandProducer", "producer_access_mode"): (pb.Shared,),
    ("CommandSubscribe", "subscription"): SUBSCRIPTIONS,
}
_TRANSACTION: Final = frozenset(("txnid_least_bits", "txnid_most_bits"))
_REFUSED: Final[dict[str, frozenset[str]]] = {
    "CommandSend": _TRANSACTION | {"marker", "origin", "message_id"},
    "MessageMetadata": _TRANSACTION | {"marker_type", "replicated_from"},
    "CommandAck": _TRANSACTION,
}
"""Fields that no client may set: a command with one of them gets no further."""


@dataclass(frozen=True)
class Step:
    """A command of the client. ``acks`` > 0: the number of received ids to put into it when it is sent."""

    command: Any
    payload: bytes = b""
    acks: int = 0

    def frame(self, topic: str, delivered: list[Any]) -> bytes:
        """:param topic: the topic of the command.
        :param delivered: ids of the messages that the client has received."""
        command = pb.BaseCommand()
        command.CopyFrom(self.command)
        inner = getattr(command, _name(command))
        if getattr(inner, "topic", None) == TOPIC:
            inner.topic = topic
        if self.acks:
            ids = inner.message_id if _name(command) == "ack" else inner.message_ids
            for number, place in enumerate(delivered[-self.acks :]):
                if number < len(ids):
                    ids[number].ledgerId, ids[number].entryId = place.ledgerId, place.entryId
                else:
                    ids.append(place)
        encoded = command.SerializePartialToString()
        total = 4 + len(encoded) + len(self.payload)
        return total.to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded + self.payload

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For hypothesis, which would otherwise show each line of the command."""
        command = " ".join(str(self.command).split())
        payload = f", {len(self.payload)} bytes {self.payload[:200]!r}" if self.payload else ""
        printer.text(f"Step({command[:400]}{payload}{f', acks {self.acks}' if self.acks else ''})")


def _name(command: Any) -> str:
    """Name of the field that a command has beside its type."""
    return next(str(field.name) for field, _ in command.ListFields() if field.name != "type")


def _value(draw: st.DrawFn, field: Any, known: Mapping[str, tuple[Any, ...]], depth: int) -> Any:
    kept = _KEPT.get((field.containing_type.name, field.name))
    if kept is not None:
        return draw(st.sampled_from(kept))
    usual = known.get(field.name) or _CHOICES.get(field.name)
    if usual is not None and draw(st.integers(0, 9)) < 8:
        return draw(st.sampled_from(usual))
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return drawn_message(draw, field.message_type, known, depth + 1)
    if field.cpp_type == field.CPPTYPE_ENUM:
        return draw(st.sampled_from([one.number for one in field.enum_type.values]))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return draw(st.booleans())
    if field.cpp_type == field.CPPTYPE_STRING:
        text = draw(st.sampled_from(_TEXTS))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw(st.sampled_from((0.0, -1.0, float("inf"), float("nan"))))
    kinds = {
        field.CPPTYPE_INT32: "int32",
        field.CPPTYPE_UINT32: "uint32",
        field.CPPTYPE_INT64: "int64",
        field.CPPTYPE_UINT64: "uint64",
    }
    return draw(st.sampled_from(_ENDS[kinds[field.cpp_type]]))


def drawn_message(draw: st.DrawFn, descriptor: Any, known: Mapping[str, tuple[Any, ...]], depth: int = 0) -> Any:
    """A message with this descriptor: required fields, and some of the others."""
    message: Any = GetMessageClass(descriptor)()
    optional = [field.name for field in descriptor.fields if field.label != field.LABEL_REQUIRED]
    if draw(st.integers(0, 9)):
        optional = [name for name in optional if name not in _REFUSED.get(descriptor.name, ())]
    chosen = set(draw(st.lists(st.sampled_from(optional), max_size=3)) if optional and depth <= 2 else ())
    for field in descriptor.fields:
        if field.label != field.LABEL_REQUIRED and field.name not in chosen:
            continue
        if field.label == field.LABEL_REPEATED:
            values = [_value(draw, field, known, depth) for _ in range(draw(st.integers(1, 2)))]
            repeats = draw(st.sampled_from(_SIZES)) if draw(st.integers(0, 9)) == 0 else len(values)
            longest = max((v.ByteSize() if hasattr(v, "ByteSize") else len(str(v))) for v in values)
            repeats = max(1, min(repeats, 1_000_000 // (longest + 1)))  # a few MiB at most in total
            getattr(message, field.name).extend([values[number % len(values)] for number in range(repeats)])
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(_value(draw, field, known, depth))
        else:
            setattr(message, field.name, _value(draw, field, known, depth))
    return message


KINDS: Final = (
    "subscribe", "producer", "send", "ack", "flow", "unsubscribe", "close_producer", "close_consumer", "seek",
    "redeliverUnacknowledgedMessages", "partitionMetadata", "lookupTopic", "consumerStats", "getLastMessageId",
    "getTopicsOfNamespace", "getSchema", "getOrCreateSchema", "authResponse", "watchTopicList", "watchTopicListClose",
    "newTxn", "addPartitionToTxn", "addSubscriptionToTxn", "endTxn", "tcClientConnectRequest", "connect",
)  # fmt: skip
"""Commands that a client may send, by their fields in ``BaseCommand``."""
_OFTEN: Final = ("subscribe", "producer", "send", "send", "ack", "ack", "flow", "seek")


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Any command, usually on the topic."""
    known = {"topic": (TOPIC,), "namespace": ("public/default",)}
    name = draw(st.sampled_from(_OFTEN if draw(st.booleans()) else KINDS))
    field = T.DESCRIPTOR.fields_by_name[name]
    command = pb.BaseCommand()
    command.type = field.number
    getattr(command, name).CopyFrom(drawn_message(draw, field.message_type, known))
    if name == "send":
        return Step(command, draw(bodies()))
    acks = draw(st.sampled_from((0, 1, 5))) if name in ("ack", "redeliverUnacknowledgedMessages") else 0
    return Step(command, acks=acks)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """What follows SEND: metadata and a payload, rarely broken."""
    metadata = drawn_message(draw, pb.MessageMetadata.DESCRIPTOR, {"replicate_to": ("us",)})
    payload = draw(st.sampled_from((b"", b"x", b"hostile" * 10, bytes(300), b"\x78\x9c" + bytes(100))))
    body = build_body(metadata.SerializePartialToString(), payload)
    return body if draw(st.integers(0, 9)) else body[: draw(st.integers(0, len(body)))]


def opening() -> list[Step]:
    """A beginning for the client: a producer, consumers on a Shared and a Key_Shared subscription, and permits."""
    made: list[tuple[int, Any]] = [
        (T.PRODUCER, pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="hostile"))
    ]
    for number, kind in enumerate((pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared), 1):
        ask = pb.CommandSubscribe(
            topic=TOPIC, subscription=SUBSCRIPTIONS[number - 1], subType=kind, consumer_id=number, request_id=1 + number
        )
        made += [(T.SUBSCRIBE, ask), (T.FLOW, pb.CommandFlow(consumer_id=number, messagePermits=1000))]
    return [Step(pb.BaseCommand.FromString(encode.simple(kind, inner)[8:])) for kind, inner in made]
