# SPDX-License-Identifier: Apache-2.0
"""What a region answers when it is asked for states, as another one reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from meridian_broker.gateway.metadata_peers import RestPeer, states_json
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.metadata.sync.converging import before, written
from meridian_broker.metadata.sync.digests import BUCKETS, forgotten
from meridian_broker.metadata.sync.events import Changes, Event, decode, encode
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp

PATH = "/geo/tenants/t"
STATE = Stamped(Stamp(9, 1, "eu"), b"{}", 2)


class Answering:
    """Calls to a region that gives the same answer to all."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def ask(self, *_: object, **__: object) -> tuple[int, bytes]:
        return 200, self._answer


def peer(answer: bytes) -> RestPeer:
    calls: Any = Answering(answer)
    return RestPeer("eu", "id", calls, lambda: 0)


async def test_what_writers_knew_is_read_back() -> None:
    state = STATE.following(Stamped(Stamp(8, 0, "us"), None, 1), Stamped(Stamp(1, (1 << 64) - 1, ""), None))
    [found] = (await peer(states_json({PATH: state})).states([PATH])).values()
    assert (found, found.knows) == (state, {"": (0, 1, (1 << 64) - 1), "us": (1, 8, 0)})


async def test_the_deletion_that_stands_for_forgotten_ones_travels() -> None:
    deletion = forgotten(before((5, 0)))
    [found] = (await peer(states_json({PATH: deletion})).states([PATH])).values()
    assert found == deletion
    event = Event(PATH, STATE.following(deletion), written(deletion))
    assert decode(encode(Changes("eu", (event,)))) == Changes("eu", (event,))


@pytest.mark.parametrize("horizon", [[1 << 70, 0], [-1, 0], [0, 1 << 70], ["1", 0], [1]])
async def test_a_moment_that_no_region_can_report_is_refused(horizon: object) -> None:
    said = {"region": "eu", "identity": "id", "scopes": [], "buckets": ["0"] * BUCKETS, "clockMillis": 0}
    said |= {"horizon": [5, 0], "mark": [4, 0], "heard": None}
    digest = await peer(json.dumps(said).encode()).digest([])
    assert (digest.horizon, digest.mark, digest.heard) == ((5, 0), (4, 0), (0, 0))
    with pytest.raises(MetadataUnavailable, match="another version"):
        await peer(json.dumps(said | {"horizon": horizon}).encode()).digest([])


async def test_an_earlier_version_says_nothing_about_it() -> None:
    said = json.loads(states_json({PATH: STATE}))
    del said["states"][PATH]["knows"]
    [found] = (await peer(json.dumps(said).encode()).states([PATH])).values()
    assert (found, found.knows) == (STATE, {})


@pytest.mark.parametrize(
    "known",
    [
        [],
        1,
        {"us": 1},
        {"us": [1, 2]},
        {"us": [0, 1, 1 << 64]},
        {"us": [0, -1, 0]},
        {"us": [1 << 40, 1, 1]},
        {"u" * 999: [0, 1, 1]},
    ],
)
async def test_what_no_event_could_say_is_refused(known: object) -> None:
    said = json.loads(states_json({PATH: STATE}))
    said["states"][PATH]["knows"] = known
    if known == []:
        said["states"][PATH]["stamp"][2] = "u" * 999
    with pytest.raises(MetadataUnavailable, match="another version"):
        await peer(json.dumps(said).encode()).states([PATH])
