# SPDX-License-Identifier: Apache-2.0
"""A further region over TLS: added by one command in one region, it shares metadata with all of them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.certificates import Authority, served
from support.brokers.free_ports import free_port
from support.brokers.stand_in_admin import run

TOPIC = "persistent://public/default/metadata-events"
TENANT = "/admin/v2/tenants/public"
NAMESPACE = "/admin/v2/namespaces/public/default"


class Regions:
    """``us`` and ``eu`` know each other; ``ap`` knows all, and neither of them knows it."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        authority, self._stack = Authority(directory), stack
        ports = {name: (free_port(), free_port()) for name in ("us", "eu", "ap")}
        self.addresses = {
            name: (f"pulsar+ssl://127.0.0.1:{tls}", f"https://127.0.0.1:{https}")
            for name, (tls, https) in ports.items()
        }
        (secret := directory / "secret").write_text("s" * 40, encoding="utf-8")
        secret.chmod(0o600)
        self.brokers: dict[str, BrokerProcess] = {}
        for name, known in (("us", ("us", "eu")), ("eu", ("us", "eu")), ("ap", ("us", "eu", "ap"))):
            listed = [
                {
                    "name": one,
                    "service_url": "pulsar://127.0.0.1:1",  # nothing listens there
                    "admin_url": "http://127.0.0.1:1",
                    "service_url_tls": self.addresses[one][0],
                    "admin_url_tls": self.addresses[one][1],
                }
                for one in known
            ]
            file = directory / f"{name}.json"
            file.write_text(json.dumps({"regions": listed}), encoding="utf-8")
            self.brokers[name] = BrokerProcess(
                name,
                directory / name,
                regions_file=file,
                peer_token_file=secret,
                settings={
                    **served(authority.issue(name), *ports[name]),
                    "tlsTrustCertsFilePath": str(authority.trusted),
                    "brokerClientTlsEnabled": "true",
                    "brokerClientTrustCertsFilePath": str(authority.trusted),
                    "metadataSyncEventTopic": TOPIC,
                    "metadataSyncScopes": "tenants,namespaces,clusters",
                },
            )

    def start(self, *names: str) -> None:
        for name in names:
            self.brokers[name].start(wait=False)
            self._stack.callback(self.brokers[name].kill)
        for name in names:
            self.brokers[name].wait_healthy()

    def get(self, name: str, path: str) -> Any:
        answer = self.brokers[name].http("GET", path)
        return answer.json if answer.status == 200 and answer.text else None

    def write(self, name: str, method: str, path: str, body: Any) -> None:
        answer = self.brokers[name].http(method, path, body)
        assert answer.status == 204, answer.text

    def wait_in_step(self, *names: str) -> None:
        def in_step() -> bool:
            found = [self.get(name, "/meridian/v1/metadata/status") or {} for name in names]
            return all(one.get("synced") and len(one["peers"]) == len(names) - 1 for one in found)

        wait_until(in_step, f"{', '.join(names)} to be in step", 60.0)


def test_a_further_region_over_tls_is_one_command_in_one_region(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        regions = Regions(tmp_path, stack)
        regions.start("us", "eu")
        regions.wait_in_step("us", "eu")
        regions.write("us", "PUT", "/admin/v2/tenants/shop", {"adminRoles": ["r"], "allowedClusters": ["us"]})
        regions.start("ap")
        added = run("regions", "add", "ap", *regions.addresses["ap"], "--url", regions.brokers["us"].admin_url)
        assert "will be in all regions" in added.output, added.output
        wait_until(lambda: regions.get("eu", "/admin/v2/clusters/ap") is not None, "eu to have the region")
        everywhere = ["ap", "eu", "us"]
        regions.write("eu", "POST", TENANT, {"adminRoles": [], "allowedClusters": everywhere})
        regions.write("eu", "POST", f"{NAMESPACE}/replication", everywhere)
        regions.wait_in_step("us", "eu", "ap")
        assert regions.get("ap", "/admin/v2/tenants/shop")["adminRoles"] == ["r"], "it has what existed before"
        for number, name in enumerate(everywhere, 50):
            regions.write(name, "POST", f"{NAMESPACE}/messageTTL", number)
            for other in everywhere:
                wait_until(
                    lambda other=other, number=number: regions.get(other, f"{NAMESPACE}/messageTTL") == number,
                    f"{other} to have the policy of {name}",
                )
        regions.wait_in_step("us", "eu", "ap")
