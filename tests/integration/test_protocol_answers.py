# SPDX-License-Identifier: Apache-2.0
"""Every command, valid or not, is answered as Apache Pulsar answers it.

``protocol_answers.txt`` holds the answers recorded from Pulsar 4.2.4, and the few places where this broker differs on
purpose, each with its reason. With ``INTEROP_PULSAR_URL`` and ``INTEROP_PULSAR_ADMIN_URL`` in the environment the same
exchanges run against that Pulsar, so that the file can be compared with a newer version.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.broker_process import BrokerProcess, http
from support.protocol.protocol_exchanges import Answers, Broker, Exchange, read_answers
from support.protocol.protocol_table import EXCHANGES

ANSWERS = read_answers(Path(__file__).parents[1] / "support/protocol/protocol_answers.txt")
PULSAR = os.environ.get("INTEROP_PULSAR_URL", "")
PULSAR_ADMIN = os.environ.get("INTEROP_PULSAR_ADMIN_URL", "")


def reached(host: str, port: int, admin_url: str, quiet: float) -> Broker:
    def admin(method: str, path: str, body: Any) -> None:
        answer = http(method, admin_url + path, body)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.text}"

    return Broker(host, port, admin, quiet)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with BrokerProcess("one", tmp_path_factory.mktemp("broker")) as process:
        yield reached("127.0.0.1", process.port, process.admin_url, 0.02)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name.replace(" ", "-"))
async def test_answers(broker: Broker, exchange: Exchange) -> None:
    expected = [answers.ours for answers in ANSWERS[exchange.name]]
    assert await broker.run(exchange, expected) == expected


@pytest.mark.parametrize("exchange", EXCHANGES if PULSAR else (), ids=lambda exchange: exchange.name.replace(" ", "-"))
async def test_answers_of_pulsar(exchange: Exchange) -> None:
    host, _, port = PULSAR.partition("://")[2].partition(":")
    expected = [answers.pulsars for answers in ANSWERS[exchange.name]]
    assert await reached(host, int(port), PULSAR_ADMIN, 0.4).run(exchange, expected) == expected


def test_every_exchange_has_its_answers_and_every_difference_a_reason() -> None:
    assert [exchange.name for exchange in EXCHANGES] == list(ANSWERS)
    differing: list[Answers] = [one for steps in ANSWERS.values() for one in steps if one.ours != one.pulsars]
    assert differing
    assert [one for one in differing if not one.reason] == []
