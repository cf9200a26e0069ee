# SPDX-License-Identifier: Apache-2.0
"""Messages of the event topic, and their encoding.

``Changes`` are the events of one transaction, which are applied together (R42). A ``Mark`` follows the events of its
region up to a moment and says what that region has heard from the others; tombstones go by it (R44).

An event has PIP-136's fields, with two differences. Versions are a store's own numbers, so instead of
``expectedVersion`` it names the stamp that it replaced: an applier never refuses an event for it (R45), but sees that
two regions wrote without knowing of each other. And there are no create options, because ephemeral and sequential
nodes never travel.

Encoding: one byte for the format, one for the kind, then numbers and names as in ``positions.varints``. Format 2 is
format 1 and, after each event, what its writer knew besides what it replaced; it is used where there is such a thing.
``decode`` trusts nothing: whatever the bytes are, it raises nothing but ``ValueError``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Literal

from meridian_broker.metadata.limits import MAX_PATH_LENGTH, MAX_VALUE_BYTES
from meridian_broker.metadata.sync.stamped import (
    MAX_GENERATION,
    MAX_KNOWN,
    NEVER,
    Moment,
    Stamped,
    Turn,
    canonical,
)
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.varints import Reader, put_bytes, put_name, put_number

FORMAT: Final = 1
WITH_KNOWN: Final = 2
MAX_EVENTS: Final = 256
"""Most events of one message. A transaction has half as many operations at most."""
MAX_REGIONS: Final = 256
"""Most regions that a mark names."""
MAX_MESSAGE_BYTES: Final = 4 << 20
"""Longest message that is decoded. One event is as long as the largest value, and its path."""

MAX_COUNTER: Final = (1 << 32) - 1
"""Greatest counter of a stamp. A region that gets this far in one millisecond goes on in the next (``recording``)."""

_CHANGES: Final = 0
_MARK: Final = 1

Written = tuple[int, Stamp]
"""Generation and stamp of a state: what distinguishes it from other states of its path."""
Type = Literal["Created", "Modified", "Deleted"]


@dataclass(frozen=True, slots=True)
class Event:
    """A path has this state."""

    path: str
    state: Stamped
    replaced: Written | None = None
    """What its writer saw at the path before the first write that the event is about; None: nothing."""

    @property
    def source(self) -> str:
        """The region that wrote it, whichever sent it. Empty: a deletion that all have forgotten (``digests``)."""
        return self.state.stamp.region

    @property
    def type(self) -> Type:
        if self.state.value is None:
            return "Deleted"
        return "Created" if self.replaced is None else "Modified"


@dataclass(frozen=True, slots=True)
class Changes:
    """Events of one transaction, or of several that were still unsent when the last of them was made."""

    region: str
    """The region that sends them."""
    events: tuple[Event, ...]
    """In the order of their paths, each path once."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The region sends no new event with a stamp up to ``upto``, and has heard from others what ``heard`` says."""

    region: str
    upto: Moment
    heard: Mapping[str, Moment] = field(default_factory=dict)


Message = Changes | Mark


def encode(message: Message) -> bytes:
    """:raises ValueError: it is over a limit."""
    known = [] if isinstance(message, Mark) else [_known_besides(event) for event in message.events]
    out = bytearray((WITH_KNOWN if any(known) else FORMAT, _MARK if isinstance(message, Mark) else _CHANGES))
    put_name(out, message.region)
    if isinstance(message, Mark):
        _put_mark(out, message)
    else:
        _put_changes(out, message, known)
    if len(out) > MAX_MESSAGE_BYTES:
        raise ValueError(f"{len(out)} bytes of metadata events: the limit of a message is {MAX_MESSAGE_BYTES}")
    return bytes(out)


def decode(data: bytes) -> Message:
    """:raises ValueError: these bytes are not a message, or are one of a newer version."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"{len(data)} bytes: the limit of a message of metadata events is {MAX_MESSAGE_BYTES}")
    reader = Reader(data)
    found = reader.byte()
    if found not in (FORMAT, WITH_KNOWN):
        remedy = ": upgrade this region" if found > WITH_KNOWN else ""
        raise ValueError(f"metadata events of format {found}; this version reads {FORMAT} and {WITH_KNOWN}{remedy}")
    kind, region = reader.byte(), _region(reader)
    message: Message
    if kind == _CHANGES:
        message = Changes(region, _changes(reader, has_known=found == WITH_KNOWN))
    elif kind == _MARK and found == FORMAT:
        upto = _moment(reader)
        message = Mark(region, upto, _heard(reader))
    else:
        raise reader.broken(f"{kind} is not a kind of message")
    reader.end()
    return message


def _known_besides(event: Event) -> dict[str, Turn]:
    """What its writer knew, without what follows from ``replaced``."""
    replaced = _known_from(event.replaced)
    return {region: turn for region, turn in sorted(event.state.knows.items()) if turn > replaced.get(region, NEVER)}


def _known_from(replaced: Written | None) -> dict[str, Turn]:
    if replaced is None:
        return {}
    generation, stamp = replaced
    return {stamp.region: (generation, stamp.time_ms, stamp.counter)}


def _put_changes(out: bytearray, message: Changes, known: Sequence[Mapping[str, Turn]]) -> None:
    if not 1 <= len(message.events) <= MAX_EVENTS:
        raise ValueError(f"{len(message.events)} metadata events in one message: 1 to {MAX_EVENTS} are allowed")
    put_number(out, len(message.events))
    for event, besides in zip(message.events, known, strict=True):
        put_bytes(out, event.path.encode())
        _put_written(out, (event.state.generation, event.state.stamp))
        put_number(out, 0 if event.replaced is None else 1)
        if event.replaced is not None:
            _put_written(out, event.replaced)
        put_number(out, 0 if event.state.value is None else 1)
        if event.state.value is not None:
            put_bytes(out, event.state.value)
        if any(known):
            put_number(out, len(besides))
            for region, turn in besides.items():
                put_name(out, region)
                for number in turn:
                    put_number(out, number)


def _changes(reader: Reader, *, has_known: bool) -> tuple[Event, ...]:
    count = reader.count(8)
    if not 1 <= count <= MAX_EVENTS:
        raise reader.broken(f"{count} events: 1 to {MAX_EVENTS} are allowed")
    events = tuple(_event(reader, has_known=has_known) for _ in range(count))
    if has_known and not any(map(_known_besides, events)):
        raise reader.broken(f"format {WITH_KNOWN} says no more than {FORMAT} would")
    if any(one.path >= two.path for one, two in pairwise(events)):
        raise reader.broken("paths are not in order")
    return events


def _event(reader: Reader, *, has_known: bool) -> Event:
    path = _path(reader)
    generation, stamp = _written(reader)
    replaced = _written(reader) if _flag(reader) else None
    state = Stamped(stamp, _value(reader) if _flag(reader) else None, generation)
    known = _known_from(replaced)
    known.pop(stamp.region, None)
    if has_known:
        known |= _known(reader, stamp.region, known)
    return Event(path, replace(state, knows=known), replaced)


def _known(reader: Reader, own: str, before: Mapping[str, Turn]) -> dict[str, Turn]:
    count = reader.count(4)
    if count > MAX_KNOWN:
        raise reader.broken(f"{count} regions; the limit is {MAX_KNOWN}")
    known: dict[str, Turn] = {}
    for _ in range(count):
        region, turn = reader.name(), (_generation(reader), *_moment(reader))
        if (known and region <= max(known)) or region == own or turn <= before.get(region, NEVER):
            raise reader.broken("regions are not in order, or say nothing new")
        known[region] = turn
    return known


def _path(reader: Reader) -> str:
    data = reader.bytes()
    try:
        path = str(data, "ascii")
    except UnicodeDecodeError:
        raise reader.broken("a path is not ASCII") from None
    if not path.startswith("/") or len(path) > MAX_PATH_LENGTH:
        raise reader.broken("a path does not begin with / or is too long")
    return path


def _value(reader: Reader) -> bytes:
    data = reader.bytes()
    if len(data) > MAX_VALUE_BYTES:
        raise reader.broken(f"a value has {len(data)} bytes; the limit is {MAX_VALUE_BYTES}")
    try:
        is_canonical = canonical(json.loads(data)) == data
    except (ValueError, RecursionError):
        raise reader.broken("a value is not JSON") from None
    if not is_canonical:  # else one value would have two hashes
        raise reader.broken("a value is not in canonical form")
    return data


def _flag(reader: Reader) -> bool:
    flag = reader.number()
    if flag > 1:
        raise reader.broken(f"{flag} is not a flag: 0 and 1 are allowed")
    return bool(flag)


def _put_written(out: bytearray, written: Written) -> None:
    generation, stamp = written
    put_number(out, generation)
    put_number(out, stamp.time_ms)
    put_number(out, stamp.counter)
    put_name(out, stamp.region)


def _generation(reader: Reader) -> int:
    generation = reader.number()
    if generation > MAX_GENERATION:
        raise reader.broken(f"generation {generation}; the limit is {MAX_GENERATION}")
    return generation


def _written(reader: Reader) -> Written:
    generation = _generation(reader)
    time_ms, counter = _moment(reader)
    if counter > MAX_COUNTER:
        raise reader.broken(f"a stamp's counter is {counter}; the limit is {MAX_COUNTER}")
    return generation, Stamp(time_ms, counter, reader.name())


def _moment(reader: Reader) -> Moment:
    return reader.number(), reader.number()


def _put_mark(out: bytearray, mark: Mark) -> None:
    if len(mark.heard) > MAX_REGIONS:
        raise ValueError(f"a mark names {len(mark.heard)} regions: {MAX_REGIONS} are allowed")
    for number in mark.upto:
        put_number(out, number)
    put_number(out, len(mark.heard))
    for region, heard in sorted(mark.heard.items()):
        put_name(out, region)
        for number in heard:
            put_number(out, number)


def _heard(reader: Reader) -> dict[str, Moment]:
    count = reader.count(3)
    if count > MAX_REGIONS:
        raise reader.broken(f"{count} regions; the limit is {MAX_REGIONS}")
    heard: dict[str, Moment] = {}
    for _ in range(count):
        region = _region(reader)
        if heard and region <= max(heard):
            raise reader.broken("regions are not in order")
        heard[region] = _moment(reader)
    return heard


def _region(reader: Reader) -> str:
    name = reader.name()
    if not name:
        raise reader.broken("a region has no name")
    return name
