# SPDX-License-Identifier: Apache-2.0
"""Regions whose links run through the test's forwarders, so that each can be cut separately, in one or both directions.

Each region has a listener for every other region and advertises the address of the forwarder in front of it, so that a
cut link cannot be bypassed. Requests to another region's admin port go directly, unless ``is_whole``: then they are cut
with the link.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.brokers.broker_process import BrokerProcess, HttpAnswer
from support.brokers.free_ports import free_port


class Forwarder:
    """A listening port that forwards everything to another one, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_cut = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Connections break, and new ones fail."""
        self._is_cut.set()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def fall_silent(self) -> None:
        """Silently forward nothing more; connections stay open."""
        self._flows.clear()

    def heal(self) -> None:
        self._is_cut.clear()
        self._flows.set()

    def close(self) -> None:
        self.cut()
        self._flows.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                comes, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(comes,), daemon=True).start()

    def _forward(self, comes: socket.socket) -> None:
        with comes, contextlib.suppress(OSError):
            self._flows.wait()
            if self._is_cut.is_set():
                return
            with socket.create_connection(("127.0.0.1", self._target), 5) as goes, selectors.DefaultSelector() as ready:
                both = {comes: goes, goes: comes}
                self._open |= both.keys()
                for one in both:
                    ready.register(one, selectors.EVENT_READ)
                while not self._is_cut.is_set():
                    found = ready.select(1.0)
                    self._flows.wait()
                    for key, _ in found:
                        source = key.fileobj
                        assert isinstance(source, socket.socket)
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        both[source].sendall(data)


class LinkedRegions:
    """Brokers, one process each: the `Regions` of ``region_clients``."""

    def __init__(
        self,
        regions: tuple[str, ...],
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        self.regions = regions
        ports = {(one, other): free_port() for one in regions for other in regions}
        """(region, other): where the region listens for the other; (region, region): for clients."""
        self._links = {(one, to): Forwarder(ports[to, one]) for one in regions for to in regions if one != to}
        """(dialler, whom)."""
        admin = {name: free_port() for name in regions}
        self._requests = {pair: Forwarder(admin[pair[1]]) for pair in self._links} if is_whole else {}
        token = directory / "peer.token"
        token.write_text("a secret that only these tests know\n")
        self._brokers: dict[str, BrokerProcess] = {}
        for name in regions:
            reached = {other: self._port(name, other) if other != name else ports[name, name] for other in regions}
            listed = [
                {
                    "name": other,
                    "service_url": f"pulsar://127.0.0.1:{port}",
                    "admin_url": f"http://127.0.0.1:{self._admin_port(name, other, admin[other])}",
                }
                for other, port in reached.items()
            ]
            file = directory / f"{name}.json"
            file.write_text(json.dumps({"regions": listed}))
            others = [other for other in regions if other != name]
            listeners = [f"{other}:pulsar://127.0.0.1:{self._port(other, name)}" for other in others]
            binds = [f"{other}:pulsar://127.0.0.1:{ports[name, other]}" for other in others]
            self._brokers[name] = BrokerProcess(
                name,
                directory / name,
                settings={
                    "advertisedListeners": ",".join([f"clients:pulsar://127.0.0.1:{ports[name, name]}", *listeners]),
                    "bindAddresses": ",".join(binds),
                    **(settings or {}),
                },
                port=ports[name, name],
                http_port=admin[name],
                regions_file=file,
                peer_token_file=token,
            )

    def _port(self, dialler: str, to: str) -> int:
        return int(self._links[dialler, to].port)

    def _admin_port(self, name: str, other: str, port: int) -> int:
        return self._requests[name, other].port if (name, other) in self._requests else port

    def cut(self, dialler: str, to: str) -> None:
        """``dialler`` can no longer reach ``to``; the opposite direction is another link."""
        self._links[dialler, to].cut()
        if self._requests:
            self._requests[dialler, to].cut()

    def fall_silent(self, one: str, other: str) -> None:
        """Neither hears the other any more, as when a network loses every packet."""
        self._links[one, other].fall_silent()
        self._links[other, one].fall_silent()

    def heal(self) -> None:
        for link in (*self._links.values(), *self._requests.values()):
            link.heal()

    def service_url(self, region: str) -> str:
        return self._brokers[region].service_url

    def http(self, region: str, method: str, path: str, body: Any = ..., *, raw: bytes | None = None) -> HttpAnswer:
        return self._brokers[region].http(method, path, body, raw=raw)

    def kill_region(self, region: str) -> None:
        self._brokers[region].kill()

    def bring_back(self, region: str) -> None:
        self._brokers[region].start()

    def log(self, region: str) -> str:
        return self._brokers[region].log()

    def __enter__(self) -> Self:
        for broker in self._brokers.values():
            broker.start(wait=False)
        for broker in self._brokers.values():
            broker.wait_healthy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self._brokers.values():
            broker.kill()
        for link in (*self._links.values(), *self._requests.values()):
            link.close()
