# SPDX-License-Identifier: Apache-2.0
"""Checks, before a topic is replicated to a region, that it has as many partitions there or does not exist there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from meridian_broker.admin.elsewhere.everywhere import QUESTION_SECONDS, ask, reason
from meridian_broker.admin.http.requests import Refused
from meridian_broker.admin.http.state import AdminState
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path


async def check_counts(admin: AdminState, name: TopicName, regions: Collection[str]) -> None:
    """:raises Refused: a region has the topic with different partitions, or cannot be asked."""
    record = await admin.catalog.partitioned.find(name)
    here = 0 if record is None else record.partitions

    async def check(region: str) -> None:
        path = f"/admin/v2/{in_path(str(name))}/partitions"
        status, said = await ask(admin, region, "GET", path, seconds=QUESTION_SECONDS)
        if status == 404:
            return
        if status != 200 or not isinstance(said, dict):
            raise Refused(503, f"{region} cannot say how many partitions {name} has: {status}, {reason(said)}")
        there = said.get("partitions", 0)
        if there != here:
            raise Refused(
                412,
                f"{name} exists in {region} with different partitions, {there or 'none'} there and {here or 'none'} "
                "here: delete one of the two, or make the numbers equal",
            )

    await asyncio.gather(*map(check, sorted(regions)))
