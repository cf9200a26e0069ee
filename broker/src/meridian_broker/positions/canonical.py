# SPDX-License-Identifier: Apache-2.0
"""The two sweeps that bring an ``AckSet``'s detail into its canonical form."""

from __future__ import annotations

from meridian_broker.positions.bitruns import ENTRY_LIMIT, run_end, run_start
from meridian_broker.positions.claims import Claims
from meridian_broker.positions.position import Position


def merge_runs(detail: dict[int, Claims], order: list[int]) -> None:
    """Downwards: extend links as far down as possible, and remove what they cover. Sets every ``tail``.

    ``order``: the keys of ``detail``, ascending.
    """
    owner: Claims | None = None
    for ledger in reversed(order):
        claims = detail[ledger]
        reach = None if owner is None else owner.link
        tail: int | None = None
        if owner is not None and reach is not None and reach[0] <= ledger:
            tail = -1
            bits = claims.bits  # only looked at if something may change: it may be cold
            if reach[0] == ledger:
                tail = reach[1]
                if tail >= 0 and tail in bits:
                    tail = run_start(bits, tail) - 1
                reach = owner.link = Position(ledger, tail)
            bits.remove_range(tail + 1, ENTRY_LIMIT)
            if tail < 0 and claims.link is not None:
                # The run continues downwards: one link for both.
                owner.link = min(reach, claims.link)
                claims.link = None
        claims.tail = tail
        if claims.link is not None:
            owner = claims


def advance(detail: dict[int, Claims], order: list[int], floor: tuple[int, int]) -> tuple[int, int]:
    """Upwards: raise the floor through bits and links, and remove what lies below. Call after ``merge_runs``.

    :returns: the highest possible floor.
    """
    for ledger in order:
        claims = detail[ledger]
        if ledger > floor[0]:
            if claims.link is None or claims.link > floor:
                continue
            floor = ledger, -1
        claims.link = None
        bits = claims.bits
        if ledger < floor[0]:
            bits.clear()
            continue
        entry = floor[1]
        if entry + 1 < ENTRY_LIMIT and entry + 1 in bits:
            entry = run_end(bits, entry + 1)
            floor = ledger, entry
        bits.remove_range(0, min(entry + 1, ENTRY_LIMIT))
    return floor
