# SPDX-License-Identifier: Apache-2.0
"""A broker downgraded to an older version: a topic with data that it cannot read is refused with the
reason, and other topics are unaffected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from meridian_broker.topics.journal.changes import Kind
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.brokers.broker_regions import until
from support.protocol.raw_connection import RawConnection, T

NEWER, PLAIN = "persistent://public/default/a-newer", "persistent://public/default/b-plain"


async def test_an_unreadable_topic_is_refused_with_the_reason_and_the_others_are_opened(tmp_path: Path) -> None:
    async with broker_inside(tmp_path) as inside:
        newer, _ = [await inside.service.opener.topic(parse(name), create=True) for name in (NEWER, PLAIN)]
        later = cast("Kind", 200)
        assert await inside.scheduler.answer(lambda done: newer.progress_log.append(later, "s", b"", done)) is None
    async with broker_inside(tmp_path) as inside:
        await until(lambda: PLAIN in inside.service.topics)
        connection = await RawConnection.open(inside.settings.network.broker_service_port)
        request = connection.ask_producer(NEWER)
        refused: pb.CommandError = await connection.hear(T.ERROR)
        assert (refused.request_id, refused.error) == (request, ServerError.PERSISTENCE)
        assert "written by a newer version of Meridian (this one does not know kind 200)" in refused.message
        await connection.producer(PLAIN)
        path = "/admin/v2/persistent/public/default/a-newer/stats"
        answer = await asyncio.to_thread(http, "GET", inside.listeners.admin_url + path)
        assert answer.status == 500
        assert "written by a newer version of Meridian" in answer.reason
        await connection.close()
