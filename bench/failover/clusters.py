# SPDX-License-Identifier: Apache-2.0
"""Clusters that replicate to each other, used as by any user: Pulsar's protocol and admin REST API."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import pulsar

PATIENCE = 120.0


@dataclass
class Cluster:
    """One such cluster."""

    name: str
    service_url: str
    admin_url: str
    kill: Callable[[], None] | None = None
    """SIGKILL its broker; None: not available."""
    bring_back: Callable[[], None] = field(default=lambda: None)
    _connection: http.client.HTTPConnection | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Host and port for clients, as the workers take them."""
        split = urlsplit(self.service_url)
        return {"host": split.hostname, "port": split.port}

    def client(self) -> pulsar.Client:
        return pulsar.Client(
            self.service_url,
            operation_timeout_seconds=int(PATIENCE),
            io_threads=1,
            message_listener_threads=1,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )

    def get(self, path: str) -> Any:
        """The answer's JSON; None if it refuses or does not answer. The connection is kept, because it is used
        often."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(urlsplit(self.admin_url).netloc, timeout=10)
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            body = answer.read()
            return json.loads(body) if answer.status == 200 else None
        except (http.client.HTTPException, OSError, ValueError):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None

    def keep_everything(self, namespace: str) -> None:
        """Keep everything: otherwise ``entries`` would not grow with each arrival."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/namespaces/{namespace}/retention",
            json.dumps({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=30):
            pass

    def entries(self, topic: str) -> int:
        """Entries stored, from clients and from other regions."""
        return int((self.get(f"{_path(topic)}/internalStats") or {}).get("numberOfEntries", 0))

    def acknowledged(self, topic: str, subscription: str) -> int | None:
        """How many of these the subscription no longer owes."""
        found = (self.get(f"{_path(topic)}/stats") or {}).get("subscriptions", {}).get(subscription)
        return None if found is None else self.entries(topic) - int(found["msgBacklog"])

    def subscriptions(self, topic: str) -> list[str]:
        """Names of the topic's subscriptions."""
        found: list[str] = self.get(f"{_path(topic)}/subscriptions") or []
        return found

    def mark_delete(self, topic: str, subscription: str) -> tuple[int, int] | None:
        """The position up to which a subscription is acknowledged without gaps."""
        found = (self.get(f"{_path(topic)}/internalStats") or {}).get("cursors", {}).get(quote(subscription))
        if found is None:
            return None
        ledger, _, entry = found["markDeletePosition"].partition(":")
        return int(ledger), int(entry)


def _path(topic: str) -> str:
    space, _, name = topic.replace("://", "/", 1).rpartition("/")
    return f"/admin/v2/{space}/{quote(name)}"


def wait(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for the first true value of ``condition()``, and return it."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise SystemExit(f"bench: waited {seconds:.0f} s for {what}, in vain")
        time.sleep(0.01)
    return value


def by_command(command: str | None) -> Callable[[], None] | None:
    """A shell command as a function."""
    if command is None:
        return None

    def call() -> None:
        subprocess.run(["sh", "-c", command], check=True, timeout=300)

    return call
