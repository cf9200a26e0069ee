# SPDX-License-Identifier: Apache-2.0
"""Following a ledger that another broker writes, when that broker is faster than the bookies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.engines.bookkeeper.tailing import Tailing


class Tail:
    """A followed ledger, of which somebody else may say what is confirmed."""

    ledger_id = 1
    metadata: Any = SimpleNamespace(segments=[SimpleNamespace(ensemble=["a", "b", "c"])], state=None, last_entry=-1)

    def __init__(self) -> None:
        self.confirmed = -1

    def last_confirmed(self) -> int:
        return self.confirmed

    def learn(self, confirmed: int, metadata: object = None) -> bool:
        del metadata
        is_more, self.confirmed = confirmed > self.confirmed, max(confirmed, self.confirmed)
        return is_more


async def test_the_metadata_are_not_read_when_the_writers_broker_said_so_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read when nothing is confirmed for a while: the ledger may be sealed."""
    tail, tasks = Tail(), list[asyncio.Task[None]]()
    asked, answers, grown = asyncio.Queue[str](), asyncio.Queue[int](), asyncio.Queue[int]()
    looked = asyncio.Event()

    async def find(_ledger: int) -> Any:
        looked.set()
        return SimpleNamespace(metadata=Tail.metadata)

    async def wait(bookie: str, _tail: object) -> int:
        asked.put_nowait(bookie)
        return await answers.get()

    context: Any = SimpleNamespace(find=find, spawn=lambda work, _: tasks.append(asyncio.ensure_future(work)))
    tailing = Tailing(context)
    monkeypatch.setattr(tailing, "_wait", wait)
    tailing.follow(tail, lambda: grown.put_nowait(tail.confirmed))
    for number in range(10):
        assert await asked.get() == "a"
        tail.learn(number)  # the writer's broker
        answers.put_nowait(number)  # the bookie, which was asked before
    assert await asked.get() == "a"
    assert not looked.is_set() and grown.empty()
    answers.put_nowait(10)
    assert await grown.get() == 10
    assert await asked.get() == "a" and not looked.is_set()
    answers.put_nowait(10)  # nothing new for a while
    await looked.wait()
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
