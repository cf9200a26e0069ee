# SPDX-License-Identifier: Apache-2.0
"""Writes an object's status, finalizers and Events to Kubernetes, and reads what kopf does not.

kopf only watches custom resources here. Its own bookkeeping (annotations with the last handled spec, a finalizer on
every object with a timer) would make every deletion depend on a running operator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import kopf

from meridian_operator.api.fields import GROUP, VERSION

COMPONENT: Final = "meridian-operator"
CALL_SECONDS: Final = 15.0
PARALLEL_CALLS: Final = 16
STATUS_TRIES: Final = 5
MESSAGE_CHARACTERS: Final = 1000
"""Kubernetes accepts 1,024 in an Event."""
PAGE: Final = 500
"""Objects per page of a list of metadata."""
LARGE_PAGE: Final = 10
"""Objects per page of a list of whole objects: each may be 1 MiB."""
WATCH_SECONDS: Final = 240
"""After this time the API server ends a watch, and the next one begins."""
EVENT_BYTES: Final = 16 << 20
"""Maximum size of a watch event: an object of 1.5 MiB, escaped as JSON, with room to spare."""
_MERGE: Final = "application/merge-patch+json"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class KubeError(Exception):
    """The API server refused a request or did not answer. The message has the request and the reason."""


class Conflict(KubeError):
    """The object has changed since it was read."""


class Gone(KubeError):
    """The object no longer exists."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One custom resource."""

    kind: str
    plural: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Event:
    """An Event that users see in ``kubectl describe``."""

    reason: str
    message: str
    warning: bool = False


class KubeClient:
    """Uses the API server that kopf is logged in to.

    :param login: returns the current connection; called again when the API server rejects the token, which Kubernetes
        renews in place.
    :param traces: called for every request.
    """

    def __init__(self, login: Callable[[], kopf.ConnectionInfo], traces: Sequence[aiohttp.TraceConfig] = ()) -> None:
        self._login = login
        self._traces = list(traces)
        self._info: kopf.ConnectionInfo | None = None
        self._http: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(PARALLEL_CALLS)
        self.calls = 0
        """Requests so far."""

    async def close(self) -> None:
        """End all connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def write_status(
        self, of: Reference, known: Mapping[str, Any], status: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Replace the given keys of the status, unless the object was deleted and created again. Returns the object.

        :param known: metadata of the object that the status is about; a newer version of the object is fine.
        :raises Gone: it no longer exists.
        :raises KubeError: the write failed.
        """
        path, version = _path(of), str(known["resourceVersion"])
        for _ in range(STATUS_TRIES):
            try:
                # The version is the only precondition: for the status, the API server ignores a UID.
                body = {"metadata": {"resourceVersion": version}, "status": dict(status)}
                return await self.send("PATCH", f"{path}/status", body)
            except Conflict:
                there = (await self.send("GET", path))["metadata"]
                if there["uid"] != known["uid"]:
                    raise Gone(f"{of} was deleted and created again") from None
                version = str(there["resourceVersion"])
        raise Conflict(f"{of} changed {STATUS_TRIES} times while its status was written")

    async def write_finalizers(self, of: Reference, finalizers: Sequence[str], version: str) -> None:
        """Replace the finalizers, unless the object has changed since ``version``.

        :raises Conflict: it has changed; an event for that change will follow.
        :raises KubeError: the write failed.
        """
        metadata = {"finalizers": list(finalizers), "resourceVersion": version}
        await self.send("PATCH", _path(of), {"metadata": metadata})

    async def post(self, of: Reference, uid: str, event: Event, now: str) -> None:
        """Record an Event about the object.

        :raises KubeError: it was not recorded.
        """
        about = {"apiVersion": f"{GROUP}/{VERSION}", "kind": of.kind, "name": of.name, "namespace": of.namespace}
        await self.send(
            "POST",
            f"/api/v1/namespaces/{of.namespace}/events",
            {
                "metadata": {"generateName": f"{of.name}-", "namespace": of.namespace},
                "involvedObject": {**about, "uid": uid},
                "reason": event.reason,
                "message": event.message[:MESSAGE_CHARACTERS],
                "type": "Warning" if event.warning else "Normal",
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

    async def uids(self, plural: str, namespace: str = "") -> set[str]:
        """UIDs of all our objects of a kind, in one namespace or in all.

        :raises KubeError: the list failed.
        """
        path = f"/apis/{GROUP}/{VERSION}/{f'namespaces/{namespace}/' if namespace else ''}{plural}?limit={PAGE}"
        found: set[str] = set()
        following = ""
        while True:
            page = await self.send("GET", f"{path}&continue={quote(following, safe='')}", accept=_METADATA)
            found.update(str(one["metadata"]["uid"]) for one in page["items"])
            following = page["metadata"].get("continue") or ""
            if not following:
                return found

    async def pages(self, path: str) -> AsyncIterator[tuple[list[Mapping[str, Any]], str]]:
        """All objects of a list, in pages, each with the version at which a watch continues.

        :param path: with a query.
        :raises KubeError: the list failed.
        """
        following = ""
        while True:
            page = await self.send("GET", f"{path}&limit={LARGE_PAGE}&continue={quote(following, safe='')}")
            yield page["items"], str(page["metadata"]["resourceVersion"])
            following = page["metadata"].get("continue") or ""
            if not following:
                return

    async def watch(self, path: str, version: str) -> AsyncGenerator[tuple[str, Mapping[str, Any]]]:
        """Changes since ``version``, until the API server ends the watch: the event's type and the object.

        :param path: with a query.
        :raises KubeError: the API server refused, the connection failed, or ``version`` is too old.
        """
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS, sock_read=WATCH_SECONDS + CALL_SECONDS)
        self.calls += 1
        try:
            http, server = self._session()
            async with http.get(f"{server}{path}&{query}", timeout=timeout) as response:
                if response.status != 200:
                    raise KubeError(f"watch {path}: HTTP {response.status}: {(await response.text())[:500]}")
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise KubeError(f"watch {path}: {str(event['object'])[:500]}")
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError, ValueError, kopf.LoginError) as error:
            raise KubeError(f"watch {path}: {error or type(error).__name__}") from error

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, accept: str = "application/json"
    ) -> Mapping[str, Any]:
        """Send one request and return the object in the response.

        :raises Conflict: the object has changed since it was read.
        :raises Gone: there is no such object.
        :raises KubeError: any other refusal, or no answer.
        """
        status, text = await self._request(method, path, body, accept)
        if status == 401:
            await self.close()
            status, text = await self._request(method, path, body, accept)
        if status < 300:
            answered: Mapping[str, Any] = json.loads(text)
            return answered
        kind = {404: Gone, 409: Conflict}.get(status, KubeError)
        raise kind(f"{method} {path}: HTTP {status}: {text[:500]}")

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None, accept: str) -> tuple[int, str]:
        data = None if body is None else json.dumps(body)
        headers = {"Accept": accept, "Content-Type": _MERGE if method == "PATCH" else "application/json"}
        async with self._slots:
            self.calls += 1
            try:
                http, server = self._session()
                async with http.request(method, server + path, data=data, headers=headers) as response:
                    return response.status, await response.text()
            except (aiohttp.ClientError, OSError, kopf.LoginError) as error:
                raise KubeError(f"{method} {path}: {error or type(error).__name__}") from error

    def _session(self) -> tuple[aiohttp.ClientSession, str]:
        if self._http is None or self._info is None:
            self._info = self._login()
            tls = self._info.as_ssl_context() if self._info.server.startswith("https:") else False
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=PARALLEL_CALLS + 1),  # one more for a watch
                headers=self._info.as_http_headers(),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
                trace_configs=self._traces,
            )
        return self._http, self._info.server


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of up to ``EVENT_BYTES``; aiohttp's own limit is much lower.

    :raises ValueError: a line is longer.
    """
    begun = bytearray()
    async for chunk in content.iter_any():
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield bytes(begun + part)
            begun.clear()
        begun += rest
        if len(begun) > EVENT_BYTES:
            raise ValueError(f"an event is longer than {EVENT_BYTES:,} bytes")


def _path(of: Reference) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{of.namespace}/{of.plural}/{of.name}"
