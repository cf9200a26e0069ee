# SPDX-License-Identifier: Apache-2.0
"""What is measured: one broker with everything, or a region of two brokers that share a topic's shadows."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from processes import Broker, cpu_seconds, rss_bytes, wait

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/news"
REGION = "one"
LINES = 20
"""Lines of each broker's log that are shown if a run fails."""
SILENT_SECONDS = 3600
"""Interval of pings: one connection's consumers are not read while another's subscribe."""


class Arrangement(Protocol):
    """The brokers and the topics to subscribe to."""

    topics: list[str]

    @property
    def pids(self) -> list[int]: ...

    def port_of(self, topic: str) -> int:
        """Of the broker that serves the topic."""
        ...

    def restart(self) -> bool:
        """Kill everything and start it again. False: this arrangement cannot."""
        ...

    def __enter__(self) -> Arrangement: ...

    def __exit__(self, *_: object) -> None: ...


def cpu(arrangement: Arrangement) -> float:
    """Processor seconds of all brokers so far."""
    return sum(map(cpu_seconds, arrangement.pids))


def rss(arrangement: Arrangement) -> int:
    """Resident bytes of all brokers."""
    return sum(map(rss_bytes, arrangement.pids))


class OneBroker:
    """On the local engine."""

    def __init__(self, directory: Path, shadows: int) -> None:
        self._broker = Broker(directory, keepAliveIntervalSeconds=SILENT_SECONDS)
        self._shadows = shadows
        self.topics: list[str] = []

    def __enter__(self) -> OneBroker:
        admin_url = f"http://127.0.0.1:{self._broker.start().admin_port}"
        make_topic(admin_url, TOPIC)
        self.topics = [f"{TOPIC}-{number}" for number in range(self._shadows)]
        for topic in self.topics:
            make_shadow(admin_url, topic)
        self.topics = self.topics or [TOPIC]
        return self

    @property
    def pids(self) -> list[int]:
        return [self._broker.pid]

    def port_of(self, _topic: str) -> int:
        return self._broker.port

    def restart(self) -> bool:
        self._broker.kill()
        self._broker.start()
        return True

    def __exit__(self, *_: object) -> None:
        self._broker.stop()


class TwoBrokers:
    """A region of two brokers on three bookies (``scripts/bookkeeper`` fetches what they need): each serves half of the
    shadows, and one of them also the topic."""

    def __init__(self, directory: Path, shadows: int) -> None:
        from support.brokers.bookies import START_SECONDS, bookies_missing, jars
        from support.brokers.up_process import UpProcess

        if (why := bookies_missing()) is not None:
            raise SystemExit(f"bench: {why}")
        if shadows < 2 or shadows % 2:
            raise SystemExit("bench: two brokers share an even number of --shadows")
        self._up = UpProcess(
            (REGION,),
            directory / "region",
            metadata="etcd",
            brokers=2,
            settings={"keepAliveIntervalSeconds": str(SILENT_SECONDS)},
            options=("--storage", "bookkeeper", "--bookkeeper-jars", str(jars())),
            start_seconds=2 * START_SECONDS,
        )
        self._shadows = shadows
        self._brokers: list[dict[str, Any]] = []
        self._ports: dict[str, int] = {}
        self.topics: list[str] = []

    def __enter__(self) -> TwoBrokers:
        self._up.start()
        self._brokers = self._up.record(REGION)["brokers"]
        urls = [one["admin_url"] for one in self._brokers]
        try:
            self._place(urls)
        except BaseException:
            self._up.stop()
            raise
        return self

    def _place(self, urls: list[str]) -> None:
        """Create the topic and its shadows, the same number at each broker."""
        wait(lambda: sorted(map(bundles, urls)) == [2, 2], "both brokers to own half of the bundles")
        at = {port_of(one["service_url"]): str(one["admin_url"]) for one in self._brokers}
        home = at[owner(urls[0], TOPIC)]
        make_topic(home, TOPIC)
        left = dict.fromkeys(at, self._shadows // 2)
        for number in count():
            topic = f"{TOPIC}-{number}"
            port = owner(urls[0], topic)
            if left[port]:
                make_shadow(home, topic)
                self._ports[topic] = port
                left[port] -= 1
            if not any(left.values()):
                break
        self.topics = list(self._ports)

    @property
    def pids(self) -> list[int]:
        return [int(one["pid"]) for one in self._brokers]

    def port_of(self, topic: str) -> int:
        if topic not in self._ports:
            self._ports[topic] = owner(self._brokers[0]["admin_url"], topic)
        return self._ports[topic]

    def restart(self) -> bool:
        return False  # if one of them is killed, the other takes over its topics: bench/brokers measures that

    def __exit__(self, *problem: object) -> None:
        try:
            if problem[0] is not None:
                self._complain()
        finally:
            self._up.stop()  # the bookies as well, which a kill would leave behind

    def _complain(self) -> None:
        """Warnings and errors of the brokers, whose logs are removed with the directory."""
        for log in (Path(one["log"]) for one in self._brokers):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            bad = [line for line in lines if " WARN" in line or " ERROR" in line or "gave up" in line]
            if bad:
                print(f"{log.relative_to(self._up.data_dir)}:", *bad[-LINES:], sep="\n    ", file=sys.stderr)


def make_topic(admin_url: str, topic: str) -> None:
    _ask("PUT", f"{admin_url}/admin/v2/{topic.replace('://', '/')}")


def make_shadow(admin_url: str, topic: str) -> None:
    """A shadow of ``TOPIC``."""
    _ask("POST", f"{admin_url}/admin/v2/{TOPIC.replace('://', '/')}/shadowTopics", topic)


def bundles(admin_url: str) -> int:
    """Number of bundles that a broker owns; -1: it does not say."""
    try:
        own = admin_url.removeprefix("http://")
        return len(_ask("GET", f"{admin_url}/admin/v2/brokers/{REGION}/{own}/ownedNamespaces"))
    except (urllib.error.URLError, OSError):
        return -1


def owner(admin_url: str, topic: str) -> int:
    """Port of the broker that serves a topic."""
    return port_of(_ask("GET", f"{admin_url}/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"])


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _ask(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None
