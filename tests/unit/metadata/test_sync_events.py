# SPDX-License-Identifier: Apache-2.0
"""Messages of the event topic are read back as written, and no bytes do harm."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meridian_broker.metadata.limits import MAX_VALUE_BYTES
from meridian_broker.metadata.sync import outbox
from meridian_broker.metadata.sync.events import (
    MAX_COUNTER,
    MAX_EVENTS,
    MAX_MESSAGE_BYTES,
    Changes,
    Event,
    Mark,
    Message,
    decode,
    encode,
)
from meridian_broker.metadata.sync.outbox import OutboxEntry, in_messages
from meridian_broker.metadata.sync.stamped import MAX_GENERATION, MAX_KNOWN, Stamped, canonical
from meridian_broker.positions.clock import Stamp

many = settings(max_examples=500, deadline=None)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
numbers = st.integers(0, (1 << 64) - 1)
counters = st.integers(0, MAX_COUNTER)
generations = st.integers(0, MAX_GENERATION)
stamps = st.builds(Stamp, numbers, counters, names)
json_values = (
    st.none()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
    | st.just({"b": 1, "a": []})
)
turns = st.tuples(generations, numbers, numbers)
known = st.dictionaries(names, turns, max_size=3)
states = st.builds(Stamped, stamps, st.none() | json_values.map(canonical), generations, known).map(
    lambda state: replace(state, knows={name: turn for name, turn in state.knows.items() if name != state.stamp.region})
)
path_names = st.text("abc/-%", min_size=1, max_size=12).map(lambda text: "/" + text)
written = st.none() | st.tuples(generations, stamps)
events = st.builds(Event, path_names, states, written)
moments = st.tuples(numbers, numbers)


def in_order(some: list[Event]) -> tuple[Event, ...]:
    return tuple(sorted({event.path: event for event in some}.values(), key=lambda event: event.path))


messages = st.builds(Changes, names, st.lists(events, min_size=1, max_size=4).map(in_order)) | st.builds(
    Mark, names, moments, st.dictionaries(names, moments, max_size=4)
)


@many
@given(messages)
def test_a_message_is_read_back(message: Message) -> None:
    assert decode(encode(message)) == message


@many
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x01\x00\x02us\x01")
def test_no_bytes_raise_anything_but_value_error(data: bytes) -> None:
    try:
        message = decode(data)
    except ValueError:
        return
    assert encode(message) == data


@many
@given(messages, st.data())
def test_a_changed_message_is_refused_or_read_as_another(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(encoded))
    except ValueError:
        return
    assert encode(found) == encoded
    with pytest.raises(ValueError, match=r".+"):
        decode(bytes(encoded[: data.draw(st.integers(0, len(encoded) - 1))]))


@many
@given(messages)
def test_what_writers_knew_is_read_back(message: Message) -> None:
    """What an event replaced is among it, unless it is of the same region."""
    found = decode(encode(message))
    if isinstance(message, Changes):
        assert isinstance(found, Changes)
        for event, one in zip(message.events, found.events, strict=True):
            replaced = None if event.replaced is None else Stamped(event.replaced[1], None, event.replaced[0])
            assert one.state.knows == event.state.following(replaced, event.state).knows


def test_only_what_an_earlier_version_cannot_say_needs_the_newer_format() -> None:
    state, eu = Stamped(US, None), Stamped(Stamp(4, 0, "eu"), None)
    plain = Changes("us", (Event("/p", state.following(eu), (0, eu.stamp)),))
    more = Changes("us", (Event("/p", state.following(eu), (0, Stamp(4, 1, "us"))),))
    assert [encode(one)[0] for one in (plain, more)] == [1, 2]
    data = encode(more)
    assert data.endswith(b"\x01\x02eu\x00\x04\x00")
    for end in (b"\x01\x02us\x00\x04\x00", b"\x00"):  # nobody needs to say that, or nothing is said
        with pytest.raises(ValueError, match=r"nothing new|no more than"):
            decode(data.removesuffix(b"\x01\x02eu\x00\x04\x00") + end)
    many_regions = replace(state, knows={f"r{number:02}": (0, 1, 0) for number in range(MAX_KNOWN + 1)})
    with pytest.raises(ValueError, match="17 regions"):
        decode(encode(Changes("us", (Event("/p", many_regions),))))


US = Stamp(5, 0, "us")
ONE = Event("/geo/tenants/t", Stamped(US, b'{"a":1}'))


def test_the_seeds_types_and_source() -> None:
    assert (ONE.type, ONE.source) == ("Created", "us")
    assert Event("/p", Stamped(US, b"1"), (0, US)).type == "Modified"
    assert Event("/p", Stamped(US, None), (0, US)).type == "Deleted"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'{"a":1}', b'{"a" 1}', "not JSON"),
        (b'{"a":1}', b'{"a":1 ', "not JSON"),
        (b'{"a":1}', b'{"a":01', "not JSON"),
        (b'{"a":1}', b" 123456", "canonical"),
        (b"/geo", b"\xffgeo", "not ASCII"),
        (b"/geo", b"geo/", "does not begin"),
        (b"\x02us\x01", b"\x02us\x00", "0 events"),
        (b"\x02us\x01", b"\x00\x01", "no name"),
        (b"\x01\x00\x02us", b"\x03\x00\x02us", "format 3"),
        (b"\x01\x00\x02us", b"\x02\x01\x02us", "not a kind of message"),
        (b"\x01\x00\x02us", b"\x01\x07\x02us", "not a kind of message"),
    ],
)
def test_a_fault_is_named(old: bytes, new: bytes, why: str) -> None:
    data = encode(Changes("us", (ONE,)))
    assert old in data
    with pytest.raises(ValueError, match=why):
        decode(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Changes("us", (ONE, ONE)), "not in order"),
        (Changes("us", (Event("/p", Stamped(Stamp(1, MAX_COUNTER + 1, "us"), None)),)), "counter"),
        (Changes("us", (Event("/p", Stamped(US, None, MAX_GENERATION + 1)),)), "generation"),
        (Changes("us", (Event("/p", Stamped(US, b"[" * 100_000)),)), "not JSON"),
        (Changes("us", (Event("/p", Stamped(US, b'"%s"' % (b"x" * MAX_VALUE_BYTES))),)), "the limit is"),
    ],
)
def test_messages_that_no_region_sends_are_refused(message: Message, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(encode(message))


def test_limits_of_a_message() -> None:
    many_events = tuple(Event(f"/{n:04}", Stamped(US, None)) for n in range(MAX_EVENTS + 1))
    assert decode(encode(Changes("us", many_events[:-1]))).region == "us"
    for message in (
        Changes("us", many_events),
        Changes("us", ()),
        Mark("us", (0, 0), {str(n): (0, 0) for n in range(257)}),
    ):
        with pytest.raises(ValueError, match="allowed"):
            encode(message)
    with pytest.raises(ValueError, match="limit"):
        decode(b"\x01" * (MAX_MESSAGE_BYTES + 1))


@many
@given(st.lists(st.sampled_from([b"x" * n * 200_000 for n in range(4)]), max_size=8))
def test_an_entrys_events_are_sent_in_few_messages(some: list[bytes]) -> None:
    wanted = tuple(Event(f"/p{number}", Stamped(Stamp(1, 0, "us"), value)) for number, value in enumerate(some))
    found = in_messages(reversed(wanted))
    assert tuple(event for message in found for event in message) == wanted
    sizes = [sum(len(event.path) + len(event.state.value or b"") for event in message) for message in found]
    assert all(size <= outbox.MAX_BYTES or len(message) == 1 for size, message in zip(sizes, found, strict=True))
    assert all(one + two > outbox.MAX_BYTES or two > outbox.MAX_BYTES for one, two in pairwise(sizes)) or len(
        found
    ) <= len(wanted)


few_paths = st.sampled_from(["/a", "/b", "/c-%25"])
few_written = st.none() | st.tuples(generations, st.builds(Stamp, numbers, counters, st.sampled_from(["us", "ü"])))


@many
@given(
    st.builds(OutboxEntry, stamps, st.dictionaries(few_paths, few_written, max_size=3)),
    st.dictionaries(few_paths, few_written, max_size=3),
)
def test_an_outbox_entry_is_read_back_and_keeps_the_first_replaced_value(
    entry: OutboxEntry, later: dict[str, object]
) -> None:
    assert outbox.from_store("/p", outbox.to_store(entry)) == entry
    both = entry.and_then(later)  # type: ignore[arg-type]
    assert both is not None
    assert both.since == entry.since
    assert both.replaced == {**later, **entry.replaced}
