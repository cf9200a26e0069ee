# SPDX-License-Identifier: Apache-2.0
"""The client of a real S3 server: what is written comes back, and what fails says whose fault it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from meridian_broker.engines.s3.objects import S3Objects
from meridian_broker.engines.s3.place import S3Place
from meridian_broker.ledgers.objects import ObjectInfo, ObjectNotFound, ObjectStoreAway, ObjectStoreRefused
from support.brokers.broker_regions import until
from support.brokers.certificates import Authority
from support.brokers.free_ports import free_port
from support.brokers.s3_server import SECRET, S3Server


@pytest.fixture
async def objects(server: S3Server, request: pytest.FixtureRequest) -> AsyncIterator[S3Objects]:
    made = S3Objects(replace(server.place, prefix=f"a/{request.node.name}"))
    yield made
    await made.close()


async def test_objects_come_back_whole_and_in_part(objects: S3Objects, server: S3Server) -> None:
    large = (
        bytes(range(256)) * 80_000
    )  # 20 MB: in one part, because an interrupted multipart upload leaves parts behind
    await objects.put("x/large", large)
    await objects.put("x/empty", b"")
    await objects.put("xy/other", b"not below x")
    assert await objects.read("x/large", 0, -1) == large
    assert await objects.read("x/large", 1000, 500) == large[1000:1500]
    assert await objects.read("x/large", len(large) - 5, 50) == large[-5:]
    assert await objects.read("x/empty", 0, -1) == b""
    assert await objects.list("x") == [ObjectInfo("x/empty", 0), ObjectInfo("x/large", len(large))]
    assert any(path.parts[-4:-1] == ("a", "test_objects_come_back_whole_and_in_part", "x") for path in server.objects())


async def test_whatever_is_there_is_deleted_and_what_is_not_is_no_matter(objects: S3Objects) -> None:
    keys = [f"x/{number:04d}" for number in range(1100)]  # more than one request can list or delete
    limit = asyncio.Semaphore(50)

    async def put(key: str) -> None:
        async with limit:
            await objects.put(key, key.encode())

    await asyncio.gather(*map(put, keys))
    assert [one.key for one in await objects.list("x")] == keys
    await objects.delete([*keys[1:], "x/never-there"])
    assert [one.key for one in await objects.list("x")] == keys[:1]
    assert await objects.list("nothing") == []
    assert await objects.list("x", after=keys[0]) == []
    for first, length in ((0, -1), (0, 5)):
        with pytest.raises(ObjectNotFound):
            await objects.read(keys[1], first, length)


async def test_wrong_credentials_are_said_and_not_repeated_to_anybody(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    objects = S3Objects(server.place)
    for asked in (objects.put("k", b"v"), objects.read("k", 0, 1), objects.list("k"), objects.delete(["k"])):
        with pytest.raises(ObjectStoreRefused, match="refuses these credentials") as caught:
            await asked
        assert "another-secret" not in str(caught.value) and SECRET not in str(caught.value)
    await objects.close()


async def test_a_missing_bucket_is_said(server: S3Server) -> None:
    objects = S3Objects(replace(server.place, bucket="nowhere"))
    for asked in (objects.put("k", b"v"), objects.list("k")):
        with pytest.raises(ObjectStoreRefused, match="no such bucket"):
            await asked
    await objects.close()


async def test_a_server_that_is_away_or_hangs_costs_a_bounded_time(tmp_path: Path) -> None:
    away = S3Objects(S3Place(bucket="b", endpoint=f"http://127.0.0.1:{free_port()}", timeout_seconds=1, max_attempts=2))
    began = time.monotonic()
    with pytest.raises(ObjectStoreAway, match="could not write k to bucket b at http://127"):
        await away.put("k", b"v")
    assert time.monotonic() - began < 20
    with S3Server(tmp_path) as server:
        server.pause()
        hangs = S3Objects(replace(server.place, timeout_seconds=1, max_attempts=2))
        with pytest.raises(ObjectStoreAway):
            await hangs.read("k", 0, 1)
        assert time.monotonic() - began < 60
        server.resume()

        async def finds_nothing() -> bool:
            with contextlib.suppress(ObjectStoreAway):  # a second may not be enough for a server that wakes up
                with pytest.raises(ObjectNotFound):
                    await hangs.read("k", 0, 1)
                return True
            return False

        await until(finds_nothing)
    await hangs.close()
    with pytest.raises(ObjectStoreAway, match="was closed"):
        await hangs.read("k", 0, 1)


async def test_tls_needs_an_authority_that_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with S3Server(tmp_path, authority.issue("s3")) as server:
        trusting = S3Objects(replace(server.place, ca_file=authority.trusted))
        await trusting.put("k", b"v")
        assert await trusting.read("k", 0, -1) == b"v"
        with pytest.raises(ObjectStoreAway):
            await S3Objects(replace(server.place, max_attempts=1)).read("k", 0, -1)
        with pytest.raises(ObjectStoreRefused, match="cannot be used"):
            S3Objects(replace(server.place, ca_file=tmp_path / "missing.pem"))
