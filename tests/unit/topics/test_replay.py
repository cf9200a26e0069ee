# SPDX-License-Identifier: Apache-2.0
"""The queue of entries to redeliver: each entry once, in log order."""

from __future__ import annotations

from meridian_broker.positions.position import Position
from meridian_broker.topics.dispatch.replay import Replay


def test_entries_come_once_each_and_in_order() -> None:
    replay = Replay()
    for entry in (5, 2, 9, 2, 5):
        replay.add(Position(1, entry))
    taken = []
    while replay:
        taken.append(replay.first.entry)
        replay.remove_first()
    assert taken == [2, 5, 9]
    replay.add(Position(1, 2))
    assert replay.first == Position(1, 2), "a redelivered entry may be returned once more"


def test_only_wanted_entries_stay() -> None:
    replay = Replay()
    for entry in range(9, 0, -1):
        replay.add(Position(1, entry))
    replay.keep(lambda position: position.entry % 3 == 0)
    assert replay.positions == {Position(1, 3), Position(1, 6), Position(1, 9)}
    replay.remove_first()
    replay.add(Position(1, 3))
    assert (len(replay), replay.first) == (3, Position(1, 3))
