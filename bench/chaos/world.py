# SPDX-License-Identifier: Apache-2.0
"""Three regions that can be killed, frozen, cut off or given old or failing disks; and their admin APIs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "failover"), str(HERE.parent / "core")]
from failing_broker import DISK_FAULT  # noqa: E402
from journal import Disturbed, Journal  # noqa: E402
from wired import Wired  # noqa: E402

REGIONS = ("one", "two", "three")
OLD = ("everything", "metadata", "volume")
SMALL = {"managedLedgerMaxEntriesPerLedger": 50}
OFTEN = {
    "retentionCheckIntervalInSeconds": 1,
    "backlogQuotaCheckIntervalInSeconds": 1,
    "brokerServiceCompactionMonitorIntervalInSeconds": 1,
    "brokerDeleteInactiveTopicsFrequencySeconds": 1,
    "messageExpiryCheckIntervalInMinutes": 1,
    "subscriptionExpiryCheckIntervalInMinutes": 1,
}
"""All periodic work runs this often, so that it also does while a disk fails, and soon after."""
KEEPS = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class World(Wired):
    """The regions, and when each was disturbed."""

    def __init__(self, directory: Path, journal: Journal, trims: bool) -> None:
        """:param trims: whether regions trim entries that are no longer needed, each at its own time."""
        self._settings = SMALL | OFTEN | ({} if trims else KEEPS)
        super().__init__(directory, *REGIONS)
        self.journal = journal
        self.disturbed = Disturbed()
        self.put_back_at: dict[str, list[tuple[float, float]]] = {name: [] for name in REGIONS}
        """By region: when the copy was made, and when it replaced the disk."""
        self.copied_at: dict[str, float] = {}
        """When the copy of a region's disk was made."""
        self._wire = threading.Lock()
        self._frozen: set[str] = set()
        self._dead: set[str] = set()

    def _broker(self, name: str, token: Path) -> Any:
        broker = super()._broker(name, token)
        broker.settings |= self._settings
        broker.program = (sys.executable, "-P", str(HERE / "failing_broker.py"))
        return broker

    def _ask(self, line: str) -> dict[str, int]:
        with self._wire:
            return super()._ask(line)

    def url(self, region: str) -> str:
        return f"pulsar://127.0.0.1:{self.brokers[region].port}"

    def admin_url(self, region: str) -> str:
        return f"http://127.0.0.1:{self.brokers[region].admin_port}"

    def log(self, region: str) -> str:
        return (self.brokers[region].directory / "log").read_text(errors="replace")

    def lives(self, region: str) -> bool:
        return region not in self._dead | self._frozen

    # Trouble

    def die(self, region: str) -> None:
        """SIGKILL."""
        self.disturbed.begin(region)
        self.journal.write("killed", region)
        self._dead.add(region)
        self.brokers[region].kill()

    def drain(self, region: str) -> None:
        """SIGTERM: the broker sends the others what they lack, and exits."""
        self.disturbed.begin(region)
        self.journal.write("drained", region)
        self._dead.add(region)
        self.brokers[region].stop()

    def unload(self, region: str) -> None:
        """Close all its topics and open them again; clients and links come back by themselves."""
        self.disturbed.begin(region)
        self.journal.write("unloaded", region)
        self.http(region, "PUT", "/admin/v2/namespaces/public/default/unload", seconds=30)
        self.disturbed.end(region)

    def live(self, region: str) -> None:
        """Start it again."""
        self.brokers[region].start()
        self._dead.discard(region)
        self.disturbed.end(region)
        self.journal.write("started", region)

    def start_and_kill(self, region: str, seconds: float) -> None:
        """Start it, and kill it again while it recovers, or just after."""
        self.brokers[region].spawn()
        time.sleep(seconds)
        self.journal.write("killed again", region)
        self.brokers[region].kill()

    def freeze(self, region: str) -> None:
        """SIGSTOP: its connections stay open but do not answer."""
        self.disturbed.begin(region)
        self.journal.write("frozen", region)
        self._frozen.add(region)
        os.kill(self.brokers[region].pid, signal.SIGSTOP)

    def thaw(self, region: str) -> None:
        os.kill(self.brokers[region].pid, signal.SIGCONT)
        self._frozen.discard(region)
        self.disturbed.end(region)
        self.journal.write("thawed", region)

    def fail_disk(self, region: str, operations: str, code: str) -> None:
        """These operations on the region's ledgers fail from now on; see `failing_broker`."""
        self.disturbed.begin(region)
        self.journal.write("disk fails", region, note=f"{operations} {code}")
        told = self.brokers[region].directory / DISK_FAULT
        draft = told.with_suffix(".new")
        draft.write_text(f"{operations} {code}")
        draft.replace(told)

    def mend_disk(self, region: str) -> None:
        """The disk works again; the broker recovers by itself, or is started."""
        (self.brokers[region].directory / DISK_FAULT).unlink()
        self.journal.write("disk mended", region)
        if self.lives(region):
            self.disturbed.end(region)

    def cut_ways(self, ways: list[tuple[str, str]]) -> None:
        """Silence the connections that the first region of each pair makes to the second."""
        for dialler, to in ways:
            self.disturbed.begin(dialler, to)
            self.journal.write("cut", dialler, note=f"to {to}")
        self._ask("cut " + " ".join(f"{one}-{to} {one}-{to}-admin" for one, to in ways))

    def heal_ways(self, ways: list[tuple[str, str]]) -> None:
        self._ask("heal " + " ".join(f"{one}-{to} {one}-{to}-admin" for one, to in ways))
        for dialler, to in ways:
            self.disturbed.end(dialler, to)
            self.journal.write("healed", dialler, note=f"to {to}")

    def copy_disk(self, region: str) -> None:
        """Stop it gracefully, copy its disk, start it again."""
        self.disturbed.begin(region)
        self.journal.write("stopped for a copy", region)
        broker = self.brokers[region]
        broker.stop()
        copy = broker.directory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(broker.directory / "data", copy)
        self.copied_at[region] = time.monotonic()
        self.live(region)

    def give_old_disk(self, region: str, what: str) -> None:
        """SIGKILL, and reset its whole disk, or only its metadata or volume, to the last copy."""
        self.die(region)
        self.journal.write("disk put back", region, note=what)
        data, copy = self.brokers[region].directory / "data", self.brokers[region].directory / "copy"
        self.put_back_at[region].append((self.copied_at.pop(region), time.monotonic()))
        if what == "everything":
            shutil.rmtree(data)
            shutil.copytree(copy, data)
        elif what == "volume":
            shutil.rmtree(data / "ledgers")
            shutil.copytree(copy / "ledgers", data / "ledgers")
        else:
            for file in data.glob("metadata.sqlite*"):
                file.unlink()
            for file in copy.glob("metadata.sqlite*"):
                shutil.copy2(file, data / file.name)
        self.live(region)

    # Questions

    def http(self, region: str, method: str, path: str, body: Any = ..., seconds: float = 10) -> tuple[int, Any]:
        """Status and JSON of an answer; (0, reason) when none came."""
        data = None if body is ... else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.admin_url(region) + path, data, headers, method=method)
        try:
            with _DIRECT.open(request, timeout=seconds) as answer:
                text, status = answer.read(), answer.status
        except urllib.error.HTTPError as refused:
            with refused:
                text, status = refused.read(), refused.code
        except OSError as error:
            return 0, str(error)
        try:
            return status, json.loads(text) if text else None
        except ValueError:
            return status, text.decode(errors="replace")

    def subscription(self, topic: str, name: str) -> str:
        """Path of a subscription in the admin API."""
        return f"/admin/v2/{topic.replace('://', '/')}/subscription/{quote(name)}"

    def set_scope(self, region: str, topic: str, name: str, scope: str) -> bool:
        """Set a subscription's dispatch scope; false: the region refused."""
        path = f"/meridian/v1/subscriptions/{topic.replace('://', '/')}/{quote(name)}/scope"
        return 200 <= self.http(region, "POST", path, {"dispatchScope": scope})[0] < 300

    def status(self, region: str, topic: str, name: str) -> dict[str, Any]:
        """The state of a subscription there; failures are under ``problem``."""
        path = f"/meridian/v1/subscriptions/{topic.replace('://', '/')}/{quote(name)}/status"
        status, said = self.http(region, "GET", path)
        return dict(said) if status == 200 else {"problem": f"{region} answered {status}: {said}"}

    def accept_gaps(self, region: str, topic: str) -> int:
        """Accept the loss of entries that no region has any more (R4), as an operator does after an old disk was put
        back.

        :returns: how many gaps there were.
        """
        path, accepted = f"/meridian/v1/topics/{topic.replace('://', '/')}/gaps", 0
        status, said = self.http(region, "GET", path)
        for gap in said["missing"] if status == 200 else ():
            if gap["asked"] and not gap["away"]:
                body = {"origin": gap["origin"], "upto": gap["upto"]}
                accepted += 200 <= self.http(region, "POST", f"{path}/accept", body)[0] < 300
        return accepted

    def loops(self, region: str) -> list[dict[str, Any]]:
        """The state of each kind of periodic work."""
        status, said = self.http(region, "GET", "/meridian/v1/health")
        silent = {"name": "all", "problem": f"{region} answered {status}: {said}", "secondsSinceSuccess": float("inf")}
        return list(said["work"]) if status == 200 else [silent]

    def stats(self, region: str, topic: str) -> dict[str, Any]:
        status, said = self.http(region, "GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
        return dict(said) if status == 200 else {}
