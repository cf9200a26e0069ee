# SPDX-License-Identifier: Apache-2.0
"""The directory of ``meridian up``: one folder per region, the peer secret, and the regions' addresses.

DIR/regions.json         every region's name, addresses, process id and directory
DIR/peer.token           the secret by which the regions' brokers know each other, mode 0600
DIR/lock                 held by the running ``meridian up``
DIR/<region>/broker.conf settings of that region's broker: ``meridian broker --config`` starts it again by hand
DIR/<region>/broker.log  what it logged, all starts
DIR/<region>/data        its message log and, when embedded, its metadata
DIR/<region>/broker-<n>  the same three for each broker, in a region with several
DIR/<region>/etcd        its etcd's data and passwords, when there is one
DIR/<region>/bookies     its bookies' data, configurations and logs, when there are any
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meridian_broker.cli.programs import UpOptions
from meridian_broker.gateway.addresses import of_several, url
from meridian_broker.server.limits import REGIONS_MAX
from meridian_broker.server.secrets_on_disk import make_secret
from meridian_broker.server.settings import Given, Settings

PORT_STEP = 10
"""Distance between the ports of two regions."""
BROKER_PORT_STEP = 2
"""Distance between the ports of two brokers of a region: the default ports with and without TLS are neighbours."""


class UpFailed(Exception):
    """The regions cannot be run as asked. The message says why, and what to do."""


SET_BY_UP = (
    *("clusterName", "brokerId", "dataDirectory", "regionsFile", "peerTokenFile"),
    *("metadataStoreUrl", "metadataStoreUser", "metadataStorePasswordFile", "managedLedgerStorage"),
)
PORTS_BY_UP = ("brokerServicePort", "webServicePort", "brokerServicePortTls", "webServicePortTls")


OPTION_OF = dict(
    zip(PORTS_BY_UP, ("--base-port", "--base-http-port", "--base-port-tls", "--base-http-port-tls"), strict=True)
)
"""Options of ``meridian up``, by setting."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerPlan:
    """Where one broker will run."""

    region: str
    broker_id: str
    """Empty: it is its region's only one."""
    directory: Path
    host: str
    """The address for clients."""
    ports: Mapping[str, int]
    """By the key of the setting; those for TLS only when there is a certificate."""

    @property
    def service_url(self) -> str:
        """Where Pulsar clients connect."""
        return url("pulsar", self.host, self.ports["brokerServicePort"])

    @property
    def admin_url(self) -> str:
        """Where admin tools connect."""
        return url("http", self.host, self.ports["webServicePort"])

    @property
    def service_url_tls(self) -> str:
        """The same, encrypted; empty when it is not served."""
        port = self.ports.get("brokerServicePortTls")
        return "" if port is None else url("pulsar+ssl", self.host, port)

    @property
    def admin_url_tls(self) -> str:
        """The same, encrypted; empty when it is not served."""
        port = self.ports.get("webServicePortTls")
        return "" if port is None else url("https", self.host, port)

    @property
    def log_file(self) -> Path:
        """The broker's standard error."""
        return self.directory / "broker.log"

    @property
    def config_file(self) -> Path:
        """The broker's settings."""
        return self.directory / "broker.conf"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.region}/{self.broker_id}" if self.broker_id else self.region

    def __str__(self) -> str:
        return f"broker {self.broker_id}".rstrip() + f" of region {self.region}"


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """Where one region will run."""

    name: str
    directory: Path
    brokers: Sequence[BrokerPlan]
    """At least one."""

    @property
    def service_url(self) -> str:
        """Where Pulsar clients connect: every broker's address, so that they find the others when one is gone."""
        return of_several([broker.service_url for broker in self.brokers])

    @property
    def service_url_tls(self) -> str:
        """The same, encrypted; empty when it is not served."""
        return of_several([broker.service_url_tls for broker in self.brokers if broker.service_url_tls])


def plan_regions(options: UpOptions, given: Given) -> list[RegionPlan]:
    """One plan per region, after checking that their ports neither collide nor leave the range.

    :raises UpFailed: they do, or a setting was given that this program chooses itself.
    """
    for key in (*SET_BY_UP, *PORTS_BY_UP):
        if key in given:
            hint = f" (see {OPTION_OF[key]})" if key in PORTS_BY_UP else ""
            raise UpFailed(f"{given[key][1]}: `meridian up` chooses {key} for every region itself{hint}")
    if len(options.regions) > REGIONS_MAX:
        raise UpFailed(f"{len(options.regions)} regions: at most {REGIONS_MAX} run on one machine")
    secret = options.data_directory / "made-when-it-runs"
    settings = Settings.build({**given, "peerTokenFile": (str(secret), "meridian up")})
    first = {"brokerServicePort": options.base_port, "webServicePort": options.base_http_port}
    if settings.tls.is_served:
        first |= {"brokerServicePortTls": options.base_port_tls, "webServicePortTls": options.base_http_port_tls}
    plans = []
    for index, name in enumerate(options.regions):
        Settings.of({"clusterName": name}, source="--regions")
        directory = options.data_directory.resolve() / name
        brokers = []
        for number in range(options.brokers):
            broker_id = f"broker-{number + 1}" if options.brokers > 1 else ""
            ports = {key: port + PORT_STEP * index + BROKER_PORT_STEP * number for key, port in first.items()}
            place = directory / broker_id
            brokers.append(BrokerPlan(name, broker_id, place, settings.advertised_address, ports))
        plans.append(RegionPlan(name, directory, brokers))
    _check_ports(plans, first)
    return plans


def _check_ports(plans: Sequence[RegionPlan], first: Mapping[str, int]) -> None:
    """:raises UpFailed: two are the same, or one is out of range."""
    ports = [port for plan in plans for broker in plan.brokers for port in broker.ports.values()]
    if len(set(ports)) == len(ports) and max(ports) <= 65535:
        return
    several = len(plans[0].brokers) > 1
    begin = " and ".join(f"{port} + {PORT_STEP} i" + f" + {BROKER_PORT_STEP} j" * several for port in first.values())
    what = f"{len(plans)} region{'s' * (len(plans) > 1)}" + f" with {len(plans[0].brokers)} brokers" * several
    raise UpFailed(
        f"the ports {begin} of {what} overlap or exceed 65535: choose another "
        + " or ".join(OPTION_OF[key] for key in first)
    )


def require_free_ports(plans: Iterable[RegionPlan], bind_address: str) -> None:
    """Notice a port in use before anything is started, and say which.

    :raises UpFailed: another process listens there.
    """
    family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
    for broker in (broker for plan in plans for broker in plan.brokers):
        for key, port in broker.ports.items():
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((bind_address, port))
                except OSError as error:
                    raise UpFailed(
                        f"port {port}, meant for the {broker}, cannot be used: {error.strerror}. "
                        f"Stop the process that uses it, or choose another {OPTION_OF[key]}"
                    ) from error


class Directory:
    """The directory of one ``meridian up``, locked as long as this object is open."""

    def __init__(self, path: Path) -> None:
        """:raises UpFailed: another ``meridian up`` runs there, or it cannot be written."""
        self.path = path.resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UpFailed(f"cannot use the data directory {self.path}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UpFailed(
                f"another `meridian up` runs on {self.path}: stop it first, or choose another --data-dir"
            ) from None

    def close(self) -> None:
        """Let the next one in."""
        os.close(self._lock)

    @property
    def regions_file(self) -> Path:
        """The regions and their addresses, for brokers and people."""
        return self.path / "regions.json"

    @property
    def token_file(self) -> Path:
        """The peers' secret."""
        return self.path / "peer.token"

    def make_token(self) -> None:
        """Choose the secret, once in the directory's life. From its first byte on, only this user can read the file."""
        make_secret(self.token_file)

    def require_same_stores(self, metadata: str, storage: str) -> None:
        """What is stored does not move from one kind of store to another by itself.

        :raises UpFailed: the directory was made with another kind, or its record cannot be read.
        """
        if not self.regions_file.exists():
            return
        try:
            document = json.loads(self.regions_file.read_text(encoding="utf-8"))
            before = {"metadata": document["metadata"], "storage": document.get("storage", "local")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UpFailed(f"cannot read {self.regions_file}: {error!r}. Remove it to have it written again") from error
        for kind, (now, what) in {"metadata": (metadata, "metadata"), "storage": (storage, "messages")}.items():
            if before[kind] != now:
                raise UpFailed(
                    f"{self.path} keeps its {what} in the {before[kind]} store: start it with --{kind} {before[kind]}, "
                    "or choose another --data-dir"
                )

    def write_regions(
        self, plans: Iterable[RegionPlan], stores: Mapping[str, str], pids: Mapping[BrokerPlan, int]
    ) -> None:
        """Write ``regions.json``: whole or not at all, because brokers and people read it at any moment.

        Clients get the addresses of all brokers of a region in one URL, curl and the like the first broker's
        admin port. Several brokers are listed, too.

        :param stores: the kinds of ``metadata`` and ``storage``.
        """
        rows: list[dict[str, Any]] = []
        for plan in plans:
            brokers = [_as_listed(broker, pids.get(broker)) for broker in plan.brokers]
            listed = [{"broker_id": one.broker_id, **row} for one, row in zip(plan.brokers, brokers, strict=True)]
            urls = {"service_url": plan.service_url, "service_url_tls": plan.service_url_tls}
            row = {"name": plan.name, **brokers[0], "data_directory": str(plan.directory)}
            row |= {key: text for key, text in urls.items() if text}
            rows.append(row | ({"brokers": listed} if len(listed) > 1 else {}))
        document = {"supervisor_pid": os.getpid(), **stores, "regions": rows}
        unfinished = self.path / "regions.json.new"
        unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        unfinished.rename(self.regions_file)

    def write_config(self, plan: BrokerPlan, metadata: Mapping[str, str], given: Given) -> None:
        """Write a ``broker.conf``: the given settings and those that this program chooses."""
        chosen = {
            "clusterName": plan.region,
            **({"brokerId": plan.broker_id} if plan.broker_id else {}),
            "dataDirectory": str(plan.directory / "data"),
            **metadata,
            "regionsFile": str(self.regions_file),
            "peerTokenFile": str(self.token_file),
            **{key: str(port) for key, port in plan.ports.items()},
        }
        pairs = {key: text for key, (text, _) in given.items()} | chosen
        lines = ["# Written by `meridian up` at every start.", *(f"{key}={text}" for key, text in pairs.items())]
        plan.directory.mkdir(parents=True, exist_ok=True)
        plan.config_file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _as_listed(plan: BrokerPlan, pid: int | None) -> dict[str, Any]:
    return {
        "service_url": plan.service_url,
        "admin_url": plan.admin_url,
        **({"service_url_tls": plan.service_url_tls} if plan.service_url_tls else {}),
        **({"admin_url_tls": plan.admin_url_tls} if plan.admin_url_tls else {}),
        "pid": pid,
        "data_directory": str(plan.directory),
        "config": str(plan.config_file),
        "log": str(plan.log_file),
    }
