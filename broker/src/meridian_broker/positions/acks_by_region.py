# SPDX-License-Identifier: Apache-2.0
"""Acks by origin region: the content of a layer, or of the base below all layers."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.position import Position
from meridian_broker.positions.varints import Reader, put_name, put_number


def acks_of(acks: dict[str, AckSet], region: str) -> AckSet:
    """The region's acks, created if missing."""
    found = acks.get(region)
    if found is None:
        found = acks[sys.intern(region)] = AckSet()
    return found


def extract_acks(acks: Mapping[str, AckSet], wanted: Mapping[str, set[int]]) -> dict[str, AckSet]:
    """The acks in some ledgers of each region."""
    parts = {region: acks[region].extract(ledgers) for region, ledgers in wanted.items() if region in acks}
    return {region: part for region, part in parts.items() if not part.is_empty}


def acks_upto(acks: Mapping[str, AckSet], ends: Mapping[str, Position]) -> dict[str, AckSet]:
    """The acks of these regions up to their ends."""
    return {region: acks[region].upto(end) for region, end in ends.items() if region in acks}


def copy_acks(acks: Mapping[str, AckSet]) -> dict[str, AckSet]:
    return {region: one.copy() for region, one in acks.items()}


def join_acks(mine: dict[str, AckSet], theirs: Mapping[str, AckSet]) -> bool:
    changed = False
    for region, their in theirs.items():
        acks = mine.get(region)
        if acks is not None:
            changed |= acks.join(their)
        elif not their.is_empty:
            mine[region] = their.copy()
            changed = True
    return changed


def acks_within(mine: Mapping[str, AckSet], theirs: Mapping[str, AckSet]) -> bool:
    return all(acks.is_empty or (region in theirs and acks.within(theirs[region])) for region, acks in mine.items())


def acks_minus(mine: Mapping[str, AckSet], theirs: Mapping[str, AckSet]) -> dict[str, AckSet]:
    result = {}
    for region, acks in mine.items():
        rest = acks.minus(theirs[region]) if region in theirs else acks.copy()
        if not rest.is_empty:
            result[region] = rest
    return result


def same_acks(mine: Mapping[str, AckSet], theirs: Mapping[str, AckSet]) -> bool:
    """Whether they are equal; a region without acks counts as missing."""
    if mine == theirs:
        return True
    some, others = ({region: one for region, one in acks.items() if not one.is_empty} for acks in (mine, theirs))
    return some == others


def put_acks(out: bytearray, acks: Mapping[str, AckSet]) -> None:
    regions = sorted(region for region, one in acks.items() if not one.is_empty)
    put_number(out, len(regions))
    for region in regions:
        put_name(out, region)
        acks[region].put(out)


def take_acks(reader: Reader) -> dict[str, AckSet]:
    acks: dict[str, AckSet] = {}
    for _ in range(reader.count(4)):
        region = reader.name()
        if region in acks:
            raise reader.broken(f"region {region!r} comes twice")
        one = AckSet.take(reader)
        if not one.is_empty:
            acks[region] = one
    return acks
