# SPDX-License-Identifier: Apache-2.0
"""How the operator reads verdicts from the API server: it lists, watches, and starts over after any failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kopf
from aiohttp import web
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.verdict_watch import VerdictWatch
from meridian_operator.kube.client import KubeClient
from meridian_operator.plan.verdicts import LABEL, Verdicts
from support.brokers.broker_regions import until

PATH = "/api/v1/namespaces/verifying/configmaps"
TOPIC = "persistent://public/default/orders"
NOW = "2026-01-01T00:00:00Z"
SETTINGS = Settings(verdicts_namespace="verifying", verifiers=["orders"])


def config_map(verdict: str, version: int = 1, detail: str = "") -> dict[str, Any]:
    row = {"topic": TOPIC, "subscription": "", "verdict": verdict, "detail": detail}
    document = {"run": "1", "time": NOW, "subscriptions": [row]}
    meta = {"name": "meridian-verdict-orders", "labels": {LABEL: "orders"}, "resourceVersion": str(version)}
    return {"metadata": meta, "data": {"verdict.json": json.dumps(document)}}


class Api:
    """Answers lists with ``listed``, and each watch with the next of ``watches``; then watches stay silent."""

    def __init__(self) -> None:
        self.listed: list[list[dict[str, Any]]] = [[]]
        self.status = 200
        self.watches: list[list[bytes]] = []
        self.queries: list[dict[str, str]] = []
        self.problems: list[str] = []
        """Why verdicts could not be read, at each pause."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == PATH
        self.queries.append(dict(request.query))
        if request.query.get("watch") != "true":
            page = int(request.query["continue"] or 0)
            more = str(page + 1) if page + 1 < len(self.listed) else ""
            meta = {"resourceVersion": "7", "continue": more}
            return web.json_response({"metadata": meta, "items": self.listed[page]}, status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.watches:
            await asyncio.Event().wait()
        for part in self.watches.pop(0):
            await response.write(part)
        return response


@asynccontextmanager
async def watching(api: Api) -> AsyncIterator[tuple[Verdicts, VerdictWatch]]:
    app = web.Application()
    app.router.add_get("/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    login = kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}", token="a-token")
    kube, verdicts = KubeClient(lambda: login), Verdicts(SETTINGS.verifiers)

    async def pause(_: float) -> None:
        api.problems.append(verdicts.problem)
        await asyncio.sleep(0)

    watch = VerdictWatch(kube, SETTINGS, verdicts, sleep=pause)
    try:
        yield verdicts, watch
    finally:
        await watch.close()
        await kube.close()
        await runner.cleanup()


def event(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def becomes(verdicts: Verdicts, verdict: str | None) -> None:
    def is_so() -> bool:
        row = verdicts.on(TOPIC, "", NOW)
        return (None if row is None else row.verdict) == verdict

    await until(is_so)


async def test_it_lists_in_pages_and_then_follows_every_change() -> None:
    api = Api()
    api.listed = [[], [config_map("aligned")]]
    changed = event("MODIFIED", config_map("misaligned", 8, "x" * 200_000))
    api.watches = [[changed[:100], changed[100:150_000], changed[150_000:]]]
    async with watching(api) as (verdicts, watch):
        await watch.tried()
        await becomes(verdicts, "misaligned")
        await until(lambda: len(api.queries) == 4)
        assert {query["labelSelector"] for query in api.queries} == {"meridian.dev/verdict in (orders)"}
        assert [query["resourceVersion"] for query in api.queries[2:]] == ["7", "8"], "it resumes where it stopped"


async def test_a_deleted_verdict_is_forgotten_and_bookmarks_only_advance() -> None:
    api = Api()
    api.listed = [[config_map("aligned")]]
    bookmark = {"metadata": {"resourceVersion": "9"}}
    api.watches = [[event("BOOKMARK", bookmark)], [event("DELETED", config_map("aligned", 10))]]
    async with watching(api) as (verdicts, _):
        await until(lambda: len(api.queries) == 4)
        assert [query.get("resourceVersion") for query in api.queries] == [None, "7", "9", "10"]
        assert verdicts.on(TOPIC, "", NOW) is None


async def test_after_any_failure_it_lists_again_and_keeps_what_it_knew() -> None:
    broken = (
        event("ERROR", {"code": 410, "message": "too old resource version"}),
        b"not json\n",
        b"3\n",
        event("MODIFIED", {"metadata": {}}),
    )
    for one in broken:
        api = Api()
        api.listed = [[config_map("aligned")]]
        api.watches = [[one]]
        async with watching(api) as (verdicts, _):
            await until(lambda api=api: len(api.queries) >= 4)
            assert [query.get("watch") for query in api.queries[:4]] == [None, "true", None, "true"]
            await becomes(verdicts, "aligned")
            assert api.problems == [""], "otherwise every object would report a missing verdict"


async def test_objects_do_not_wait_for_verdicts_that_cannot_be_read() -> None:
    api = Api()
    api.status = 403
    async with watching(api) as (verdicts, watch):
        await asyncio.wait_for(watch.tried(), 10)
        assert "ConfigMaps in namespace verifying" in verdicts.problem
        assert "HTTP 403" in verdicts.problem
        api.listed, api.status = [[config_map("aligned")]], 200
        await becomes(verdicts, "aligned")
        await until(lambda: not verdicts.problem)


async def test_without_a_verifier_nothing_is_read() -> None:
    async def never(_: float) -> None:
        raise AssertionError("there is nothing to wait for")

    def login() -> kopf.ConnectionInfo:
        raise AssertionError("there is nothing to ask")

    kube = KubeClient(login)
    watch = VerdictWatch(kube, Settings(), Verdicts(), sleep=never)
    await asyncio.wait_for(watch.tried(), 10)
    await watch.close()
    await kube.close()
