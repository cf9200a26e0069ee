# SPDX-License-Identifier: Apache-2.0
"""Real brokers in separate processes: started, watched until healthy, killed, restarted on the same disk.

``BrokerProcess`` is one ``meridian broker``; ``RegionsProcess`` is one for each of several regions that replicate to
each other. Both keep their ports over restarts, so that clients find them again. Signals go only to process ids that
these objects started. Use them as context managers: whatever happens in the test, no process is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from meridian_broker.cli.programs import UpOptions
from meridian_broker.server.layout import Directory, plan_regions
from meridian_broker.server.settings import collect
from support.brokers.forked_meridian import MERIDIAN, ForkedMeridian
from support.brokers.free_ports import free_base_port, free_port

START_SECONDS = 120.0
STOP_SECONDS = 120.0
PATIENT = {"barrierTimeoutMillis": "20000"}
"""At a switch (R20), regions wait for each other however slow the machine is: by default they go on alone after a
quarter of a second, and messages are redelivered."""
_WITHOUT_CERTIFICATES = {"SSL_CERT_FILE": os.devnull}
"""aiohttp reads the system's certificates twice during import, a tenth of a broker's start. Test brokers call no server
that needs them."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpAnswer:
    """Status, headers and body of one answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The reason for a refusal."""
        return str(self.json["reason"])


def http(
    method: str, url: str, body: Any = ..., *, raw: bytes | None = None, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """One request over real HTTP; ``body`` is sent as JSON, ``raw`` as it is. A refusal is an answer, not an error."""
    data = raw if raw is not None else None if body is ... else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data=data, headers=sent | dict(headers or {}), method=method)
    try:
        with _DIRECT.open(request, timeout=60) as answer:
            return HttpAnswer(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return HttpAnswer(refused.code, dict(refused.headers), refused.read())


def wait_until(condition: Any, what: str | Callable[[], str], seconds: float = 60.0) -> Any:
    """Poll for the first true value of ``condition()`` where another process can see no event.

    :param what: the condition in words; a function is called on timeout and can describe the state.
    """
    until, pause = time.monotonic() + seconds, 0.01
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(pause)
        pause = min(pause * 1.25, 0.05)  # most conditions are requests, which cost CPU time on both sides
    return value


class Program(Protocol):
    """A running ``meridian``: the part of ``subprocess.Popen`` that tests use."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: signal.Signals, /) -> None: ...

    def kill(self) -> None: ...


def started_afresh(arguments: Sequence[str], log_file: Path) -> Program:
    """Start ``meridian`` as a user does; its output is appended to the file."""
    with log_file.open("ab") as log:
        return subprocess.Popen([*MERIDIAN, *arguments], stdout=log, stderr=log, env=os.environ | _WITHOUT_CERTIFICATES)


class KilledAtExit(ABC):
    """A context manager that starts processes, and kills them at the end or when one fails to start."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def kill(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class BrokerProcess(KilledAtExit):
    """One ``meridian broker`` on loopback."""

    def __init__(
        self,
        region: str,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        http_port: int | None = None,
        regions_file: Path | None = None,
        peer_token_file: Path | None = None,
        metadata_url: str | None = None,
        launch: Callable[[Sequence[str], Path], Program] = ForkedMeridian,
    ) -> None:
        """
        :param data_dir: everything the broker stores, and its log, ``<region>.log``.
        :param settings: additional ones, by key.
        :param launch: ``started_afresh`` where the duration of a start matters.
        """
        self.region = region
        self.data_dir = data_dir
        self.port = port or free_port()
        self.http_port = http_port or free_port()
        self.log_file = data_dir.parent / f"{data_dir.name}-{region}.log"
        chosen = {
            "clusterName": region,
            "dataDirectory": str(data_dir),
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "regionsFile": "" if regions_file is None else str(regions_file),
            "peerTokenFile": "" if peer_token_file is None else str(peer_token_file),
            "metadataStoreUrl": metadata_url or "",
        }
        self._settings = PATIENT | {key: value for key, value in chosen.items() if value} | dict(settings or {})
        self._launch = launch
        self._process: Program | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"the broker of {self.region} is not running"
        return self._process.pid

    def start(self, *, wait: bool = True) -> Self:
        """Start it, and wait until its health check succeeds."""
        assert self._process is None, f"the broker of {self.region} is already running"
        assignments = [part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._process = self._launch(["broker", *assignments], self.log_file)
        if wait:
            self.wait_healthy()
        return self

    def wait_healthy(self) -> None:
        def healthy() -> bool:
            assert self._process is not None
            code = self._process.poll()
            assert code is None, f"the broker of {self.region} ended with {code}:\n{self.log()}"
            return is_healthy(self.admin_url)

        wait_until(healthy, f"{self.region} to be healthy", START_SECONDS)

    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as from the kernel's out-of-memory killer."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM, and wait for the drain. Returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_SECONDS)
        self._process = None
        return code

    def log(self) -> str:
        """Its log so far, over all starts."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def http(self, method: str, path: str, body: Any = ..., *, raw: bytes | None = None) -> HttpAnswer:
        """One request to its admin port."""
        return http(method, self.admin_url + path, body, raw=raw)

    def __enter__(self) -> Self:
        return self if self._process is not None else super().__enter__()


class RegionsProcess(KilledAtExit):
    """Regions that replicate to each other, with the files that ``meridian up`` writes but without a supervisor."""

    def __init__(
        self,
        regions: tuple[str, ...],
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        brokers: int = 1,
    ) -> None:
        """:param brokers: per region, for subclasses that can start several."""
        self.regions = regions
        self.data_dir = data_dir
        self._assignments = [f"{key}={value}" for key, value in (PATIENT | dict(settings or {})).items()]
        self._base_port, self._base_http_port = (free_base_port(len(regions), brokers) for _ in range(2))
        self._brokers: dict[str, Program] = {}

    @property
    def regions_file(self) -> Path:
        """Regions and their addresses, in the verifier's format."""
        return self.data_dir / "regions.json"

    def record(self, region: str) -> dict[str, Any]:
        """The region's part of ``regions.json``."""
        listed = json.loads(self.regions_file.read_text(encoding="utf-8"))["regions"]
        found: dict[str, Any] = next(one for one in listed if one["name"] == region)
        return found

    def service_url(self, region: str) -> str:
        return f"pulsar://127.0.0.1:{self._base_port + 10 * self.regions.index(region)}"

    def admin_url(self, region: str) -> str:
        return f"http://127.0.0.1:{self._base_http_port + 10 * self.regions.index(region)}"

    def start(self) -> Self:
        """Start them, and wait until all are healthy."""
        assert not self._brokers, "the regions are already running"
        options = UpOptions(
            regions=self.regions,
            data_directory=self.data_dir,
            metadata="embedded",
            base_port=self._base_port,
            base_http_port=self._base_http_port,
            assignments=tuple(self._assignments),
        )
        given = collect(None, options.assignments, {})
        plans = plan_regions(options, given)
        directory = Directory(self.data_dir)
        directory.make_token()
        for plan in plans:
            store = plan.directory / "data" / "metadata.sqlite"
            directory.write_config(plan.brokers[0], {"metadataStoreUrl": f"sqlite:{store}"}, given)
        directory.write_regions(plans, {"metadata": options.metadata, "storage": options.storage}, {})
        directory.close()
        for region in self.regions:
            self._fork(region)
        for region in self.regions:
            self._wait_healthy(region)
        return self

    def pid(self, region: str) -> int:
        """The process id of the region's broker."""
        return self._brokers[region].pid

    def is_running(self, region: str) -> bool:
        """Whether the region has a ready broker."""
        return is_healthy(self.admin_url(region))

    def pause_region(self, region: str) -> None:
        """SIGSTOP: its connections stay open but nothing answers."""
        os.kill(self.pid(region), signal.SIGSTOP)

    def resume_region(self, region: str) -> None:
        """SIGCONT, after ``pause_region``."""
        os.kill(self.pid(region), signal.SIGCONT)

    def stop_region(self, region: str) -> None:
        """SIGTERM one region's broker and wait for its drain; the others keep running."""
        broker = self._brokers.pop(region)
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(STOP_SECONDS) == 0, self.log(region)

    def kill_region(self, region: str) -> None:
        """SIGKILL one region's broker; the others keep running."""
        if (broker := self._brokers.pop(region, None)) is not None:
            broker.kill()
            broker.wait()

    def bring_back(self, region: str) -> None:
        """Start a killed region's broker again on its own disk, as its service manager would."""
        self._fork(region)
        self._wait_healthy(region)

    def _fork(self, region: str) -> None:
        record = self.record(region)
        self._brokers[region] = ForkedMeridian(["broker", "--config", record["config"]], Path(record["log"]))

    def _wait_healthy(self, region: str) -> None:
        def healthy() -> bool:
            code = self._brokers[region].poll()
            assert code is None, f"the broker of {region} ended with {code}:\n{self.log(region)[-999:]}"
            return self.is_running(region)

        wait_until(healthy, f"{region} to be healthy", START_SECONDS)

    def stop(self) -> None:
        """SIGTERM, and wait for the drain; fails unless every broker exits cleanly."""
        for broker in self._brokers.values():
            broker.send_signal(signal.SIGTERM)
        codes = {region: broker.wait(STOP_SECONDS) for region, broker in self._brokers.items()}
        self._brokers.clear()
        assert not any(codes.values()), f"exit codes {codes}"

    def kill(self) -> None:
        """Kill all brokers."""
        for region in self.regions:
            self.kill_region(region)

    def log(self, region: str) -> str:
        """What the region's broker logged, over all starts."""
        file = Path(self.record(region)["log"])
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def http(self, region: str, method: str, path: str, body: Any = ..., *, raw: bytes | None = None) -> HttpAnswer:
        """One request to a region's admin port."""
        return http(method, self.admin_url(region) + path, body, raw=raw)


def is_healthy(admin_url: str) -> bool:
    """Whether a broker at this address reports that it is ready."""
    with contextlib.suppress(OSError):
        return http("GET", f"{admin_url}/admin/v2/brokers/health").status == 200
    return False
