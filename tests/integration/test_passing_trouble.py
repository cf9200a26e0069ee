# SPDX-License-Identifier: Apache-2.0
"""A topic that cannot be served for a moment: official clients get what they asked for before they time out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.topics.errors import TopicFenced
from support.brokers.broker_inside import broker_inside
from support.brokers.region_clients import connected

TIMES = 3


@pytest.mark.parametrize("asked", ["producer", "consumer", "reader"])
async def test_clients_get_in_once_the_topic_is_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """C++ clients retry PRODUCER by themselves, and SUBSCRIBE never."""
    async with broker_inside(tmp_path) as inside:
        opener = inside.service.opener
        serve, refused = opener.served, list[str]()

        async def served(name: Any, **options: Any) -> Any:
            if len(refused) < TIMES:
                refused.append(str(name))
                raise TopicFenced(f"{name} is being closed: look it up again")
            return await serve(name, **options)

        monkeypatch.setattr(opener, "served", served)
        makes: dict[str, Callable[[pulsar.Client], Any]] = {
            "producer": lambda client: client.create_producer("t"),
            "consumer": lambda client: client.subscribe("t", "s"),
            "reader": lambda client: client.create_reader("t", pulsar.MessageId.earliest),
        }

        def make() -> None:
            with connected(f"pulsar://127.0.0.1:{inside.settings.network.broker_service_port}") as client:
                makes[asked](client).close()

        await asyncio.to_thread(make)
        assert len(refused) == TIMES
