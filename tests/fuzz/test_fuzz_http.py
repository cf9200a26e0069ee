# SPDX-License-Identifier: Apache-2.0
"""Hostile requests to the HTTP port, on real sockets, until the time is up (``FUZZ_SECONDS``, default 60).

Requests are drawn from the table of routes, with odd names, queries, headers and bodies, and with bytes that are not
HTTP. Each is answered, never with 500, or its connection ends; an honest request is answered, an honest message passes,
no turn of the broker's loop takes more than 50 ms of CPU time, and the broker logs no failure of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from fuzzed_broker import FuzzedBroker, fuzz
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from meridian_broker.admin.routes import ROUTES

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
ROUND = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
ANSWER_SECONDS_MAX = 10
NAMES: Final = {
    "cluster": ("inside", "away"),
    "tenant": ("public", "fuzz"),
    "namespace": ("fuzz",),
    "topic": ("t", "p", "t-partition-0"),
    "subscription": ("s", "pulsar.repl.away"),
    "domain": ("persistent", "non-persistent"),
    "snapshot": ("1",),
    "table": ("entries", "progress"),
    "version": ("0",),
}
"""Usual names in a path; honest clients use none of these."""
ODD: Final = (
    "", ".", "..", "x" * 300, "a b", "a\x1b[2Jb", "a\nb", "ä", "%00", "a/b", "-1", "0", "9" * 30, "1e9", "null", "*",
    "re:(a|a)+$", "t-partition-99999", "__change_events",
)  # fmt: skip
QUERIES: Final = (
    "force", "authoritative", "checkAllowAutoCreation", "createLocalTopicOnly", "updateLocalTopicOnly",
    "getPartitionedBacklog", "incarnation", "stamp", "region", "timestamp", "replicated", "messageId",
    "getLastMessageId", "subscriptionName", "token", "ledgerId", "entryId", "regions", "mode", "from", "topics",
    "bundle", "deleteSchema", "count", "limit", "perSubscription",
)  # fmt: skip
_SEGMENT: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")


@dataclass(frozen=True)
class Request:
    """Data sent on a new connection, and whether the client then closes its half of it."""

    data: bytes
    ends: bool

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"Request({len(self.data)} bytes {self.data[:700]!r}{', then the end' if self.ends else ''})")


def json_values() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from((-(1 << 63), -1, 0, 1, 2, 1001, 1 << 31, 1 << 63, 1 << 64, 1e308, 0.5))
    leaves = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from((*ODD, "inside", "64M", "PT5M")))
    keys = st.sampled_from(
        ("ledgerId", "entryId", "partitionIndex", "batchIndex", "limit", "limitSize", "limitTime", "policy", "type",
         "schema", "properties", "adminRoles", "allowedClusters", "serviceUrl", "retentionTimeInMinutes", "topics",
         "regions", "x")
    )  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
        max_leaves=8,
    )


def bodies() -> st.SearchStrategy[bytes]:
    deep = st.integers(1, 50_000).map(lambda depth: b"[" * depth)
    encoded = json_values().map(lambda value: json.dumps(value).encode())
    return st.one_of(st.just(b""), encoded, encoded, encoded, deep, st.binary(max_size=300))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request; one in ten is malformed."""
    route = draw(st.sampled_from(ROUTES))
    known = draw(st.integers(0, 3)) > 0

    def part(match: re.Match[str]) -> str:
        usual = NAMES.get(match[1], ("1",))
        return quote(draw(st.sampled_from(usual if known or draw(st.booleans()) else ODD)), safe="")

    path = _SEGMENT.sub(part, route.path)
    asked = draw(st.lists(st.tuples(st.sampled_from(QUERIES), st.sampled_from(("true", "1", "s", *ODD))), max_size=2))
    query = "&".join(f"{name}={quote(value)}" for name, value in asked)
    method = route.method if draw(st.integers(0, 9)) else draw(st.sampled_from(("HEAD", "OPTIONS", "PATCH", "X" * 40)))
    body = draw(bodies()) if method in ("PUT", "POST", "DELETE") else b""
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    headers |= draw(
        st.dictionaries(
            st.sampled_from(("Content-Length", "Transfer-Encoding", "Content-Type", "Host", "Origin", "Range", "Expect",
                             "Content-Encoding", "Authorization", "X-Large")),
            st.sampled_from(("0", "-1", "99999999999", "chunked", "gzip", "text/plain", "bytes=0-", "100-continue",
                             "Bearer a.b.c", "http://evil.example", "y" * 9000)),
            max_size=1,
        )
        if draw(st.integers(0, 4)) == 0
        else st.just({})
    )  # fmt: skip
    lines = [
        f"{method} {path}{'?' + query if query else ''} HTTP/1.1",
        *(f"{k}: {v}" for k, v in headers.items()),
        "",
        "",
    ]
    data = "\r\n".join(lines).encode() + body
    if draw(st.integers(0, 9)) == 0:
        cut, noise = draw(st.integers(0, len(data))), draw(st.binary(max_size=40))
        data = data[:cut] + noise + data[cut + draw(st.integers(0, 3)) :]
    return Request(data, draw(st.booleans()))


async def say(port: int, request: Request) -> bytes:
    """The answer up to its status line, or what arrives before 50 ms have passed or the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        writer.write(request.data)
        if request.ends:
            writer.write_eof()
        async with asyncio.timeout(0.05):
            while b"\r\n" not in said and (data := await reader.read(1 << 16)):
                said += data
    except (ConnectionError, TimeoutError):
        pass  # the server waits for the rest of an incomplete request, up to its deadline
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return said


async def live_beside(broker: FuzzedBroker, script: list[Request]) -> None:
    async with broker.turns.watching():
        for request in script:
            said = await say(broker.http_port, request)
            status = re.match(rb"HTTP/\d\.\d (\d+) ", said)
            assert not said or status, said[:300]
            assert status is None or status[1] != b"500", said[:2000]
        honest = Request(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", False)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not (said := await say(broker.http_port, honest)).startswith(b"HTTP/1.1 200"):
                assert not said, said[:300]
        await broker.other.pass_one()


def round_on(broker: FuzzedBroker, number: int, end: float) -> int:
    """Run scripts from this seed until the time is up; return their number."""
    done = 0

    @seed(number)
    @ROUND
    @given(st.lists(requests(), min_size=1, max_size=8))
    def round_of(script: list[Request]) -> None:
        nonlocal done
        if time.monotonic() < end:
            done += 1
            broker.run(lambda: live_beside(broker, script))

    round_of()
    return done


@pytest.mark.timeout(SECONDS + 900)
def test_fuzz_http(tmp_path: Path) -> None:
    done = fuzz(tmp_path, SECONDS, round_on)
    print(f"http: {done} scripts")
    assert done > 20, "too few scripts were tried"
