# SPDX-License-Identifier: Apache-2.0
"""What a shadow answers to the ids that its source's replicator sends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.followed import FollowedLog
from meridian_broker.ledgers.view import LogView
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.publishing.from_source import WAITING_MAX, FromSource
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.commands import Send

numbers = itertools.count()


class Port:
    """Notes the receipts."""

    def __init__(self) -> None:
        self.read: list[Position] = []

    def has_read(self, _producer: object, _send: Send, position: Position) -> None:
        self.read.append(position)


class Replicator:
    """The producer, as far as it matters here."""

    def __init__(self) -> None:
        self.port = Port()


def send(place: pb.MessageIdData | None) -> Send:
    return Send(6, 1, next(numbers), None, 1, False, False, place, None, False, True, b"")


def place(ledger: int, entry: int) -> Send:
    return send(pb.MessageIdData(ledgerId=ledger, entryId=entry))


class Shadow:
    """A view of a followed log, whose end the test moves."""

    def __init__(self) -> None:
        scheduler, store, cache = LoopScheduler(), MemoryLedgerStore(), CacheBudget(1 << 20)
        self.followed = FollowedLog("here", store, scheduler, LogLimits(), cache)
        self.view = LogView("here", store, scheduler, cache)
        self.view.attach(self.followed)
        self.replicator: Any = Replicator()
        self.from_source = FromSource(self.view)

    def take(self, sends: Iterable[Send]) -> None:
        for one in sends:
            self.from_source.take(self.replicator, one)

    def reads(self, ledger: int, entry: int) -> None:
        self.followed._tell(Position(ledger, entry))

    @property
    def read(self) -> list[Position]:
        return list(self.replicator.port.read)

    @property
    def watchers(self) -> int:
        return len(self.view._watchers)


async def test_receipts_come_when_everything_up_to_the_id_was_read() -> None:
    shadow = Shadow()
    shadow.take([place(1, 2), place(1, 4), place(1, 4)])
    assert shadow.read == []
    shadow.reads(1, 1)
    assert shadow.read == []
    shadow.reads(1, 3)
    assert shadow.read == [(1, 2)]
    shadow.reads(2, 0)
    assert shadow.read == [(1, 2), (1, 4), (1, 4)]
    assert shadow.watchers == 0, "nothing waits, so nothing is watched"
    shadow.take([place(1, 9)])
    assert shadow.read[-1] == (1, 9), "it was read before it was asked for"


async def test_an_id_whose_ledger_is_not_stored_any_more_counts_as_read() -> None:
    shadow = Shadow()
    shadow.followed.take([Span(5, EARLIEST, {})], EARLIEST, {})
    shadow.take([place(1, 6)])
    assert shadow.read == [(1, 6)]
    shadow.take([place(5, 0)])
    assert shadow.read == [(1, 6)]


async def test_nothing_is_left_of_a_producer_that_is_gone() -> None:
    shadow = Shadow()
    shadow.take([place(1, 2)])
    shadow.from_source.close()
    assert shadow.watchers == 0
    shadow.reads(1, 5)
    assert shadow.read == []


async def test_ids_without_a_receipt_are_bounded() -> None:
    shadow = Shadow()
    shadow.take(place(1, number) for number in range(WAITING_MAX))
    with pytest.raises(NotAllowed, match="wait for one"):
        shadow.take([place(1, WAITING_MAX)])
    shadow.reads(1, 0)
    shadow.take([place(1, WAITING_MAX)])
    shadow.reads(2, 0)
    assert len(shadow.read) == WAITING_MAX + 1


ABSENT = (1 << 64) - 1


@pytest.mark.parametrize(
    "place",
    [
        None,
        pb.MessageIdData(ledgerId=ABSENT, entryId=ABSENT),
        pb.MessageIdData(ledgerId=ABSENT - 1, entryId=0),
        pb.MessageIdData(ledgerId=1, entryId=ABSENT),
        pb.MessageIdData(ledgerId=1, entryId=1 << 62),
        pb.MessageIdData(ledgerId=1, entryId=0, batch_index=3),
        pb.MessageIdData(ledgerId=1, entryId=0, ack_set=[1]),
    ],
)
async def test_what_names_no_whole_entry_is_refused(place: pb.MessageIdData | None) -> None:
    shadow = Shadow()
    with pytest.raises(NotAllowed):
        shadow.take([send(place)])
    assert shadow.watchers == 0
    assert shadow.followed._told == EARLIEST
