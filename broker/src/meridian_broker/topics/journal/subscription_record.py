# SPDX-License-Identifier: Apache-2.0
"""A subscription's record, without its progress, and how the records of two regions merge (R15, R17)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from meridian_broker.positions import ZERO, Stamp
from meridian_broker.replication.leases import quorums
from meridian_broker.replication.leases.quorums import VoterSets

LOCAL: Final = "local"
"""Each region dispatches whatever is not acknowledged in any region (R25)."""
ORIGIN: Final = "origin"
"""Each region dispatches what was published there, or what it took over; each message is dispatched by one region at
a time (R26).
"""

NAME_BYTES_MAX: Final = (1 << 16) - 1
"""Limit of names in records of the progress log. Names from clients have a lower limit (``bounds/clients.py``)."""

_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_TEXT: Final = json.encoder.encode_basestring_ascii
_NONE: Final[Mapping[str, str]] = {}
"""The value for nearly all subscriptions: one shared object."""
_NOBODY_VOTES: Final = VoterSets()
"""Likewise."""


@dataclass(slots=True)
class SubscriptionRecord:
    """What is known of a subscription besides its progress; replicated to every region of the topic (R15-R17)."""

    name: str
    replicated: bool = False
    flag_stamp: Stamp = ZERO
    """When and where the replicated flag was set; the later one wins (R17). ``ZERO``: it never was."""
    created: Stamp = ZERO
    """``ZERO``: it is deleted, and this is its tombstone (R16)."""
    properties: Mapping[str, str] = field(default_factory=lambda: _NONE)
    deleted: Stamp = ZERO
    """Stamp of the previous deletion, which identifies its incarnation. ``ZERO``: it was never deleted."""
    forced: bool = False
    """The deletion was forced."""
    scope: str = LOCAL
    """Which messages a region dispatches (R25, R26)."""
    preferred: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Origin region -> the region that dispatches its messages by an operator's command; by default the origin
    itself.
    """
    scope_stamp: Stamp = ZERO
    """When and where scope, preferred holders and witness were set; the later one wins. ``ZERO``: they never were."""
    witness: str = ""
    """A region outside the topic that votes on who dispatches what; empty: none."""
    voter_sets: VoterSets = _NOBODY_VOTES
    """Who votes, as far as the region that stores the record knows."""

    def __post_init__(self) -> None:
        self.properties = self.properties or _NONE
        self.preferred = self.preferred or _NONE

    @property
    def is_known_elsewhere(self) -> bool:
        """Whether other regions know of it: it is replicated, or was before the flag was switched off."""
        return self.replicated or self.flag_stamp != ZERO

    @property
    def is_gone(self) -> bool:
        return self.created == ZERO and self.deleted != ZERO


def join_records(one: SubscriptionRecord, other: SubscriptionRecord) -> SubscriptionRecord:
    """Join what two regions know of one subscription: the later incarnation and, within it, the earlier creation and
    the later flag.
    """
    if one.deleted != other.deleted:
        return one if one.deleted > other.deleted else other
    if one.is_gone or other.is_gone:
        return other if one.is_gone else one
    created = other if one.created.beats(other.created) else one
    flag = other if other.flag_stamp.beats(one.flag_stamp) else one
    scope = other if other.scope_stamp.beats(one.scope_stamp) else one
    return replace(
        created,
        replicated=flag.replicated,
        flag_stamp=flag.flag_stamp,
        scope=scope.scope,
        preferred=scope.preferred,
        scope_stamp=scope.scope_stamp,
        witness=scope.witness,
        voter_sets=one.voter_sets.joined(other.voter_sets),
    )


def encode_record(record: SubscriptionRecord) -> bytes:
    """Encode a record. If it was never deleted, or no scope was set, the result is what versions without tombstones
    and scopes wrote.
    """
    is_usual = not (record.replicated or record.properties or record.witness or record.voter_sets.lists)
    if is_usual and record.flag_stamp == record.deleted == record.scope_stamp == ZERO:
        return _encode_usual(record)
    fields: dict[str, object] = {
        "name": record.name,
        "replicated": record.replicated,
        "flag_stamp": record.flag_stamp,
        "created": record.created,
        "properties": dict(record.properties),
    }
    if record.deleted != ZERO:
        fields |= {"deleted": record.deleted, "forced": record.forced}
    if record.scope_stamp != ZERO:
        preferred = dict(sorted(record.preferred.items()))
        fields |= {"scope": record.scope, "homes": preferred, "scope_stamp": record.scope_stamp}
    if record.witness:
        fields["witness"] = record.witness
    if record.voter_sets.lists:
        fields["voters"] = quorums.to_json(record.voter_sets)
    return _ENCODE(fields).encode()


def _encode_usual(record: SubscriptionRecord) -> bytes:
    """What ``encode_record`` makes of a record with nothing but a name and its creation, in a tenth of the time: a
    snapshot has tens of thousands of them."""
    time_ms, counter, region = record.created
    return (
        f'{{"name":{_TEXT(record.name)},"replicated":false,"flag_stamp":[0,0,""],'
        f'"created":[{time_ms},{counter},{_TEXT(region)}],"properties":{{}}}}'
    ).encode()


def decode_record(data: bytes) -> SubscriptionRecord:
    """Decode a record of the progress log or of another region. Any input is possible.

    :raises ValueError: it is not a valid record, or could not be stored here.
    """
    try:
        fields = json.loads(data)
        return SubscriptionRecord(
            _name(fields["name"]),
            bool(fields["replicated"]),
            _stamp(fields["flag_stamp"]),
            _stamp(fields["created"]),
            _texts(fields["properties"]),
            _stamp(fields["deleted"]) if "deleted" in fields else ZERO,
            bool(fields.get("forced", False)),
            _text(fields.get("scope", LOCAL)),
            _texts(fields.get("homes", {})),
            _stamp(fields["scope_stamp"]) if "scope_stamp" in fields else ZERO,
            _text(fields.get("witness", "")),
            quorums.from_json(fields["voters"]) if "voters" in fields else _NOBODY_VOTES,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{data[:80]!r} is not a subscription record: {str(error)[:200]}") from None


def _name(value: object) -> str:
    name = _text(value)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"its name has more than {NAME_BYTES_MAX} bytes")
    return name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} found where a string is expected")
    value.encode()  # half of a surrogate pair is not text
    return value


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} found where a map of strings is expected")
    return {_text(key): _text(text) for key, text in value.items()}


def _stamp(value: object) -> Stamp:
    if not isinstance(value, list) or len(value) != 3:
        raise TypeError("a stamp must be a list of two numbers and a region")
    time_ms, counter, region = value
    for number in (time_ms, counter):
        if type(number) is not int or not 0 <= number < 1 << 64:
            raise ValueError("a stamp's numbers must be 64-bit integers")
    return Stamp(time_ms, counter, _text(region))
