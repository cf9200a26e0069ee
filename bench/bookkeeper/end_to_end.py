# SPDX-License-Identifier: Apache-2.0
"""Messages from publishers to consumers, through one of our brokers and through an Apache Pulsar broker.

Both store on the same three bookies, ensemble 3, write quorum 3, ack quorum 2, and in the same etcd, and take turns.
The load is the same for both: the generator of ``bench/core`` publishes messages of 1 KiB, not batched, and then takes
and acknowledges each individually. What counts is the processor time that the broker uses for them, because clients,
bookies and brokers share the machine. The first turns warm up Java's compiler and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from support.brokers.bookies import Bookies, bookies_missing
from support.brokers.broker_process import BrokerProcess, KilledAtExit, http, started_afresh, wait_until
from support.brokers.free_ports import free_port
from support.brokers.pulsar_process import START_SECONDS, java, pulsar_missing

GENERATOR = Path(__file__).parents[1] / "core" / "generator.py"
TICKS = os.sysconf("SC_CLK_TCK")
CLUSTER = "beside"
NAMESPACE = "public/default"
SIZE = 1024
WINDOW = 1000
"""Maximum number of messages without receipt."""
EARLIEST = {"ledgerId": -1, "entryId": -1}
WARMING = 4
"""Turns that do not count."""
PATIENCE_SECONDS = 120.0


class PulsarBroker(KilledAtExit):
    """An Apache Pulsar broker that stores on running bookies."""

    def __init__(self, etcd: str, directory: Path) -> None:
        """:param etcd: URL of the etcd where the bookies are registered."""
        self.port, self.http_port = free_port(), free_port()
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self._etcd = etcd
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        self._directory.mkdir(parents=True)
        metadata, bookies = f"etcd:{self._etcd}", f"metadata-store:etcd:{self._etcd}"
        places = {"--web-service-url": self.admin_url, "--broker-service-url": f"pulsar://127.0.0.1:{self.port}"}
        stores = {"--metadata-store": metadata, "--configuration-metadata-store": metadata}
        given = {"--cluster": CLUSTER, **stores, "--existing-bk-metadata-service-uri": bookies, **places}
        options = [part for option in given.items() for part in option]
        if self._run("org.apache.pulsar.PulsarClusterMetadataSetup", *options).wait(START_SECONDS) != 0:
            raise SystemExit(f"bench: Pulsar's metadata was not written:\n{self._log()}")
        settings = {
            "clusterName": CLUSTER,
            "metadataStoreUrl": metadata,
            "configurationMetadataStoreUrl": metadata,
            "bookkeeperMetadataServiceUri": bookies,
            "brokerServicePort": self.port,
            "webServicePort": self.http_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            "allowAutoTopicCreation": "true",
            "loadBalancerEnabled": "false",
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
            "webSocketServiceEnabled": "false",
        }
        config = self._directory / "broker.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process = self._run("org.apache.pulsar.PulsarBrokerStarter", "-c", str(config))
        wait_until(self._answers, "Pulsar's broker to answer", START_SECONDS)
        return self

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            command = [*java(), main, *arguments]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self._directory)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise SystemExit(f"bench: Pulsar's broker ended:\n{self._log()}")
        try:
            return http("GET", f"{self.admin_url}/admin/v2/namespaces/{NAMESPACE}").status == 200
        except OSError:
            return False

    def _log(self) -> str:
        return (self._directory / "log").read_text()[-4000:]

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@dataclass
class Turn:
    """The cost of a number of messages for one broker."""

    messages: int
    publish_us: float
    """Processor time of the broker per message."""
    consume_us: float
    publish_per_second: float
    consume_per_second: float

    @property
    def us(self) -> float:
        """From the publisher to the consumer's acknowledgement."""
        return self.publish_us + self.consume_us


class Contender:
    """One of the two brokers."""

    def __init__(self, name: str, broker: BrokerProcess | PulsarBroker) -> None:
        self.name = name
        self._broker = broker
        self.turns: list[Turn] = []

    def turn(self, number: int, seconds: float) -> None:
        topic = f"persistent://{NAMESPACE}/turn-{number}"
        place = f"persistent/{NAMESPACE}/turn-{number}-0"
        found, admin = f"{self._broker.admin_url}/lookup/v2/topic/{place}", f"{self._broker.admin_url}/admin/v2/{place}"
        wait_until(lambda: http("GET", found).status == 200, f"{self.name} to serve {topic}")
        for path, body in (("", ...), ("/subscription/s", EARLIEST)):  # the subscription keeps published messages
            if (answer := http("PUT", admin + path, body)).status != 204:
                raise SystemExit(f"bench: {self.name} did not create {topic}{path}: {answer.text}")
        load = {"size": SIZE, "messages": 1, "window": WINDOW, "seconds": seconds, "connections": 1}
        published, publish_cpu = self._measured("publish", topic=topic, **load)
        count = published["count"]
        consumed, consume_cpu = self._measured("consume", topic=f"{topic}-0", subscription="s", count=count)
        rates = count / published["seconds"], count / consumed["seconds"]
        turn = Turn(count, publish_cpu / count * 1e6, consume_cpu / count * 1e6, *rates)
        self.turns.append(turn)
        print(
            f"{self.name:9} turn {number}: {count:7} messages, published at {rates[0]:7.0f}/s and consumed at "
            f"{rates[1]:7.0f}/s, for {turn.publish_us:6.1f} + {turn.consume_us:6.1f} us of processor time",
            file=sys.stderr,
            flush=True,
        )

    def _measured(self, what: str, **given: Any) -> tuple[Any, float]:
        """The generator's report, and the broker's processor seconds meanwhile."""
        pairs = [f"{key}={value}" for key, value in {"port": self._broker.port, **given}.items()]
        command = [sys.executable, str(GENERATOR), what, *pairs]
        generator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert generator.stdout is not None
        if generator.stdout.readline().strip() != b"ready":
            raise SystemExit("bench: the generator did not start")
        before = self._cpu_seconds()
        output, _ = generator.communicate(b"\n", PATIENCE_SECONDS)
        return json.loads(output.splitlines()[-1]), self._cpu_seconds() - before

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def counted(self) -> list[Turn]:
        return self.turns[WARMING:]

    def us(self) -> float:
        return median(turn.us for turn in self.counted())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="number of turns that count")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of publishing per turn")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if (why := bookies_missing() or pulsar_missing()) is not None:
        raise SystemExit(f"bench: {why}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-beside-") as name, ExitStack() as stack:
        directory = Path(name)
        (directory / "bookies").mkdir()
        bookies = Bookies(directory / "bookies", 3)
        stack.callback(bookies.close)
        ours = BrokerProcess(
            "us-east",
            directory / "broker",
            settings={"managedLedgerStorage": "bookkeeper"},
            metadata_url=f"etcd:{bookies.url}",
            launch=started_afresh,
        )
        theirs = PulsarBroker(bookies.url, directory / "pulsar")
        for broker in (ours, theirs):
            stack.enter_context(broker)
        meridian, pulsar = contenders = Contender("Meridian", ours), Contender("Pulsar", theirs)
        for number in range(WARMING + arguments.turns):
            for one in contenders[:: -1 if number % 2 else 1]:
                one.turn(number, arguments.seconds)
    ratio = pulsar.us() / meridian.us()
    if arguments.json:
        turns = {one.name: list(map(asdict, one.counted())) for one in contenders}
        machine = {"cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
        print(json.dumps({"turns": turns, "ratio": ratio, "machine": machine}))
    print(
        f"messages per processor second, from publisher to acknowledgement: Pulsar = 1, Meridian = {ratio:.2f}  >= 1  "
        f"{'' if ratio >= 1 else 'MISSED'}",
        file=sys.stderr,
    )
    return 0 if ratio >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
