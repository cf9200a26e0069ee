# SPDX-License-Identifier: Apache-2.0
"""What a region's chart renders from its values when messages are stored in BookKeeper."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from meridian_broker.bounds.clients import FRAME_PADDING_BYTES
from meridian_broker.engines.bookkeeper.zones import Zones, parse_zones
from meridian_broker.server.settings import Settings
from support.kubernetes.charts import Rendered, configuration, notes, pod, region_values, rendered

ON_BOOKKEEPER = {"storage": "bookkeeper"}
PEERS = [
    {
        "name": "us-west",
        "serviceUrl": "pulsar+ssl://meridian-broker.us-west.svc:6651",
        "adminUrl": "https://meridian-broker.us-west.svc:8443",
    }
]


def command_line(made: Rendered, pod_name: str, directory: Path) -> list[str]:
    """The command that the broker's container runs in the pod of that name."""
    for name, text in {"hostname": f"echo {pod_name}", "meridian": 'printf "%s\\n" "$@"'}.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    container = pod(made, "broker")["spec"]["containers"][0]
    path = {"PATH": f"{directory}:{os.environ['PATH']}"}
    command = [*container["command"], *container["args"]]
    return subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout.splitlines()


def settings_of(made: Rendered, pod_name: str, directory: Path) -> Settings:
    """The settings of the broker in the pod of that name."""
    line = command_line(made, pod_name, directory)
    assert line[:3] == ["broker", "--config", "/etc/meridian/config/broker.conf"]
    assert line[3::2] == ["--set"] * len(line[3::2])
    return configuration(made, directory, *line[4::2])


def bookie_settings(made: Rendered) -> dict[str, str]:
    lines = made["ConfigMap", "meridian-bookie"]["data"]["bookie.conf"].splitlines()
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_each_broker_has_its_own_id_and_addresses_and_stores_nothing(tmp_path: Path) -> None:
    tls = {"enabled": True, "existingSecret": "certificates"}
    outside = {"enabled": True, "host": "east.example.org", "port": 31000}
    made = rendered(
        "meridian-region", region_values(region=ON_BOOKKEEPER, broker={"replicas": 3}, external=outside, tls=tls)
    )
    for number in range(3):
        name = f"meridian-broker-{number}"
        settings = settings_of(made, name, tmp_path)
        host = f"{name}.meridian-broker-pods.us-east.svc"
        assert settings.brokers.broker_id == name
        assert settings.advertised_address == host
        assert settings.network.advertised_listeners.split(",") == [
            f"internal:pulsar+ssl://{host}:6651",
            f"external:pulsar+ssl://east.example.org:{31001 + number}",
        ]
        service = made["Service", f"{name}-external"]["spec"]
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == name
        assert [port["nodePort"] for port in service["ports"]] == [31001 + number]
    assert settings.storage.managed_ledger_storage == "bookkeeper"
    assert settings.storage.bookie_tls is not None
    assert made["Service", "meridian-broker-external"]["spec"]["ports"][0]["nodePort"] == 31000, "for lookups"
    stateful_set = made["StatefulSet", "meridian-broker"]["spec"]
    assert stateful_set["replicas"] == 3
    assert "volumeClaimTemplates" not in stateful_set
    volumes = {one["name"]: one for one in pod(made, "broker")["spec"]["volumes"]}
    assert volumes["data"] == {"name": "data", "emptyDir": {}}
    assert made["PodDisruptionBudget", "meridian-broker"]["spec"]["maxUnavailable"] == 1


def test_lookups_are_sent_to_brokers_that_are_ready_where_there_are_several() -> None:
    for replicas, published in ((1, True), (2, None)):
        made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER, broker={"replicas": replicas}))
        assert made["Service", "meridian-broker"]["spec"].get("publishNotReadyAddresses") is published
        assert made["Service", "meridian-broker-pods"]["spec"]["publishNotReadyAddresses"] is True


def test_changing_the_number_of_brokers_restarts_none_of_them() -> None:
    one, three = (
        rendered("meridian-region", region_values(region=ON_BOOKKEEPER, broker={"replicas": replicas}))
        for replicas in (1, 3)
    )
    assert pod(one, "broker") == pod(three, "broker")


def test_the_only_broker_of_a_region_with_peers_has_no_id(tmp_path: Path) -> None:
    """It owns every topic without asking, in dispatch scope `origin` too, and no second broker may start beside it."""
    tls = {"enabled": True, "existingSecret": "certificates"}
    region = {**ON_BOOKKEEPER, "peers": PEERS}
    made = rendered("meridian-region", region_values(region=region, tls=tls))
    settings = settings_of(made, "meridian-broker-0", tmp_path)
    assert not settings.brokers.is_one_of_several
    assert settings.storage.managed_ledger_storage == "bookkeeper"
    with pytest.raises(subprocess.CalledProcessError):
        command_line(made, "meridian-broker-1", tmp_path)
    several = rendered("meridian-region", region_values(region=region, tls=tls, broker={"replicas": 2}))
    assert settings_of(several, "meridian-broker-1", tmp_path).brokers.broker_id == "meridian-broker-1"


def test_bookies_are_bound_to_their_volumes_and_spread_and_drained_one_at_a_time() -> None:
    made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER))
    spec = made["StatefulSet", "meridian-bookie"]["spec"]
    assert spec["replicas"] == 4, "one is a spare"
    assert {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]} == {"journal", "ledgers"}
    assert made["PodDisruptionBudget", "meridian-bookie"]["spec"]["maxUnavailable"] == 1
    assert len(pod(made, "bookie")["spec"]["topologySpreadConstraints"]) == 2
    container = pod(made, "bookie")["spec"]["containers"][0]
    assert container["args"][2:] == [
        "bookieId=$(POD_NAME)",
        "advertisedAddress=$(POD_NAME).meridian-bookie.us-east.svc",
    ]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert (environment["HEAP"], environment["DIRECT_MEMORY"]) == ("512m", "1g")
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    settings = bookie_settings(made)
    assert {settings["journalDirectories"], settings["ledgerDirectories"]} <= mounted


def test_bookies_of_each_zone_are_known_to_brokers_by_their_ids(tmp_path: Path) -> None:
    bookies = {"replicas": 4, "zones": ["east-1a", "east-1b", "east-1b-2"], "nodeSelector": {"disk": "fast"}}
    made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER, bookies=bookies))
    assert ("StatefulSet", "meridian-bookie") not in made
    zones = Zones(parse_zones(configuration(made, tmp_path).storage.bookie_zones))
    selectors = []
    for zone, replicas in (("east-1a", 2), ("east-1b", 1), ("east-1b-2", 1)):
        spec = made["StatefulSet", f"meridian-bookie-{zone}"]["spec"]
        assert spec["replicas"] == replicas
        assert spec["serviceName"] == "meridian-bookie", "certificate and addresses carry this Service's name"
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert made["Service", "meridian-bookie"]["spec"]["selector"].items() <= labels.items()
        assert (
            made["PodDisruptionBudget", "meridian-bookie"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
        )
        selectors.append(spec["selector"]["matchLabels"])
        placed = spec["template"]["spec"]["nodeSelector"]
        assert placed == {"disk": "fast", "topology.kubernetes.io/zone": zone}
        for number in range(replicas):
            assert zones.of(f"meridian-bookie-{zone}-{number}") == zone
    assert len({tuple(sorted(one.items())) for one in selectors}) == 3, "each budget counts its own pods"
    assert "topology.kubernetes.io/zone" not in pod(made, "broker")["spec"].get("nodeSelector", {})
    assert made["ConfigMap", "meridian-identity"]["data"]["bookieZones"] == "east-1a,east-1b,east-1b-2"


def test_without_zones_in_the_chart_brokers_may_still_be_told_zones(tmp_path: Path) -> None:
    told = {"config": {"bookieZones": "meridian-bookie-0=a,meridian-bookie-*=b"}}
    made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER, broker=told))
    zones = Zones(parse_zones(configuration(made, tmp_path).storage.bookie_zones))
    assert (zones.of("meridian-bookie-0"), zones.of("meridian-bookie-1")) == ("a", "b")
    assert "bookieZones" not in made["ConfigMap", "meridian-identity"]["data"]


def test_autorecovery_is_a_process_of_its_own() -> None:
    """It exits when its lease in etcd ends; inside the bookies it would end all of them at once."""
    made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER))
    assert bookie_settings(made)["autoRecoveryDaemonEnabled"] == "false"
    template = made["Deployment", "meridian-autorecovery"]["spec"]["template"]["spec"]
    assert template["containers"][0]["args"] == ["autorecovery", "/etc/bookkeeper/config/bookie.conf"]
    assert template["initContainers"] == pod(made, "bookie")["spec"]["initContainers"]


def test_bookies_find_the_regions_etcd_and_take_the_largest_message() -> None:
    etcd = {"replicas": 3}
    config: dict[str, Any] = {"gcWaitTime": 12_000_000, "lostBookieRecoveryDelay": 60, "diskUsageThreshold": 0.97}
    made = rendered(
        "meridian-region",
        region_values(
            region=ON_BOOKKEEPER,
            etcd=etcd,
            bookies={"config": config},
            broker={"config": {"maxMessageSize": 20_971_520}},
        ),
    )
    settings = bookie_settings(made)
    members = [f"https://meridian-etcd-{number}.meridian-etcd.us-east.svc:2379" for number in range(3)]
    uri = f"metadata-store:etcd:{';'.join(members)}?configFilePath=/etc/bookkeeper/config/etcd.yaml"
    assert settings["metadataServiceUri"] == uri
    assert settings["nettyMaxFrameSizeBytes"] == str(20_971_520 + FRAME_PADDING_BYTES)
    assert {key: settings[key] for key in config} == {key: str(value) for key, value in config.items()}
    assert settings["verifyMetadataOnGC"] == "true"
    assert "authority: meridian-etcd-0.meridian-etcd.us-east.svc\n" in (
        made["ConfigMap", "meridian-bookie"]["data"]["etcd.yaml"] + "\n"
    )
    waiting = pod(made, "bookie")["spec"]["initContainers"][0]["args"]
    assert f"--set=metadataStoreUrl=etcd:{','.join(members)}" in waiting


def test_bookies_have_certificates_for_their_port_and_for_etcd() -> None:
    """etcd checks the names in a client's certificate against its address, so each bookie has two certificates."""
    values = region_values(region=ON_BOOKKEEPER, etcd={"tls": {"existingSecret": ""}})
    made = rendered("meridian-region", values, "--show-only", "templates/etcd-access.yaml")
    data = {key: base64.b64decode(text) for key, text in made["Secret", "meridian-etcd-tls"]["data"].items()}
    port, client = (x509.load_pem_x509_certificate(data[name]) for name in ("bookie.crt", "bookie-client.crt"))
    named = port.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert named.get_values_for_type(x509.DNSName) == ["*.meridian-bookie.us-east.svc"]
    assert [one.value for one in client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["bookkeeper"]
    with pytest.raises(x509.ExtensionNotFound):
        client.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    mounted = next(
        one
        for one in pod(rendered("meridian-region", region_values(region=ON_BOOKKEEPER)), "bookie")["spec"]["volumes"]
        if one["name"] == "tls"
    )
    assert {item["key"] for item in mounted["secret"]["items"]} <= data.keys()


def test_only_brokers_and_bookies_reach_bookies() -> None:
    some: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    policy = {"admins": some, "clients": some}
    made = rendered("meridian-region", region_values(region=ON_BOOKKEEPER, networkPolicy=policy))

    def admitted(part: str, port: int) -> list[str]:
        rules = made["NetworkPolicy", f"meridian-{part}"]["spec"]["ingress"]
        rule = next(rule for rule in rules if port in [one["port"] for one in rule["ports"]])
        selectors = [one["podSelector"]["matchLabels"] for one in rule["from"] if "podSelector" in one]
        assert all(one["app.kubernetes.io/instance"] == "meridian" for one in selectors)
        return sorted(one["app.kubernetes.io/component"] for one in selectors)

    assert admitted("bookie", 3181) == ["autorecovery", "bookie", "broker"]
    assert admitted("etcd", 2379) == ["autorecovery", "bookie", "broker"]
    assert admitted("broker", 8080) == ["broker"], "and the admins that the values name"
    assert admitted("broker", 6650) == ["broker"], "and the clients that the values name"


def test_a_region_on_a_volume_has_no_bookies() -> None:
    made = rendered("meridian-region", region_values())
    assert not [name for _, name in made if "bookie" in name]


def test_the_notes_warn_that_three_bookies_leave_no_spare() -> None:
    assert "no spare" not in notes("meridian-region", region_values(region=ON_BOOKKEEPER))
    assert "no spare" in notes("meridian-region", region_values(region=ON_BOOKKEEPER, bookies={"replicas": 3}))
