# SPDX-License-Identifier: Apache-2.0
"""Messages of the progress exchange in readable form."""

from __future__ import annotations

from typing import Protocol

from meridian_broker.positions import Progress
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Delta,
    DeltaAck,
    Digest,
    Fetch,
    Hello,
    PeerMessage,
    State,
)
from meridian_broker.replication.progress.statuses import PeerStatus


class Namer(Protocol):
    """Something that can name acked messages."""

    def acked(self, topic: str, progress: Progress) -> str: ...


def tell(namer: Namer, source: str, target: str, message: PeerMessage) -> str:
    """``us -> eu DELTA 2 t/sub us/1:0``."""
    return f"{source} -> {target} {_message(namer, message)}"


def _short(topic: str) -> str:
    return topic.rpartition("/")[2]


def _item(namer: Namer, topic: str, subscription: str, progress: bytes) -> str:
    return f"{_short(topic)}/{subscription} {namer.acked(_short(topic), Progress.decode(progress))}"


def _message(namer: Namer, message: PeerMessage) -> str:
    match message:
        case Hello():
            return "HELLO answer" if message.answer else "HELLO"
        case Delta():
            return f"DELTA {message.number} " + "; ".join(
                _item(namer, item.topic, item.subscription, item.progress)
                + (" with its record" if item.record else "")
                + (f", for {' '.join(item.unreached)} too" if item.unreached else "")
                + (", passed on" if item.passed_on else "")
                for item in message.items
            )
        case DeltaAck():
            return f"DELTA_ACK {message.number}" + "".join(f", {r.code}: {r.reason}" for r in message.refusals)
        case Digest():
            return "DIGEST " + ", ".join(
                f"{_short(topic.topic)} {'digest' if topic.subscriptions is None else 'listing'}"
                for topic in message.topics
            )
        case Fetch():
            return "FETCH " + ", ".join(
                _short(q.topic)
                + (f"/{q.subscription}" if q.subscription else "")
                + (" state" if q.state else " listing")
                for q in message.questions
            )
        case State():
            return "STATE " + "; ".join(
                _item(namer, item.topic, item.subscription, item.progress) for item in message.items
            )
        case Barrier():
            return f"BARRIER {_short(message.topic)}/{message.subscription}"
        case BarrierDone():
            return "BARRIER_DONE " + (message.reason or ("with news" if message.progress else "nothing new"))
        case _:
            return type(message).__name__


def link_parts(status: PeerStatus) -> list[str]:
    """What is open between a subscription and another region, and why."""
    parts = [f"{status.pending} unconfirmed"] if status.pending else []
    if status.reason:
        parts.append(status.detail or status.reason)
    if status.lag_entries:
        parts.append(f"{status.lag_entries} entries behind")
    return parts
