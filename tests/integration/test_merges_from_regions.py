# SPDX-License-Identifier: Apache-2.0
"""What another region reports about a topic is always answered: without an answer it holds back its digests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.service import closing
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import regions

TOPIC = "persistent://public/default/orders"


@pytest.mark.parametrize("is_open", [True, False])
async def test_progress_that_cannot_be_merged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The reason reaches the peer, even if the topic has to be opened first."""

    def refuses(*_: object) -> None:
        raise ValueError("more rewinds than a subscription can remember")

    async with regions(tmp_path, "us") as (us,):
        service = us.process.service
        topic = await service.opener.topic(parse(TOPIC), create=True)
        topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
        record = topic.subscription_registry.record("s")
        if not is_open:
            await closing.unload(service.opener, parse(TOPIC))
        monkeypatch.setattr(rewinding, "merge", refuses)
        answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        try:
            us.process.host.merge(TOPIC, "s", "", Progress(), record, answered.set_result)
        except ValueError as error:  # as the port documents: called instead of the answer
            answered.set_result(str(error))
        async with asyncio.timeout(60):
            assert await answered == "more rewinds than a subscription can remember"
