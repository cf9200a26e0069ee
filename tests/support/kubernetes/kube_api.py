# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Kubernetes' API server as the operator uses it: lists, watches, patches, finalizers and so on.

It runs on an event loop in its own thread. Tests call its methods as users call ``kubectl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import socket
import threading
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aiohttp import web
from meridian_operator.api.crd import KINDS
from meridian_operator.api.fields import GROUP, VERSION, Kind

CORE: Final = ("services", "configmaps", "events")
OWN: Final = {kind.plural: kind for kind in KINDS}
Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""


class KubeApi:
    """Objects, their history, and requests."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and path of every request but watches."""
        self.writes: list[tuple[str, str, float]] = []
        """Token, path and time (``time.monotonic``) of every write but those to Leases."""
        self.port = 0
        self._log: list[tuple[str, str, Object]] = []
        self._changed = asyncio.Condition()
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube-api")
        self._runner: web.AppRunner | None = None
        self._clock = datetime(2026, 1, 1, tzinfo=UTC)

    def __enter__(self) -> KubeApi:
        self._thread.start()
        self.call(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    # -- what users do ---------------------------------------------------------------------------------------------

    def create(self, plural: str, name: str, namespace: str = "default", **rest: Any) -> None:
        """``kubectl create``; each object is a second younger than the one before."""
        self.call(self._create(plural, namespace, name, rest))

    def annotate(self, plural: str, name: str, namespace: str = "default", **annotations: str) -> None:
        """``kubectl annotate``; underscores become hyphens."""
        found = {f"{GROUP}/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.call(self._patch((plural, namespace, name), {"metadata": {"annotations": found}}))

    def edit(self, plural: str, name: str, namespace: str = "default", **spec: Any) -> None:
        """``kubectl patch`` of the specification."""
        self.call(self._patch((plural, namespace, name), {"spec": spec}))

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """``kubectl delete --wait=false``."""
        self.call(self._delete((plural, namespace, name)))

    def lose(self, plural: str, name: str, namespace: str = "default") -> None:
        """Remove the object without sending watches an event."""
        self.objects.pop((plural, namespace, name))

    def get(self, plural: str, name: str, namespace: str = "default") -> Object | None:
        """The object; None when it does not exist."""
        found = self.objects.get((plural, namespace, name))
        return copy.deepcopy(found)

    def condition(self, plural: str, name: str, kind: str = "Ready", namespace: str = "default") -> Object:
        """A condition; empty when the object lacks it."""
        conditions = (self.get(plural, name, namespace) or {}).get("status", {}).get("conditions", ())
        found: Object = next((one for one in conditions if one["type"] == kind), {})
        return found

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Type, reason and message of the Events about an object, oldest first."""
        return [
            (one["type"], one["reason"], one["message"])
            for (plural, _, _), one in self.objects.copy().items()
            if plural == "events" and one["involvedObject"]["name"] == name
        ]

    def ever(self, plural: str, reason: str) -> set[str]:
        """Objects whose conditions have ever had this reason."""
        return {
            one["metadata"]["name"]
            for _, kind, one in list(self._log)
            if kind == plural and any(told["reason"] == reason for told in one.get("status", {}).get("conditions", ()))
        }

    # -- what happens to objects -----------------------------------------------------------------------------------

    async def _create(self, plural: str, namespace: str, name: str, rest: Object) -> Object:
        self._clock += timedelta(seconds=1)
        made = copy.deepcopy(rest)
        made["metadata"] = {
            **made.get("metadata", {}),
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{len(self._log)}",
            "generation": 1,
            "creationTimestamp": self._clock.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if plural in OWN:
            made |= {"apiVersion": f"{GROUP}/{VERSION}", "kind": OWN[plural].kind}
        await self._store("ADDED", (plural, namespace, name), made)
        return made

    async def _patch(self, key: Key, patch: Object, *, status: bool = False) -> Object:
        before = self.objects[key]
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
            raise web.HTTPConflict(text="the object has been modified")
        kept = (
            {"status": patch["status"]} if status else {name: part for name, part in patch.items() if name != "status"}
        )
        after: Object = _merged(before, kept)
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] += 1
        if status:
            _check_status(OWN[key[0]], after["status"])
        if after == before:
            return before
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            await self._store("DELETED", key, after)
        else:
            await self._store("MODIFIED", key, after)
        return after

    async def _delete(self, key: Key) -> None:
        after = copy.deepcopy(self.objects[key])
        if not after["metadata"].get("finalizers"):
            await self._store("DELETED", key, after)
        elif "deletionTimestamp" not in after["metadata"]:
            after["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
            after["metadata"]["generation"] += 1
            await self._store("MODIFIED", key, after)

    async def _store(self, change: str, key: Key, after: Object) -> None:
        after["metadata"]["resourceVersion"] = str(len(self._log) + 1)
        if change == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = after
        self._log.append((change, key[0], copy.deepcopy(after)))
        async with self._changed:
            self._changed.notify_all()

    # -- what the operator asks ------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._socket = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._socket).start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        assert self._runner is not None
        async with self._changed:
            self._closing = True
            self._changed.notify_all()
        # CPython leaves a connection open that was accepted in the turn of the loop in which its server closes.
        self._loop.remove_reader(self._socket)
        await asyncio.sleep(0)
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if request.query.get("watch") == "true":
            return await self._watch(request, parts)
        self.requests.append((request.method, request.path))
        if request.method != "GET" and "leases" not in parts:
            self.writes.append((request.headers.get("Authorization", ""), request.path, time.monotonic()))
        if (found := _discovery(request.path)) is not None:
            return web.json_response(found)
        if request.method == "GET" and parts[-2] in ("leases", "secrets", *OWN):
            if (found := self.objects.get((parts[-2], parts[-3], parts[-1]))) is None:
                raise web.HTTPNotFound(text="no such object")
            return web.json_response(found)
        if request.method == "GET":
            of_kind = [one for (plural, _, _), one in self.objects.items() if plural == parts[-1]]
            items = [one for one in of_kind if _asked(request, parts, one)]
            return web.json_response({"metadata": {"resourceVersion": str(len(self._log))}, "items": items})
        namespace, plural, *rest = parts[parts.index("namespaces") + 1 :]
        body = await request.json()
        if request.method == "POST":
            meta = body["metadata"]
            name = meta.get("name") or f"{meta['generateName']}{len(self._log)}"
            if (plural, namespace, name) in self.objects:
                raise web.HTTPConflict(text="the object already exists")
            return web.json_response(await self._create(plural, namespace, name, body), status=201)
        key = (plural, namespace, rest[0])
        if key not in self.objects:
            raise web.HTTPNotFound(text="no such object")
        return web.json_response(await self._patch(key, body, status=rest[1:] == ["status"]))

    async def _watch(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        told = int(request.query.get("resourceVersion") or 0)
        seconds = request.query.get("timeoutSeconds")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds is None else float(seconds)):
                await self._tell(request, parts, told, response)
        return response

    async def _tell(self, request: web.Request, parts: list[str], told: int, response: web.StreamResponse) -> None:
        """Send every requested change after version ``told``."""
        while not self._closing:
            for change, kind, one in self._log[told:]:
                told += 1
                if kind == parts[-1] and _asked(request, parts, one):
                    await response.write(json.dumps({"type": change, "object": one}).encode() + b"\n")
            async with self._changed:
                while len(self._log) == told and not self._closing:
                    await self._changed.wait()


def _asked(request: web.Request, parts: list[str], one: Object) -> bool:
    """Whether the object is in the request's namespace and matches its selector (``LABEL in (VALUE,...)``)."""
    if "namespaces" in parts and one["metadata"]["namespace"] != parts[parts.index("namespaces") + 1]:
        return False
    label, _, values = request.query.get("labelSelector", "").partition(" in ")
    return not label or one["metadata"].get("labels", {}).get(label) in values.strip("()").split(",")


def _merged(before: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    after = copy.deepcopy(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return after


def _check_status(kind: Kind, status: Object) -> None:
    """Kubernetes drops fields that are not in the schema; here, they are errors."""
    known = {field.alias for field in kind.status.model_fields.values()}
    if status.keys() - known:
        raise web.HTTPUnprocessableEntity(text=f"unknown in the status of {kind.kind}: {status.keys() - known}")
    kind.status.model_validate(status)


def _resource(plural: str, kind: str, *, namespaced: bool = True) -> Object:
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": verbs}


def _discovery(path: str) -> Object | None:
    """The known kinds. kopf insists on namespaces and CRDs, though it is told not to scan them."""
    own = [_resource(kind.plural, kind.kind) for kind in KINDS]
    own += [_resource(f"{kind.plural}/status", kind.kind) for kind in KINDS]
    core = [_resource(plural, plural[:-1].title()) for plural in CORE]
    crds = _resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
    answers: Object = {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [_group(GROUP, VERSION), _group("apiextensions.k8s.io", "v1")]},
        "/api/v1": {"resources": [*core, _resource("namespaces", "Namespace", namespaced=False)]},
        "/apis/apiextensions.k8s.io/v1": {"resources": [crds]},
        f"/apis/{GROUP}/{VERSION}": {"resources": own},
    }
    found: Object | None = answers.get(path)
    return found


def _group(name: str, version: str) -> Object:
    versions = [{"groupVersion": f"{name}/{version}", "version": version}]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}
