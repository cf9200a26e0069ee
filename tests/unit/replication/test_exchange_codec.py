# SPDX-License-Identifier: Apache-2.0
"""Messages of the exchange on the wire: they are read back as written, and foreign bytes do no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.regions import LISTED_SUBSCRIPTIONS, MESSAGE_ITEMS, PROGRESS_KEYS, REGION_NAMES
from meridian_broker.ownership.bundles import LAST
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.replication.leases.grant_digests import PARTS as PARTS_OF_GRANTS
from meridian_broker.replication.leases.messages import (
    ITEMS_MAX,
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    VotersAnswer,
    VotersAsk,
    VotersItem,
)
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.progress import codec as codec
from meridian_broker.replication.progress.digest_tree import BUCKETS
from meridian_broker.replication.progress.high_watermarks import ANSWERED
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Delta,
    DeltaAck,
    DeltaItem,
    Digest,
    EndsSlice,
    ExchangeLimits,
    Fetch,
    Hello,
    KeyDigest,
    NamespaceOwners,
    OriginEnds,
    Owners,
    Parts,
    PeerMessage,
    Question,
    Refusal,
    RemoteBroker,
    State,
    StateItem,
    SubscriptionDigest,
    Summary,
    TopicDigest,
    TopicEnd,
)
from meridian_broker.wire.proto.pulsar_pb2 import BaseCommand
from meridian_broker.wire.pulsar.frames import Command, FrameDecoder

TEXT = st.text(max_size=12)
NUMBER = st.integers(0, (1 << 64) - 1)
BYTES = st.binary(max_size=20)
FLAG = st.booleans()
KEY = st.tuples(st.builds(Stamp, NUMBER, NUMBER, TEXT), TEXT, st.integers(-1, (1 << 62) - 1))
KEYS = st.none() | st.lists(KEY, max_size=3).map(tuple)
KEY_DIGESTS = st.none() | st.lists(st.builds(KeyDigest, KEY, NUMBER), max_size=3).map(tuple)


def several(one: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(one, max_size=3).map(tuple)


SHORT = st.integers(0, (1 << 32) - 1)
STREAM = st.tuples(TEXT, TEXT, TEXT)
SAID = st.builds(Stamp, NUMBER, NUMBER, st.text(min_size=1, max_size=12))
NAMES = st.sets(TEXT, max_size=3).map(lambda names: tuple(sorted(names)))
VOTER_SETS = st.builds(VoterSets, several(st.tuples(SAID, NAMES)), st.just(ZERO) | SAID)
VOTERS = st.builds(VotersItem, TEXT, TEXT, VOTER_SETS, NAMES, FLAG)
ITEM = st.builds(DeltaItem, TEXT, TEXT, TEXT, BYTES, st.none() | BYTES, several(TEXT), FLAG)
SUBSCRIPTION = st.builds(SubscriptionDigest, TEXT, NUMBER, NUMBER, KEY_DIGESTS)
TOPIC = st.builds(TopicDigest, TEXT, TEXT, NUMBER, FLAG, FLAG, st.none() | several(SUBSCRIPTION))
SUMMARY = st.builds(Summary, NUMBER, FLAG, several(SHORT))
QUESTION = st.builds(Question, TEXT, st.none() | TEXT, FLAG, KEYS)
ENDS = st.none() | st.builds(EndsSlice, TEXT, SHORT, SHORT, several(NUMBER))
PLACE = st.builds(Position, st.integers(-1, (1 << 62) - 1), st.integers(-1, (1 << 62) - 1))
TOLD = st.none() | st.builds(OriginEnds, TEXT, several(st.builds(TopicEnd, TEXT, TEXT, PLACE)))
PARTS = st.builds(Parts, SHORT, several(NUMBER))
BROKERS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8), unique=True, max_size=3
)


@st.composite
def owners(draw: st.DrawFn) -> Owners:
    """Brokers, and namespaces of which they own bundles; a namespace without boundaries is gone."""
    brokers = draw(BROKERS)
    named = [RemoteBroker(broker, draw(TEXT), draw(TEXT)) for broker in brokers]
    told = []
    for name in draw(st.lists(TEXT, max_size=3)):
        inner = draw(st.none() | st.sets(st.integers(1, LAST - 1), max_size=4))
        borders = () if inner is None else (0, *sorted(inner), LAST)
        owned = tuple(draw(st.sampled_from(["", *brokers])) for _ in borders[1:])
        told.append(NamespaceOwners(name, borders, owned))
    return Owners(tuple(named), tuple(told), draw(FLAG), draw(FLAG))


OWNERS = owners()
MESSAGE: st.SearchStrategy[PeerMessage] = st.one_of(
    st.builds(Hello, st.integers(0, 1 << 31), TEXT, NUMBER, FLAG, FLAG, TEXT, FLAG),
    OWNERS,
    st.builds(Delta, NUMBER, several(ITEM)),
    st.builds(DeltaAck, NUMBER, several(st.builds(Refusal, st.integers(0, 1 << 31), TEXT, TEXT))),
    st.builds(Digest, NUMBER, NUMBER, several(TOPIC), FLAG, st.none() | SUMMARY, several(SHORT), ENDS),
    st.builds(Fetch, several(QUESTION), several(NUMBER), several(PARTS), several(SHORT)),
    st.builds(State, several(st.builds(StateItem, TEXT, TEXT, TEXT, BYTES, BYTES)), TOLD),
    st.builds(Barrier, NUMBER, TEXT, TEXT, TEXT, KEY_DIGESTS, FLAG),
    st.builds(BarrierDone, NUMBER, BYTES, st.none() | BYTES, TEXT),
    st.builds(LeaseAsk, NUMBER, TEXT, SHORT, several(st.builds(AskItem, STREAM, NUMBER, NUMBER, TEXT))),
    st.builds(LeaseAnswer, NUMBER, several(st.builds(AnswerItem, STREAM, NUMBER, FLAG, NUMBER, SHORT, TEXT, TEXT))),
    st.builds(LeaseRelease, TEXT, several(st.tuples(STREAM, NUMBER))),
    st.builds(LeaseRenewal, NUMBER, TEXT, several(st.tuples(SHORT, st.integers(0, (1 << 128) - 1)))),
    st.builds(LeaseRenewed, NUMBER, several(SHORT)),
    st.builds(VotersAsk, several(VOTERS)),
    st.builds(VotersAnswer, several(VOTERS)),
)


@settings(max_examples=500)
@given(MESSAGE)
def test_messages_are_read_back_as_written(message: PeerMessage) -> None:
    (command,) = FrameDecoder().feed(codec.encode(message))
    assert isinstance(command, Command)
    assert codec.decode(command.type, command.message) == message


@settings(max_examples=500)
@given(st.sampled_from([*range(1000, 1008), 1010, 1020, 1021, 1022, 1025, 1026]), st.binary(max_size=60))
def test_whatever_protobuf_parses_is_a_message(kind: int, data: bytes) -> None:
    (name,) = [field.name for field in BaseCommand.DESCRIPTOR.fields if field.number == kind]
    message = getattr(BaseCommand(), name)
    try:
        message.ParseFromString(data)
    except DecodeError:
        return
    try:
        codec.decode(kind, message)
    except codec.PeerFormatError as error:
        reasons: dict[int, str] = {  # it may refer to voters that it does not list, or lack a part's digest
            BaseCommand.LEASE_ASK: "IndexError",
            BaseCommand.LEASE_RENEWAL: "bytes of digests",
        }
        if kind != BaseCommand.OWNERS:  # it may have any boundaries, and owners that it does not list
            assert reasons[kind] in str(error)


DIGEST = Digest(1, 1, (TopicDigest("t", "", 1, False, False, ()),))
KEYS_OF_ONE = (KeyDigest((ZERO, "us", 1), 1),)
LISTED = SubscriptionDigest("s", 1, 1, KEYS_OF_ONE)
STREAM_OF_ONE = ("t", "s", "us")
NOBODY = VoterSets()


def region_names(count: int) -> tuple[str, ...]:
    return tuple(f"r{number:06}" for number in range(count))


def listing(*listed: SubscriptionDigest) -> Digest:
    return Digest(1, 1, (TopicDigest("t", "", 1, False, False, listed),))


@pytest.mark.parametrize(
    ("message_of", "most"),
    [
        (lambda count: Delta(1, (DeltaItem("t", "s", "", b""),) * count), MESSAGE_ITEMS),
        (lambda count: Delta(1, (DeltaItem("t", "s", "", b"", None, ("us",) * count),)), REGION_NAMES),
        (lambda count: DeltaAck(1, (Refusal(0, "", ""),) * count), MESSAGE_ITEMS),
        (lambda count: Digest(1, 1, DIGEST.topics * count), MESSAGE_ITEMS),
        (lambda count: Digest(1, 1, (), differing=(1,) * count), MESSAGE_ITEMS),
        (lambda count: Digest(1, 1, (), summary=Summary(1, True, (1,) * count)), MESSAGE_ITEMS),
        (lambda count: Digest(1, 1, (), ends=EndsSlice("us", 20, 0, (1,) * count)), MESSAGE_ITEMS),
        (lambda count: listing(*(LISTED,) * count), LISTED_SUBSCRIPTIONS),
        (lambda count: listing(SubscriptionDigest("s", 1, 1, KEYS_OF_ONE * count)), PROGRESS_KEYS),
        (lambda count: Fetch((Question("t"),) * count), MESSAGE_ITEMS),
        (lambda count: Fetch((), (1,) * count), MESSAGE_ITEMS),
        (lambda count: Fetch((), parts=(Parts(1, ()),) * count), MESSAGE_ITEMS),
        (lambda count: Fetch((), parts=(Parts(1, (1,) * count),)), PROGRESS_KEYS),
        (lambda count: Fetch((), buckets_in_flux=(1,) * count), MESSAGE_ITEMS),
        (lambda count: Fetch((Question("t", "s", True, (KEYS_OF_ONE[0].key,) * count),)), PROGRESS_KEYS),
        (lambda count: State((StateItem("t", "s", "", b"", b""),) * count), MESSAGE_ITEMS),
        (lambda count: State((), OriginEnds("us", (TopicEnd("t", "", Position(1, 1)),) * count)), MESSAGE_ITEMS),
        (lambda count: Barrier(1, "t", "s", "", KEYS_OF_ONE * count), PROGRESS_KEYS),
        (lambda count: LeaseAsk(1, "us#1", 1, (AskItem(STREAM_OF_ONE, 1, 1, "us"),) * count), MESSAGE_ITEMS),
        (lambda count: LeaseAnswer(1, (AnswerItem(STREAM_OF_ONE, 1, True, 1, 1, "", ""),) * count), MESSAGE_ITEMS),
        (lambda count: LeaseRelease("us#1", ((STREAM_OF_ONE, 1),) * count), MESSAGE_ITEMS),
        (lambda count: LeaseRenewal(1, "us#1", ((1, 1),) * count), MESSAGE_ITEMS),
        (lambda count: LeaseRenewed(1, (1,) * count), MESSAGE_ITEMS),
        (lambda count: VotersAsk((VotersItem("t", "s", NOBODY, (), False),) * count), MESSAGE_ITEMS),
        (lambda count: VotersAnswer((VotersItem("t", "s", NOBODY, ("us",) * count, False),)), REGION_NAMES),
        (
            lambda count: VotersAsk(
                (VotersItem("t", "s", VoterSets(((Stamp(1, 1, "us"), region_names(count)),)), (), False),)
            ),
            REGION_NAMES,
        ),
    ],
)
def test_a_message_with_more_parts_than_brokers_send_is_refused(
    message_of: Callable[[int], PeerMessage], most: int
) -> None:
    kind, largest = codec.command(message_of(most))
    codec.decode(kind, largest)
    kind, too_large = codec.command(message_of(most + 1))
    with pytest.raises(codec.PeerFormatError, match="in one message"):
        codec.decode(kind, too_large)


def test_messages_of_brokers_are_within_the_limits() -> None:
    limits = ExchangeLimits()
    assert max(limits.items_per_message, ITEMS_MAX, ANSWERED, BUCKETS, PARTS_OF_GRANTS) <= MESSAGE_ITEMS
    assert limits.subscriptions_per_digest <= LISTED_SUBSCRIPTIONS
    assert limits.fetching * limits.keys_per_question <= PROGRESS_KEYS
    assert limits.items_per_message * limits.keys_inline <= PROGRESS_KEYS


def test_other_commands_are_refused_by_name() -> None:
    with pytest.raises(codec.PeerFormatError, match="command 18"):
        codec.decode(BaseCommand.PING, BaseCommand())
