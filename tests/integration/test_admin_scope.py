# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/subscriptions/.../scope`` with two real regions: what is refused and shown, take-over by command."""

from __future__ import annotations

import subprocess
from typing import Any

import pulsar
import pytest
from broker_process import MERIDIAN, RegionsProcess, wait_until
from region_clients import EXCLUSIVE, client, new_topic, numbered, publish, rest, subscribe, take_numbers

EAST, WEST = REGIONS = ("east", "west")
SETTINGS = {"dispatchLeaseSeconds": "2"}


def path(topic: str, name: str = "s") -> str:
    return f"/meridian/v1/subscriptions/{topic.replace('://', '/')}/{name}/scope"


def shown(regions: RegionsProcess, region: str, topic: str) -> dict[str, Any]:
    answer = regions.http(region, "GET", path(topic))
    found: dict[str, Any] = answer.json if answer.status == 200 else {}
    return found


def dispatchers(regions: RegionsProcess, region: str, topic: str) -> dict[str, str]:
    return {one["origin"]: one["dispatched_by"] for one in shown(regions, region, topic).get("shares", ())}


def meridian(regions: RegionsProcess, region: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*MERIDIAN, "subscriptions", *arguments, "--url", regions.admin_url(region)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_refused(regions: RegionsProcess) -> None:
    topic = new_topic("refused")
    with client(regions, EAST) as east:
        own = east.subscribe(topic, "own")
        answer = regions.http(EAST, "POST", path(topic, "own"), {"dispatchScope": "origin"})
        assert answer.status == 412
        assert "not replicated" in answer.text
        consumer = subscribe(east, topic)
        for wrong in (
            {},
            {"dispatchScope": "global"},
            {"takeOver": {"origin": EAST}},
            "origin",
            {"a": 1, "b": 2},
            {"dispatchScop": "origin"},
            {"dispatchScope": "origin", "takeOver": {"origin": EAST, "by": WEST}},
            {"witness": 7},
        ):
            assert regions.http(EAST, "POST", path(topic), wrong).status == 412, wrong
        take_over = {"takeOver": {"origin": EAST, "by": WEST}}
        assert "scope local" in regions.http(EAST, "POST", path(topic), take_over).text
        assert regions.http(EAST, "POST", path(topic), {"dispatchScope": "origin"}).status == 204
        take_over["takeOver"]["by"] = "nowhere"
        answer = regions.http(EAST, "POST", path(topic), take_over)
        assert answer.status == 412
        assert "nowhere is no region" in answer.text
        assert regions.http(EAST, "POST", path(topic), {"takeOver": {"origin": "mars", "by": EAST}}).status == 412
        assert regions.http(EAST, "GET", path(topic, "none")).status == 404
        consumer.close()
        with pytest.raises(pulsar.PulsarException):
            subscribe(east, topic, kind=EXCLUSIVE, is_read_compacted=True)
        own.close()


def test_two_regions_share_and_one_takes_over_by_command(regions: RegionsProcess) -> None:
    topic = new_topic("shared")
    own = {EAST: EAST, WEST: WEST}
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumers = {EAST: subscribe(east, topic), WEST: subscribe(west, topic)}
        assert shown(regions, EAST, topic)["dispatch_scope"] == "local"
        done = meridian(regions, WEST, "set-scope", topic, "s", "origin")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS), "each share at home")
        assert shown(regions, EAST, topic)["in_force"]
        publish(east, topic, numbered(range(10)))
        publish(west, topic, numbered(range(10, 20)))
        take_numbers(consumers[EAST], range(10))
        take_numbers(consumers[WEST], range(10, 20))

        done = meridian(regions, EAST, "take-over", topic, "s", "--origin", EAST, "--by", WEST)
        assert done.returncode == 0, done.stderr
        moved = {EAST: WEST, WEST: WEST}
        wait_until(lambda: all(dispatchers(regions, one, topic) == moved for one in REGIONS), "both shares in the west")
        publish(east, topic, numbered(range(20, 30)))
        take_numbers(consumers[WEST], range(20, 30))
        assert rest(consumers[EAST]) == []

        done = meridian(regions, EAST, "take-over", topic, "s", "--origin", EAST, "--by", EAST)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS), "each share at home again")
        done = meridian(regions, EAST, "set-scope", topic, "s", "local")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: shown(regions, WEST, topic)["dispatch_scope"] == "local", "the west to hear of it")
        publish(east, topic, numbered(range(30, 32)))
        found: set[int] = set()

        def both_came() -> bool:
            for consumer in consumers.values():
                found.update(rest(consumer))
            return found == {30, 31}

        wait_until(both_came, "what each region sends now")
