# SPDX-License-Identifier: Apache-2.0
"""Three regions whose links lead through a forwarder, which can cut them and count their bytes.

Each ordered pair of regions has its own path. The region at its end listens for it on a separate port, with a
listener's name, so that lookups through that path are answered with the path's address (``advertisedListeners``,
``bindAddresses``): brokers never learn how to bypass the forwarder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

from processes import Broker, cpu_seconds, free_ports

HERE = Path(__file__).resolve().parent


class Wired:
    """Regions by name; use as a context manager."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.names = names
        self.brokers: dict[str, Broker] = {}
        self._directory = directory
        self._pairs = list(permutations(names, 2))
        numbers = iter(free_ports(4 * len(self._pairs)))
        self._ports = {pair: [next(numbers) for _ in range(4)] for pair in self._pairs}
        """By (from, to): the path's port, its target port, and the same for the admin API."""
        self._forwarder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Wired:
        self._directory.mkdir(parents=True)
        token = self._directory / "peer.token"
        token.write_text("a secret that only this bench knows\n")
        token.chmod(0o600)
        try:
            for name in self.names:
                self.brokers[name] = self._broker(name, token)
            self._forwarder = self._forward()
            for broker in self.brokers.values():
                broker.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _broker(self, name: str, token: Path) -> Broker:
        broker = Broker(self._directory / name, name)
        listeners, binds, listed = [f"clients:pulsar://127.0.0.1:{broker.port}"], [], []
        for (origin, end), (way, door, admin_way, _) in self._ports.items():
            if end == name:
                listeners.append(f"from-{origin}:pulsar://127.0.0.1:{way}")
                binds.append(f"from-{origin}:pulsar://127.0.0.1:{door}")
            if origin == name:
                listed.append(
                    {
                        "name": end,
                        "service_url": f"pulsar://127.0.0.1:{way}",
                        "admin_url": f"http://127.0.0.1:{admin_way}",
                    }
                )
        regions = self._directory / f"{name}.json"
        regions.write_text(json.dumps({"regions": listed}))
        broker.settings |= {
            "regionsFile": regions,
            "peerTokenFile": token,
            "advertisedListeners": ",".join(listeners),
            "bindAddresses": ",".join(binds),
            "internalListenerName": "clients",
        }
        return broker

    def _forward(self) -> subprocess.Popen[str]:
        ways = []
        for (origin, end), (way, door, admin_way, _) in self._ports.items():
            ways += [f"{origin}-{end}={way}:{door}", f"{origin}-{end}-admin={admin_way}:{self.brokers[end].admin_port}"]
        forwarder = subprocess.Popen(
            [sys.executable, str(HERE / "forwarder.py"), *ways],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert forwarder.stdout is not None
        forwarder.stdout.readline()
        return forwarder

    def _ask(self, line: str) -> dict[str, int]:
        assert self._forwarder is not None and self._forwarder.stdin is not None and self._forwarder.stdout is not None
        self._forwarder.stdin.write(line + "\n")
        self._forwarder.stdin.flush()
        answer: dict[str, int] = json.loads(self._forwarder.stdout.readline())
        return answer

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two from now on, and neither is notified."""
        self._ask(f"cut {self._between(one, other)}")

    def heal(self, one: str, other: str) -> None:
        self._ask(f"heal {self._between(one, other)}")

    def _between(self, one: str, other: str) -> str:
        pairs = [f"{one}-{other}", f"{other}-{one}"]
        return " ".join([*pairs, *(f"{pair}-admin" for pair in pairs)])

    def bytes_passed(self) -> int:
        """Bytes of TCP payload between all regions so far, both ways."""
        return sum(self._ask("count").values())

    def cpu_seconds(self) -> float:
        """CPU time of all brokers so far."""
        return sum(cpu_seconds(broker.pid) for broker in self.brokers.values())

    def keep_copy(self, name: str) -> Path:
        """Stop the region's broker gracefully, copy its disk, start it again."""
        broker = self.brokers[name]
        broker.stop()
        copy = self._directory / f"{name}.copy"
        shutil.copytree(broker.directory / "data", copy)
        broker.start()
        return copy

    def put_back(self, name: str, copy: Path) -> None:
        """SIGKILL the broker, replace its disk by the copy, start it."""
        broker = self.brokers[name]
        broker.kill()
        shutil.rmtree(broker.directory / "data")
        copy.rename(broker.directory / "data")
        broker.start()

    def __exit__(self, *_: Any) -> None:
        for broker in self.brokers.values():
            broker.kill_if_running()
        if self._forwarder is not None:
            self._forwarder.kill()
            self._forwarder.wait()
