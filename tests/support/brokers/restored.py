# SPDX-License-Identifier: Apache-2.0
"""What holds after a region was restored from an older copy (R5)."""

from __future__ import annotations

from collections.abc import Sequence

from support.brokers.region_clients import (
    EAST,
    Regions,
    client,
    numbered,
    publish,
    stored,
    subscribe,
    take_numbers,
    wait_for_backlog,
)


def assert_restored(regions: Regions, names: Sequence[str], topic: str, what: str) -> None:
    """Messages 10 to 29 of 40 are acknowledged: every region stores all 40; the others, and new ones, arrive once.

    :param what: what was restored.
    """
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(40, 45)))
        for region in names:
            assert stored(regions, region, topic, 45) == list(range(45)), f"{region} after {what} was restored"
        take_numbers(subscribe(east, topic), [*range(10), *range(30, 45)])
    for region in names:
        wait_for_backlog(regions, region, topic, 0)
