# SPDX-License-Identifier: Apache-2.0
"""What is known of a subscription besides its progress, and how two regions' knowledge of it becomes one (R15, R17)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from meridian_broker.positions import ZERO, Stamp


@dataclass(slots=True)
class SubscriptionRecord:
    """What is known of a subscription besides its progress; travels to every region of the topic (R15, R17)."""

    name: str
    replicated: bool = False
    flag_stamp: Stamp = ZERO
    """When and where the replicated flag was set; later wins (R17)."""
    created: Stamp = ZERO
    properties: dict[str, str] = field(default_factory=dict)


def join_records(one: SubscriptionRecord, other: SubscriptionRecord) -> SubscriptionRecord:
    """What two regions know of one subscription: the earlier creation, the later flag (R15, R17)."""
    created = other if one.created.beats(other.created) else one
    flag = other if other.flag_stamp.beats(one.flag_stamp) else one
    return SubscriptionRecord(one.name, flag.replicated, flag.flag_stamp, created.created, created.properties)


def encode_record(record: SubscriptionRecord) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def decode_record(data: bytes) -> SubscriptionRecord:
    """:raises ValueError: no record."""
    try:
        fields = json.loads(data)
        return SubscriptionRecord(
            fields["name"],
            bool(fields["replicated"]),
            _stamp(fields["flag_stamp"]),
            _stamp(fields["created"]),
            dict(fields["properties"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{data[:80]!r} is no subscription record: {error}") from error


def _stamp(value: list[object]) -> Stamp:
    time_ms, counter, region = value
    return Stamp(int(str(time_ms)), int(str(counter)), str(region))
