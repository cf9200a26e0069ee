# SPDX-License-Identifier: Apache-2.0
"""Two clusters that replicate to each other, spoken with as any user would: Pulsar's protocol and admin REST."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pulsar

PATIENCE = 120.0


@dataclass
class Cluster:
    """One of the two."""

    name: str
    service_url: str
    admin_url: str
    kill: Callable[[], None] | None = None
    """SIGKILL its broker; None: nobody told us how."""
    bring_back: Callable[[], None] = field(default=lambda: None)

    def client(self) -> pulsar.Client:
        return pulsar.Client(
            self.service_url,
            io_threads=1,
            message_listener_threads=1,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )

    def get(self, path: str) -> Any:
        """The answer's JSON; None when it is refused, or nobody answers."""
        try:
            with urllib.request.urlopen(self.admin_url + path, timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def backlog(self, topic: str, subscription: str) -> int | None:
        """Entries that the subscription has not got acknowledged here, as the admin API counts them."""
        stats = self.get(
            f"/admin/v2/{topic.replace('://', '/', 1).rpartition('/')[0]}/{quote(topic.rpartition('/')[2])}/stats"
        )
        found = (stats or {}).get("subscriptions", {}).get(subscription)
        return None if found is None else int(found["msgBacklog"])


def wait(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value of ``condition()``."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise SystemExit(f"bench: waited {seconds:.0f} s for {what}, in vain")
        time.sleep(0.01)
    return value


def by_command(command: str | None) -> Callable[[], None] | None:
    """A line of shell as something to call."""
    if command is None:
        return None

    def call() -> None:
        subprocess.run(["sh", "-c", command], check=True, timeout=300)

    return call
