# SPDX-License-Identifier: Apache-2.0
"""What a region's chart renders from its values."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from meridian_broker.cli.tokens import issue
from meridian_broker.server.regions_file import clusters_in
from meridian_broker.server.settings import BY_KEY
from meridian_broker.server.settings_schema import LARGEST
from support.brokers.broker_process import wait_until
from support.kubernetes.charts import cluster_with, configuration, merged, notes, pod, region_values, rendered

PEERS = [
    {
        "name": "us-west",
        "serviceUrl": "pulsar://meridian-broker.us-west.svc:6650",
        "adminUrl": "http://meridian-broker.us-west.svc:8080",
    }
]
SECURE_PEERS = [
    {
        "name": "us-west",
        "serviceUrl": "pulsar+ssl://meridian-broker.us-west.svc:6651",
        "adminUrl": "https://meridian-broker.us-west.svc:8443",
    }
]


def checksums(values: dict[str, Any], cluster: str | None = None) -> dict[str, str]:
    annotations = pod(rendered("meridian-region", values, cluster=cluster), "broker")["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if key.startswith("checksum/")}


def test_whole_numbers_reach_the_broker_as_they_were_written(tmp_path: Any) -> None:
    """Large ones too, and those that Helm read back from an earlier release, where all numbers are floats."""
    whole = {key: one for key, one in BY_KEY.items() if one.kind is int and not key.endswith(("Port", "Tls"))}
    largest = {key: min(one.maximum or 0, LARGEST) for key, one in whole.items()}
    config = largest | {"maxMessageSize": 10_485_760, "logLevel": "warning", "brokerDeduplicationEnabled": True}
    settings = configuration(rendered("meridian-region", region_values(broker={"config": config})), tmp_path)
    pairs = settings.pairs()
    assert {key: pairs[key] for key in largest} == {key: str(config[key]) for key in largest}
    assert pairs["logLevel"] == "warning"
    assert pairs["brokerDeduplicationEnabled"] == "true"


@pytest.mark.parametrize("secure", [False, True])
def test_the_broker_can_use_what_it_is_configured_with(secure: bool, tmp_path: Any) -> None:
    values = region_values(
        region={"peers": SECURE_PEERS if secure else PEERS},
        external={"enabled": True, "host": "east.example.org"},
        tls={"enabled": secure, "existingSecret": "certificates" if secure else ""},
    )
    made = rendered("meridian-region", values)
    settings = configuration(made, tmp_path)
    regions = clusters_in(tmp_path / "regions.json")
    west = regions["us-west"]
    assert regions.keys() == {"us-east", "us-west"}
    assert settings.tls.is_served is settings.tls.broker_client_tls_enabled is secure
    ports = {(one["name"], one["port"]) for one in made["Service", "meridian-broker"]["spec"]["ports"]}
    outside = made["Service", "meridian-broker-external"]["spec"]["ports"]
    open_ports = [
        port["port"] for rule in made["NetworkPolicy", "meridian-broker"]["spec"]["ingress"] for port in rule["ports"]
    ]
    if secure:
        assert (west.broker_service_url_tls, west.service_url_tls) == (
            "pulsar+ssl://meridian-broker.us-west.svc:6651",
            "https://meridian-broker.us-west.svc:8443",
        )
        assert ports == {("pulsar-tls", 6651), ("https", 8443)}
        assert outside == [{"name": "pulsar-tls", "targetPort": "pulsar-tls", "port": 6651, "nodePort": 30650}]
        assert open_ports == [6651, 8443], "nothing is sent in plain text"
        assert "pulsar+ssl://east.example.org:30650" in settings.network.advertised_listeners
        mounted = {one["mountPath"] for one in pod(made, "broker")["spec"]["containers"][0]["volumeMounts"]}
        assert "/etc/meridian/tls" in mounted
    else:
        assert (west.broker_service_url, west.service_url) == (
            "pulsar://meridian-broker.us-west.svc:6650",
            "http://meridian-broker.us-west.svc:8080",
        )
        assert ports == {("pulsar", 6650), ("http", 8080)}
        assert open_ports == [6650, 8080]


def test_the_broker_is_restarted_for_what_it_reads_when_it_starts_and_for_nothing_else() -> None:
    base = region_values()
    plain = checksums(base)
    assert checksums(merged(base, {"broker": {"config": {"logLevel": "debug"}}})) != plain
    assert checksums(merged(base, {"region": {"peers": PEERS}})) != plain
    assert checksums(merged(base, {"broker": {"volume": {"size": "30Gi"}}})) == plain
    told = []
    for data in (
        {"secret.key": "b25l", "peer.token": "b25l"},
        {"secret.key": "b25l", "peer.token": "b25l", "admin.jwt": "bmV3"},
        {"secret.key": "dHdv", "peer.token": "b25l"},
    ):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "meridian-tokens"}, "data": data}
        with cluster_with(secret) as cluster:
            told.append(checksums(base, cluster))
    assert told[0] == told[1] == told[2], "brokers follow their keys"


def test_brokers_read_a_second_key_while_it_exists() -> None:
    made = rendered("meridian-region", region_values())
    volume = next(one for one in pod(made, "broker")["spec"]["volumes"] if one["name"] == "tokens")
    first, second = (source["secret"] for source in volume["projected"]["sources"])
    assert [item["path"] for item in first["items"]] == ["secret.key", "peer.token"]
    assert second == {"name": "meridian-tokens-next", "optional": True}
    mounted = {one["name"]: one["mountPath"] for one in pod(made, "broker")["spec"]["containers"][0]["volumeMounts"]}
    assert f"\ntokenSecretKey={mounted['tokens']}\n" in made["ConfigMap", "meridian-broker"]["data"]["broker.conf"]


def test_a_pod_that_is_not_the_regions_first_starts_no_broker() -> None:
    """Scaling the StatefulSet up by hand gives a pod that fails, not one that takes the region over."""
    command = pod(rendered("meridian-region", region_values()), "broker")["spec"]["containers"][0]["command"]
    assert command[:2] == ["sh", "-c"]
    assert "!= meridian-broker-0 " in command[2]
    done = subprocess.run([*command, "broker"], capture_output=True, text=True)
    assert done.returncode == 1 and "scale the StatefulSet back to 1" in done.stderr


def test_only_one_container_has_etcds_root_password_and_no_restart_waits_for_it() -> None:
    spec = pod(rendered("meridian-region", region_values()), "broker")["spec"]
    assert "initContainers" not in spec
    broker, securing = spec["containers"]
    assert securing["args"][0] == "secure-etcd"
    has_it = [any(one["name"] == "etcd-root" for one in container["volumeMounts"]) for container in (broker, securing)]
    assert has_it == [False, True]


def is_waiting_for(parent: int, program: str) -> bool:
    """Whether that command is the only child of this process."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [Path(f"/proc/{child}/comm").read_text().strip() for child in children] == [program]


def test_the_container_that_has_secured_etcd_idles_and_ends_with_its_pod(tmp_path: Path) -> None:
    command = pod(rendered("meridian-region", region_values()), "broker")["spec"]["containers"][1]["command"]
    program = tmp_path / "meridian"
    program.write_text("#!/bin/sh\nexit $1\n")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run([*command, "3"], env=path, timeout=60).returncode == 1, "the container would be restarted"
    with subprocess.Popen([*command, "0"], env=path, start_new_session=True) as idling:
        wait_until(lambda: is_waiting_for(idling.pid, "sleep"), "the container to idle")
        idling.terminate()
        assert idling.wait(60) == 0
        os.killpg(idling.pid, signal.SIGKILL)


def test_clients_reach_a_broker_that_is_starting() -> None:
    """They wait for it. If refused, each would wait longer before its next attempt."""
    made = rendered("meridian-region", region_values(external={"enabled": True, "host": "east.example.org"}))
    for name in ("meridian-broker", "meridian-broker-external"):
        assert made["Service", name]["spec"]["publishNotReadyAddresses"] is True
    assert "lifecycle" not in pod(made, "broker")["spec"]["containers"][0], "SIGTERM begins the drain at once"


def test_three_members_of_etcd_are_kept_apart_and_drained_one_at_a_time() -> None:
    made = rendered("meridian-region", region_values(etcd={"replicas": 3}))
    assert made["PodDisruptionBudget", "meridian-etcd"]["spec"]["maxUnavailable"] == 1
    assert len(pod(made, "etcd")["spec"]["topologySpreadConstraints"]) == 2
    one = rendered("meridian-region", region_values())
    assert not [name for kind, name in one if kind == "PodDisruptionBudget"], "it would block every drain"


def test_certificates_can_come_from_cert_manager() -> None:
    values = region_values(
        tls={"enabled": True, "certManager": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}},
        external={"enabled": True, "host": "192.0.2.7"},
        podMonitor={"enabled": True},
    )
    made = rendered("meridian-region", values)
    spec = made["Certificate", "meridian-broker"]["spec"]
    assert spec["dnsNames"][0] == "meridian-broker.us-east.svc"
    assert spec["ipAddresses"] == ["192.0.2.7"]
    volumes = {one["name"]: one for one in pod(made, "broker")["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == spec["secretName"]
    scraped = made["PodMonitor", "meridian-broker"]["spec"]["podMetricsEndpoints"][0]
    assert scraped["scheme"] == "https"


def test_pods_take_what_a_cluster_asks_of_them() -> None:
    part: dict[str, Any] = {
        "priorityClassName": "high",
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "messaging"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}],
    }
    own: dict[str, Any] = {
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    }
    made = rendered("meridian-region", region_values(broker=part | own, etcd=part))
    for name in ("broker", "etcd"):
        found = pod(made, name)
        assert found["spec"]["priorityClassName"] == "high"
        assert found["spec"]["nodeSelector"] == {"disk": "fast"}
        assert found["spec"]["tolerations"] == [{"operator": "Exists"}]
        assert found["metadata"]["annotations"]["a"] == "b"
        assert found["metadata"]["labels"]["team"] == "messaging"
    container = pod(made, "broker")["spec"]["containers"][0]
    assert container["env"] == own["extraEnv"]
    assert own["extraVolumeMounts"][0] in container["volumeMounts"]
    assert own["extraVolumes"][0] in pod(made, "broker")["spec"]["volumes"]


def test_the_notes_can_be_pasted() -> None:
    """A here-document ends at a line that is exactly END, so the notes do not indent it."""
    told = notes("meridian-region", region_values(region={"peers": PEERS}))
    _, _, rest = told.partition("kubectl apply -f - <<END\n")
    document, ended, _ = rest.partition("\nEND\n")
    assert ended
    topic = yaml.safe_load(document)
    assert topic["kind"] == "GeoTopic"
    assert topic["spec"]["regions"] == ["us-east", "us-west"]
    assert told.index("meridian-operator") < told.index("kubectl apply"), "before that the kind does not exist"


def test_only_a_pod_beside_the_key_issues_the_operators_token() -> None:
    token = {"secret": "meridian-system/operator-token-us-east", "lifetime": "12h"}
    made = rendered("meridian-region", region_values(operatorToken=token, auth={"existingSecret": "keys"}))
    spec = made["Deployment", "meridian-token-issuer"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "meridian-token-issuer"
    assert spec["automountServiceAccountToken"] is True
    assert made["ServiceAccount", "meridian-token-issuer"]["automountServiceAccountToken"] is False
    assert not pod(made, "broker")["spec"]["automountServiceAccountToken"]
    volumes = {one["name"]: one["secret"] for one in spec["volumes"]}
    assert (volumes["keys"]["secretName"], volumes["keys"]["items"]) == (
        "keys",
        [{"key": "secret.key", "path": "secret.key"}],
    )
    assert (volumes["next-keys"]["secretName"], volumes["next-keys"]["optional"]) == ("keys-next", True)
    container = spec["containers"][0]
    given = dict(one.split("=", 1) for one in container["args"][2:])
    assert container["command"] + container["args"][:2] == ["meridian", "tokens", "issue"]
    assert given.keys() <= {option for one in issue.params for option in one.opts}, "the command knows them all"
    assert given["--secret"] == token["secret"]
    assert (given["--region"], given["--lifetime"], given["--subject"]) == ("us-east", "12h", "admin")
    assert {given["--keys"], given["--next-keys"]} == {one["mountPath"] for one in container["volumeMounts"]}
    assert made["NetworkPolicy", "meridian-token-issuer"]["spec"]["ingress"] == []
    assert not [name for _, name in rendered("meridian-region", region_values()) if "issuer" in name]
