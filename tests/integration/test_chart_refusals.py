# SPDX-License-Identifier: Apache-2.0
"""What the charts refuse: values that would break a region at this upgrade, at a later one, or at its next restart."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.server.settings import BY_KEY
from support.kubernetes.charts import (
    cluster_with,
    merged,
    refusal,
    refusals_by_schema,
    region_values,
    rendered,
    with_defaults,
)

PEER = {
    "name": "us-west",
    "serviceUrl": "pulsar://meridian-broker.us-west.svc:6650",
    "adminUrl": "http://meridian-broker.us-west.svc:8080",
}

WRONG_FOR_A_REGION: dict[str, dict[str, Any]] = {
    "a name that is missing": {"region": {"name": ""}},
    "a name in capitals": {"region": {"name": "US-East"}},
    "a name of two lines": {"region": {"name": "us-east\ninsecure"}},
    "a key that is misspelt": {"region": {"nmae": "us-east"}},
    "a part that is misspelt": {"brokr": {}},
    "a peer without an address": {"region": {"peers": [{"name": "us-west"}]}},
    "a peer's address of another protocol": {"region": {"peers": [PEER | {"serviceUrl": "http://us-west:6650"}]}},
    "a peer's address without a port": {"region": {"peers": [PEER | {"adminUrl": "http://us-west"}]}},
    "a peer's address with port 0": {"region": {"peers": [PEER | {"adminUrl": "http://us-west:0"}]}},
    "a peer's address with port 65536": {"region": {"peers": [PEER | {"serviceUrl": "pulsar://us-west:65536"}]}},
    "a peer's address with a line break": {"region": {"peers": [PEER | {"adminUrl": "http://us\n-west:8080"}]}},
    "no secret": {"auth": {"existingSecret": ""}},
    "no roles at all": {"auth": {"superUserRoles": None}},
    "an empty list of roles": {"auth": {"superUserRoles": []}},
    "a role with a comma": {"auth": {"superUserRoles": ["admin,other"]}},
    "a role with a line break": {"auth": {"superUserRoles": ["admin\ninsecure=true"]}},
    "no broker image": {"broker": {"image": None}},
    "no broker at all": {"broker": None},
    "an image with a blank": {"broker": {"image": {"repository": "meridian broker"}}},
    "a tag that is a number": {"broker": {"image": {"tag": 1.0}}},
    "a digest cut short": {"broker": {"image": {"digest": "sha256:0123"}}},
    "a pull policy of one's own": {"broker": {"image": {"pullPolicy": "Sometimes"}}},
    "several brokers": {"broker": {"replicas": 2}},
    "a setting that is misspelt": {"broker": {"config": {"brokerServicPort": 6650}}},
    "a setting out of bounds": {"broker": {"config": {"maxMessageSize": 1}}},
    "a setting with a fraction": {"broker": {"config": {"ttlDurationDefaultInSeconds": 1.5}}},
    "a setting of another type": {"broker": {"config": {"brokerDeduplicationEnabled": "perhaps"}}},
    "a setting that is a list": {"broker": {"config": {"logLevel": ["info"]}}},
    "a setting of several lines": {"broker": {"config": {"tokenAuthClaim": "sub\ninsecure=true"}}},
    "resources that are misspelt": {"broker": {"resources": {"limts": {"memory": "1Gi"}}}},
    "a resource that is misspelt": {"broker": {"resources": {"limits": {"memroy": "1Gi"}}}},
    "a negative amount": {"broker": {"resources": {"limits": {"cpu": -1}}}},
    "an amount that is none": {"broker": {"resources": {"limits": {"memory": "a lot"}}}},
    "a volume without a unit": {"broker": {"volume": {"size": "20"}}},
    "a volume of nothing": {"broker": {"volume": {"size": "0Gi"}}},
    "a grace period that is too short": {"broker": {"terminationGracePeriodSeconds": 1}},
    "a setting by the environment": {"broker": {"extraEnv": [{"name": "MERIDIAN_clusterName", "value": "x"}]}},
    "an outside without a host": {"external": {"enabled": True}},
    "a host with a blank": {"external": {"enabled": True, "host": "a b"}},
    "a node port that is none": {"external": {"enabled": True, "host": "node", "port": 80}},
    "a type of service of one's own": {"external": {"type": "ClusterIP"}},
    "two members of etcd": {"etcd": {"replicas": 2}},
    "three members in words": {"etcd": {"replicas": "3"}},
    "an etcd without a tag": {"etcd": {"image": {"tag": ""}}},
    "a TLS switch in words": {"tls": {"enabled": "yes"}},
    "an issuer without an end": {"tls": {"certManager": {"issuer": "ca"}}},
    "no network policy at all": {"networkPolicy": None},
    "a network policy that is a word": {"networkPolicy": {"clients": ["anybody"]}},
    "an interval without a unit": {"podMonitor": {"interval": "30"}},
    "a pull secret by its bare name": {"imagePullSecrets": ["registry"]},
}

VERIFIER = {
    "regions": [
        {"name": "us-east", "adminUrl": "http://us-east:8080"},
        {"name": "us-west", "adminUrl": "http://us-west:8080"},
    ]
}

WRONG_FOR_THE_VERIFIER: dict[str, dict[str, Any]] = {
    "one region": {"regions": [{"name": "us-east", "adminUrl": "http://us-east:8080"}]},
    "a region twice": {"regions": [VERIFIER["regions"][0]] * 2},
    "words for a schedule": {"schedule": "not a cron x"},
    "five words for a schedule": {"schedule": "this is not a cron"},
    "four fields of a schedule": {"schedule": "*/30 * * *"},
    "minute 61": {"schedule": "61 * * * *"},
    "resources that are misspelt": {"driver": {"resources": {"limts": {"memory": "1Gi"}}}},
    "no image": {"image": None},
    "a name in capitals": {"name": "Orders"},
    "several lines of topics": {"topics": "a\nb"},
    "a negative lag": {"maxLagSeconds": -1},
    "memory without a unit": {"executors": {"memory": "512"}},
    "a verdict that counts for more than a week": {"verdictValidSeconds": 604_801},
    "an admission policy that is a word": {"admissionPolicy": "yes"},
}

WRONG_FOR_THE_OPERATOR: dict[str, dict[str, Any]] = {
    "a namespace in capitals": {"namespaces": ["Default"]},
    "a namespace twice": {"namespaces": ["default", "default"]},
    "no image": {"image": None},
    "no secret": {"auth": {"existingSecret": None}},
    "resources that are misspelt": {"resources": {"limts": {"memory": "1Gi"}}},
    "a log level of one's own": {"logLevel": "chatty"},
    "no replica": {"replicas": 0},
    "replicas in words": {"replicas": "2"},
    "an interval without a unit": {"serviceMonitor": {"interval": "30"}},
    "a region's address with a path": {"regions": [{"name": "a", "adminUrl": "http://a/admin/v2"}]},
    "a tenant that is no list": {"tenantsByNamespace": {"shop": "acme"}},
    "no verifier in a list of verifiers": {"verdicts": {"verifiers": []}},
    "a verifier in capitals": {"verdicts": {"verifiers": ["Orders"]}},
    "a key of a Secret with a path": {"regions": [{"name": "a", "adminUrl": "http://a", "tokenKey": "../a.jwt"}]},
    "a Secret in capitals": {"regions": [{"name": "a", "adminUrl": "http://a", "caSecret": "CA"}]},
}


@pytest.mark.parametrize(
    ("chart", "base", "wrong"),
    [
        ("meridian-region", region_values(), WRONG_FOR_A_REGION),
        ("meridian-verifier", VERIFIER, WRONG_FOR_THE_VERIFIER),
        ("meridian-operator", {}, WRONG_FOR_THE_OPERATOR),
    ],
)
def test_wrong_values_are_refused_before_anything_is_rendered(
    chart: str, base: dict[str, Any], wrong: dict[str, dict[str, Any]]
) -> None:
    cases = {"what is right": base} | {name: merged(base, values) for name, values in wrong.items()}
    told = refusals_by_schema(chart, cases)
    assert not told.pop("what is right"), "or the others prove nothing"
    assert not [name for name, words in told.items() if not words], "these were taken"


def test_two_regions_that_the_operator_cannot_tell_apart_are_refused() -> None:
    pairs = {
        "regions: a is listed twice": ("a", "http://a", "a", "http://b"),
        "http://a is listed twice": ("a", "http://a", "b", "http://a"),
    }
    for words, (one, its_url, other, other_url) in pairs.items():
        regions = [{"name": one, "adminUrl": its_url}, {"name": other, "adminUrl": other_url}]
        assert words in refusal("meridian-operator", {"regions": regions})


@pytest.mark.parametrize("since", [("regions", "tenantsByNamespace", "verdicts", "tls"), ("serviceMonitor",)])
def test_values_of_an_older_operator_chart_are_refused_with_the_next_step(since: tuple[str, ...]) -> None:
    """``--reuse-values`` puts an older version's defaults in place of this version's."""
    with with_defaults("meridian-operator", lambda defaults: [defaults.pop(key) for key in since]) as older:
        told = refusal(older, {}, "--is-upgrade")
    assert f"values are missing: {', '.join(since)}" in told
    assert "Repeat the command with --reset-then-reuse-values" in told
    assert ("examples/kubernetes/operator.yaml" in told) == ("regions" in since)


def test_an_upgrade_does_not_leave_the_operator_without_regions() -> None:
    assert "regions is empty" in refusal("meridian-operator", {}, "--is-upgrade")
    regions = [{"name": "a", "adminUrl": "http://a"}, {"name": "b", "adminUrl": "http://b"}]
    rendered("meridian-operator", {"regions": regions}, "--is-upgrade")


def test_settings_that_the_chart_makes_itself_are_not_for_configuring() -> None:
    """A second line for one of them would silently win, or lose: the region under another name, or without a login."""
    wanted = {
        *("clusterName", "dataDirectory", "metadataStoreUrl", "metadataStoreUser", "regionsFile", "peerTokenFile"),
        *("authenticationEnabled", "insecure", "tokenSecretKey", "superUserRoles", "brokerServicePort", "bindAddress"),
        *("probeServicePort", "webServicePort", "tlsCertificateFilePath", "advertisedListeners"),
    }
    kinds = {bool: False, int: 6650}
    config = {key: kinds.get(BY_KEY[key].kind, "x") for key in wanted} | {"logLevel": "debug"}
    told = refusal("meridian-region", region_values(broker={"config": config}))
    assert not [key for key in wanted if key not in told]
    assert "logLevel" not in told


def test_a_region_is_not_its_own_peer_and_no_peer_is_listed_twice() -> None:
    peers = [PEER, PEER | {"adminUrl": "http://elsewhere:8080"}, PEER | {"name": "us-east"}]
    told = refusal("meridian-region", region_values(region={"peers": peers}))
    assert "us-west is listed twice" in told
    assert "us-east is this region itself" in told


def test_the_operator_is_told_each_region_once() -> None:
    """Two regions at one address would each be told what the other one should hold."""
    twice = [{"name": "a", "adminUrl": "http://a:8080"}, {"name": "a", "adminUrl": "http://b:8080"}]
    assert "regions: a is listed twice" in refusal("meridian-operator", {"regions": twice})
    default = [{"name": "default", "adminUrl": "http://a:8080"}]
    assert "no region can be named default" in refusal("meridian-operator", {"regions": default})
    shared = [{"name": name, "adminUrl": "http://a:8080"} for name in ("a", "b")]
    assert "http://a:8080 is listed twice" in refusal("meridian-operator", {"regions": shared})


def test_addresses_of_peers_go_with_tls() -> None:
    secure = PEER | {"serviceUrl": "pulsar+ssl://us-west:6651", "adminUrl": "https://us-west:8443"}
    tls = {"enabled": True, "existingSecret": "certificates"}
    assert "begin with pulsar+ssl:" in refusal("meridian-region", region_values(region={"peers": [PEER]}, tls=tls))
    assert "begin with pulsar: and" in refusal("meridian-region", region_values(region={"peers": [secure]}))
    told = refusal("meridian-region", region_values(region={"peers": [secure]}, tls={"enabled": True}))
    assert "tls.existingSecret" in told
    assert "us-west" not in told


def identity(region: str, members: int) -> dict[str, Any]:
    """What an installation of this chart left, read back from what the chart renders."""
    values = region_values(region={"name": region}, etcd={"replicas": members})
    made = rendered("meridian-region", values, "--show-only", "templates/identity.yaml")
    note = made["ConfigMap", "meridian-identity"]
    assert note["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "volumes stay too"
    return note  # type: ignore[no-any-return]


def stateful_set(part: str, size: str) -> dict[str, Any]:
    template = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": size}}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"meridian-{part}"},
        "spec": {"volumeClaimTemplates": [template]},
    }


def test_what_the_volumes_hold_stays_as_it_was_installed() -> None:
    """Another name for stored messages; a second etcd beside the first; a claim that Kubernetes would refuse."""
    with cluster_with(identity("solo", 1), stateful_set("broker", "20Gi"), stateful_set("etcd", "2Gi")) as cluster:
        values = region_values(etcd={"replicas": 3}, broker={"volume": {"size": "40Gi"}})
        told = refusal("meridian-region", values, cluster=cluster)
        assert "belong to region solo" in told
        assert "created with 1 and cannot change to 3" in told
        assert "patch pvc data-meridian-broker-0 -p" in told
        assert '"storage":"40Gi"' in told
        assert "delete statefulset meridian-broker --cascade=orphan" in told
        assert "etcd.volume.size" not in told, "that one is the same"
        same = region_values(region={"name": "solo"}, broker={"volume": {"size": "20480Mi"}})
        rendered("meridian-region", same, cluster=cluster)


def test_a_volume_grows_once_its_claim_has_grown_and_its_stateful_set_was_taken_away() -> None:
    with cluster_with(identity("us-east", 1), stateful_set("etcd", "2Gi")) as cluster:
        made = rendered("meridian-region", region_values(broker={"volume": {"size": "40Gi"}}), cluster=cluster)
    claim = made["StatefulSet", "meridian-broker"]["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "40Gi"
