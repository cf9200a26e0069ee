# SPDX-License-Identifier: Apache-2.0
"""A topic created by two at once: Apache Pulsar creates topics by the admin API as their first consumers come here."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.lifecycle import opening
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.protocol.raw_connection import RawConnection


async def test_a_topic_that_is_created_while_a_client_opens_it_is_served(
    inside: BrokerProcess, wire: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow, made = opening._may_create, []

    async def made_meanwhile(parts: Any, name: TopicName, *args: Any, **more: Any) -> None:
        await allow(parts, name, *args, **more)
        made.append(await parts.catalog.topics.create(name))

    monkeypatch.setattr(opening, "_may_create", made_meanwhile)
    topic = "persistent://public/default/twice"
    await wire.subscribed(topic, "s", 1)
    assert len(made) == 1 and list(inside.service.topics[topic].subscriptions) == ["s"]
