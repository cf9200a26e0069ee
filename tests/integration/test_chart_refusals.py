# SPDX-License-Identifier: Apache-2.0
"""What the charts refuse: values that would break a region at this upgrade, at a later one, or at its next restart."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.server.settings import BY_KEY
from support.kubernetes.charts import (
    cluster_with,
    merged,
    notes,
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
    "a peer's address of two colons": {"region": {"peers": [PEER | {"adminUrl": "http://us-west:80:8080"}]}},
    "no secret": {"auth": {"existingSecret": ""}},
    "a secret that no cluster can hold": {"auth": {"existingSecret": "tokens..east"}},
    "no roles at all": {"auth": {"superUserRoles": None}},
    "an empty list of roles": {"auth": {"superUserRoles": []}},
    "a role with a comma": {"auth": {"superUserRoles": ["admin,other"]}},
    "a role with a line break": {"auth": {"superUserRoles": ["admin\ninsecure=true"]}},
    "no broker image": {"broker": {"image": None}},
    "no broker at all": {"broker": None},
    "an image with a blank": {"broker": {"image": {"repository": "meridian broker"}}},
    "an image with its tag in the name": {"broker": {"image": {"repository": "meridian-broker:0.1.0"}}},
    "a tag that begins with a dash": {"broker": {"image": {"tag": "-1"}}},
    "a tag that is a number": {"broker": {"image": {"tag": 1.0}}},
    "a digest cut short": {"broker": {"image": {"digest": "sha256:0123"}}},
    "a pull policy of one's own": {"broker": {"image": {"pullPolicy": "Sometimes"}}},
    "no broker": {"broker": {"replicas": 0}},
    "brokers in words": {"broker": {"replicas": "2"}},
    "an unknown storage": {"region": {"storage": "pulsar"}},
    "two bookies": {"bookies": {"replicas": 2}},
    "memory of bookies without a unit": {"bookies": {"memory": {"heap": "512"}}},
    "a bookie's setting of two lines": {"bookies": {"config": {"gcWaitTime": "1\nbookiePort=1"}}},
    "a bookie's setting that is a list": {"bookies": {"config": {"ledgerDirectories": ["/a"]}}},
    "a bookies' volume of nothing": {"bookies": {"journal": {"size": "0Gi"}}},
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
    "an amount with two points": {"broker": {"resources": {"limits": {"cpu": "1.2.3"}}}},
    "an amount with half a unit": {"broker": {"resources": {"limits": {"memory": "1i"}}}},
    "a volume without a unit": {"broker": {"volume": {"size": "20"}}},
    "a volume of nothing": {"broker": {"volume": {"size": "0Gi"}}},
    "a volume that etcd's own log fills": {"etcd": {"volume": {"size": "64Mi"}}},
    "a grace period that is too short": {"broker": {"terminationGracePeriodSeconds": 1}},
    "a setting through the environment": {"broker": {"extraEnv": [{"name": "MERIDIAN_clusterName", "value": "x"}]}},
    "an environment variable that is misspelt": {"broker": {"extraEnv": [{"name": "TZ", "valeu": "UTC"}]}},
    "an environment variable that is a number": {"broker": {"extraEnv": [{"name": "DEBUG", "value": 1}]}},
    "a volume with the name of the data's": {"broker": {"extraVolumes": [{"name": "data", "emptyDir": {}}]}},
    "a mount in place of the data": {"broker": {"extraVolumeMounts": [{"name": "more", "mountPath": "/data"}]}},
    "a mount without a path": {"broker": {"extraVolumeMounts": [{"name": "more"}]}},
    "a label that the Services select": {"broker": {"podLabels": {"app.kubernetes.io/component": "proxy"}}},
    "a label of two words": {"broker": {"podLabels": {"team": "our team"}}},
    "a label without a valid key": {"etcd": {"podLabels": {"our team": "a"}}},
    "the checksum that restarts brokers": {"broker": {"podAnnotations": {"checksum/config": "none"}}},
    "a toleration that is misspelt": {"broker": {"tolerations": [{"operatr": "Exists"}]}},
    "a toleration of an unknown effect": {"etcd": {"tolerations": [{"effect": "NoSchedul"}]}},
    "an affinity that is misspelt": {"broker": {"affinity": {"podAntiAffinty": {}}}},
    "a spread without a topology": {"etcd": {"topologySpreadConstraints": [{"maxSkew": 1}]}},
    "an outside without a host": {"external": {"enabled": True}},
    "a host with a blank": {"external": {"enabled": True, "host": "a b"}},
    "a host with two dots in a row": {"external": {"enabled": True, "host": "east..example.org"}},
    "an invalid node port": {"external": {"enabled": True, "host": "node", "port": 80}},
    "a type of service of one's own": {"external": {"type": "ClusterIP"}},
    "two members of etcd": {"etcd": {"replicas": 2}},
    "three members in words": {"etcd": {"replicas": "3"}},
    "an etcd without a tag": {"etcd": {"image": {"tag": ""}}},
    "a TLS switch in words": {"tls": {"enabled": "yes"}},
    "an issuer without an end": {"tls": {"certManager": {"issuer": "ca"}}},
    "an issuer without a name": {"tls": {"certManager": {"issuerRef": {"kind": "ClusterIssuer"}}}},
    "no network policy at all": {"networkPolicy": None},
    "a network policy that is a word": {"networkPolicy": {"clients": ["anybody"]}},
    "a client that is misspelt": {"networkPolicy": {"clients": [{"podSelecter": {}}]}},
    "a selector that would select everybody": {
        "networkPolicy": {"admins": [{"podSelector": {"matchLabel": {"a": "b"}}}]}
    },
    "a network without its size": {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0"}}]}},
    "an interval without a unit": {"podMonitor": {"interval": "30"}},
    "an interval of nothing": {"podMonitor": {"interval": "0s"}},
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
    "every minute out of none": {"schedule": "*/0 * * * *"},
    "a day of no week": {"schedule": "0 0 * * xyz"},
    "a month of no year": {"schedule": "0 0 1 xyz *"},
    "resources that are misspelt": {"driver": {"resources": {"limts": {"memory": "1Gi"}}}},
    "no image": {"image": None},
    "a name in capitals": {"name": "Orders"},
    "several lines of topics": {"topics": "a\nb"},
    "a negative lag": {"maxLagSeconds": -1},
    "memory without a unit": {"executors": {"memory": "512"}},
    "memory in which Spark does not start": {"driver": {"memory": "256m"}},
    "an amount with two points": {"executors": {"requestCpu": "0.1.2"}},
    "a region's address with port 0": {"regions": [VERIFIER["regions"][0], {"name": "b", "adminUrl": "http://b:0"}]},
    "a pull secret by its bare name": {"imagePullSecrets": ["registry"]},
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
    "a region's address with port 65536": {"regions": [{"name": "a", "adminUrl": "http://a:65536"}]},
    "a region's address with a line break": {"regions": [{"name": "a", "adminUrl": "http://a\n"}]},
    "a key that no Secret can hold": {"regions": [{"name": "a", "adminUrl": "http://a", "tokenKey": ".."}]},
    "a toleration that is misspelt": {"tolerations": [{"operatr": "Exists"}]},
    "a label that the Deployment selects": {"podLabels": {"app.kubernetes.io/name": "other"}},
    "a reader of metrics that is misspelt": {"networkPolicy": {"metrics": [{"podSelecter": {}}]}},
    "an environment variable that is misspelt": {"extraEnv": [{"name": "HTTPS_PROXY", "valeu": "http://proxy"}]},
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
    assert not told.pop("what is right"), "the unchanged values must pass, or the refusals prove nothing"
    assert not [name for name, words in told.items() if not words], "these values were accepted"


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


def test_settings_that_the_chart_writes_itself_cannot_be_configured() -> None:
    """A second line for one of them would silently win or lose: the region would have another name, or no login."""
    wanted = {
        *("clusterName", "dataDirectory", "metadataStoreUrl", "metadataStoreUser", "regionsFile", "peerTokenFile"),
        *("brokerId", "bookkeeperTLSTrustCertsFilePath"),
        *("authenticationEnabled", "insecure", "tokenSecretKey", "superUserRoles", "brokerServicePort", "bindAddress"),
        *("probeServicePort", "webServicePort", "tlsCertificateFilePath", "advertisedListeners"),
        *("brokerId", "bindAddresses"),
    }
    kinds = {bool: False, int: 6650}
    config = {key: kinds.get(BY_KEY[key].kind, "x") for key in wanted} | {"logLevel": "debug"}
    wanted.add("managedLedgerStorage")
    config["managedLedgerStorage"] = "bookkeeper"
    told = refusal("meridian-region", region_values(broker={"config": config}))
    assert not [key for key in wanted if key not in told]
    assert "logLevel" not in told


def test_settings_that_no_broker_starts_with_are_refused_together() -> None:
    """A broker would refuse them too, but only at its next restart."""
    certificate = "/etc/meridian/tls/tls.crt"
    config = {
        "managedLedgerDefaultEnsembleSize": 4,
        "managedLedgerDefaultWriteQuorum": 3,
        "managedLedgerDefaultAckQuorum": 5,
        "bookkeeperTLSCertificateFilePath": certificate,
        "brokerClientKeyFilePath": certificate,
        "tlsRequireTrustedClientCertOnConnect": True,
    }
    told = refusal("meridian-region", region_values(broker={"config": config}))
    assert not [key for key in config if key not in told]
    assert "bookkeeperTLSTrustCertsFilePath" in told
    for one, other in (("managedLedgerDefaultEnsembleSize", 4), ("managedLedgerDefaultAckQuorum", 4)):
        assert one in refusal("meridian-region", region_values(broker={"config": {one: other}}))
    right = {
        "managedLedgerDefaultEnsembleSize": 4,
        "managedLedgerDefaultWriteQuorum": 4,
        "managedLedgerDefaultAckQuorum": 4,
        "tlsTrustCertsFilePath": "/etc/meridian/tls/ca.crt",
        "tlsRequireTrustedClientCertOnConnect": True,
    }
    rendered("meridian-region", region_values(broker={"config": right}))


def test_a_region_is_not_its_own_peer_and_no_peer_is_listed_twice() -> None:
    peers = [PEER, PEER | {"adminUrl": "http://elsewhere:8080"}, PEER | {"name": "us-east"}]
    told = refusal("meridian-region", region_values(region={"peers": peers}))
    assert "us-west is listed twice" in told
    assert "us-east is this region itself" in told


def test_no_region_is_listed_twice_for_the_operator() -> None:
    """Two regions at one address would each be given the other's objects."""
    twice = [{"name": "a", "adminUrl": "http://a:8080"}, {"name": "a", "adminUrl": "http://b:8080"}]
    assert "regions: a is listed twice" in refusal("meridian-operator", {"regions": twice})
    default = [{"name": "default", "adminUrl": "http://a:8080"}]
    assert "no region can be named default" in refusal("meridian-operator", {"regions": default})
    shared = [{"name": name, "adminUrl": "http://a:8080"} for name in ("a", "b")]
    assert "http://a:8080 is listed twice" in refusal("meridian-operator", {"regions": shared})


def test_addresses_of_peers_match_the_tls_setting() -> None:
    secure = PEER | {"serviceUrl": "pulsar+ssl://us-west:6651", "adminUrl": "https://us-west:8443"}
    tls = {"enabled": True, "existingSecret": "certificates"}
    assert "begin with pulsar+ssl:" in refusal("meridian-region", region_values(region={"peers": [PEER]}, tls=tls))
    assert "begin with pulsar: and" in refusal("meridian-region", region_values(region={"peers": [secure]}))
    told = refusal("meridian-region", region_values(region={"peers": [secure]}, tls={"enabled": True}))
    assert "tls.existingSecret" in told
    assert "us-west" not in told


def identity(region: str, members: int, storage: str = "local") -> dict[str, Any]:
    """What an installation of this chart leaves behind, taken from what the chart renders."""
    values = region_values(region={"name": region, "storage": storage}, etcd={"replicas": members})
    made = rendered("meridian-region", values, "--show-only", "templates/identity.yaml")
    note = made["ConfigMap", "meridian-identity"]
    assert note["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "volumes stay too"
    return note  # type: ignore[no-any-return]


def stateful_set(part: str, replicas: int = 1, **claims: str) -> dict[str, Any]:
    """An installed StatefulSet with the sizes of its claims."""
    templates = [
        {"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}}
        for name, size in claims.items()
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"meridian-{part}"},
        "spec": {"replicas": replicas, "volumeClaimTemplates": templates},
    }


def test_what_the_volumes_hold_stays_as_it_was_installed() -> None:
    """Another region over stored messages; a second etcd beside the first; a claim that Kubernetes would refuse."""
    with cluster_with(
        identity("solo", 1), stateful_set("broker", data="20Gi"), stateful_set("etcd", data="2Gi")
    ) as cluster:
        values = region_values(etcd={"replicas": 3}, broker={"volume": {"size": "40Gi"}})
        told = refusal("meridian-region", values, cluster=cluster)
        assert "belong to region solo" in told
        assert "created with 1 and cannot change to 3" in told
        assert "patch pvc data-meridian-broker-0 -p" in told
        assert '"storage":"40Gi"' in told
        assert "delete statefulset meridian-broker --cascade=orphan" in told
        assert "etcd.volume.size" not in told, "the one that did not change"
        same = region_values(region={"name": "solo"}, broker={"volume": {"size": "20480Mi"}})
        rendered("meridian-region", same, cluster=cluster)


def test_members_of_etcd_still_find_each_other() -> None:
    """etcd's own data holds each member's address, and that begins with the scheme."""
    for members, before, refused in ((3, True, True), (3, False, True), (1, True, False)):
        values = region_values(etcd={"replicas": members, "tls": {"enabled": before}})
        made = rendered("meridian-region", values, "--show-only", "templates/identity.yaml")
        with cluster_with(made["ConfigMap", "meridian-identity"]) as cluster:
            rendered("meridian-region", values, cluster=cluster)
            changed = region_values(etcd={"replicas": members, "tls": {"enabled": not before}})
            if refused:
                assert "would not find each other" in refusal("meridian-region", changed, cluster=cluster)
            else:
                rendered("meridian-region", changed, cluster=cluster)


def test_a_volume_grows_once_its_claim_has_grown_and_its_stateful_set_was_taken_away() -> None:
    with cluster_with(identity("us-east", 1), stateful_set("etcd", data="2Gi")) as cluster:
        made = rendered("meridian-region", region_values(broker={"volume": {"size": "40Gi"}}), cluster=cluster)
    claim = made["StatefulSet", "meridian-broker"]["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "40Gi"


def test_messages_stay_where_the_region_was_installed_to_store_them() -> None:
    changed = region_values(region={"storage": "bookkeeper"})
    older = identity("us-east", 1)
    del older["data"]["storage"]
    for before in (identity("us-east", 1), older):
        with cluster_with(before) as cluster:
            assert "stores its messages on local" in refusal("meridian-region", changed, cluster=cluster)
    with cluster_with(identity("us-east", 1, "bookkeeper")) as cluster:
        assert "stores its messages on bookkeeper" in refusal("meridian-region", region_values(), cluster=cluster)
        rendered("meridian-region", changed, cluster=cluster)


def test_bookies_stay_in_the_zones_where_they_were_installed() -> None:
    """Their volumes stay there; StatefulSets of other names would start empty bookies."""
    region = {"storage": "bookkeeper"}
    zones = ["a", "b", "c"]
    in_zones = region_values(region=region, bookies={"zones": zones})
    with cluster_with(identity("us-east", 1, "bookkeeper")) as cluster:
        assert "installed in [no zones]" in refusal("meridian-region", in_zones, cluster=cluster)
    note = rendered("meridian-region", in_zones)["ConfigMap", "meridian-identity"]
    sets = [stateful_set(f"bookie-{zone}", 2, journal="10Gi", ledgers="50Gi") for zone in zones]
    with cluster_with(note, *sets) as cluster:
        for changed in ([], ["a", "b"], ["b", "a", "c"]):
            values = region_values(region=region, bookies={"zones": changed, "replicas": 6})
            assert "installed in [a,b,c]" in refusal("meridian-region", values, cluster=cluster)
        told = refusal("meridian-region", in_zones, cluster=cluster)
        assert "from 6 to 4 removes several bookies at once" in told
        rendered(
            "meridian-region", region_values(region=region, bookies={"zones": zones, "replicas": 5}), cluster=cluster
        )


def test_impossible_zones_are_refused() -> None:
    region = {"storage": "bookkeeper"}
    few = region_values(region=region, bookies={"zones": ["a", "b", "c", "d", "e"]})
    assert "4 bookies cannot be in 5 zones" in refusal("meridian-region", few)
    chosen = {"zones": ["a", "b"], "nodeSelector": {"topology.kubernetes.io/zone": "a"}}
    assert "bookies.zones chooses the zone" in refusal("meridian-region", region_values(region=region, bookies=chosen))
    twice = region_values(region=region, bookies={"zones": ["a"]}, broker={"config": {"bookieZones": "x=a"}})
    assert "bookieZones" in refusal("meridian-region", twice)


def test_bookies_are_removed_one_at_a_time_and_their_volumes_do_not_change() -> None:
    bookies = stateful_set("bookie", 5, journal="10Gi", ledgers="50Gi")
    with cluster_with(identity("us-east", 1, "bookkeeper"), bookies) as cluster:
        values = region_values(region={"storage": "bookkeeper"}, bookies={"replicas": 3, "journal": {"size": "20Gi"}})
        told = refusal("meridian-region", values, cluster=cluster)
        assert "from 5 to 3 removes several bookies at once" in told
        assert "bookies.journal.size: Kubernetes does not change 10Gi to 20Gi" in told
        assert "patch pvc journal-meridian-bookie-0 journal-meridian-bookie-1 journal-meridian-bookie-2 -p" in told
        assert "bookies.volume.size" not in told
        rendered(
            "meridian-region", region_values(region={"storage": "bookkeeper"}, bookies={"replicas": 4}), cluster=cluster
        )


def test_several_brokers_need_shared_storage_and_an_address_each() -> None:
    bookkeeper = {"storage": "bookkeeper"}
    assert "2 brokers need region.storage: bookkeeper" in refusal(
        "meridian-region", region_values(broker={"replicas": 2})
    )
    values = region_values(
        region={**bookkeeper, "peers": [PEER]},
        broker={"replicas": 2},
        external={"enabled": True, "host": "east.example.org", "type": "LoadBalancer"},
    )
    told = refusal("meridian-region", values)
    assert "LoadBalancer leads to one address" in told
    last = {"enabled": True, "host": "east.example.org", "port": 32766}
    told = refusal("meridian-region", region_values(region=bookkeeper, broker={"replicas": 2}, external=last))
    assert "up to 32768; the last one is 32767" in told


def test_values_that_would_stop_bookies_are_refused() -> None:
    values = region_values(
        region={"storage": "bookkeeper"},
        etcd={"tls": {"enabled": False}},
        bookies={
            "config": {"bookieId": "x", "metadataServiceUri": "x", "gcWaitTime": 1000},
            "memory": {"heap": "1Gi"},
        },
    )
    told = refusal("meridian-region", values)
    assert "bookies log in to etcd by certificate" in told
    assert "the chart itself sets bookieId, metadataServiceUri" in told
    assert "2Gi is less than bookies.memory.heap, bookies.memory.direct and 256Mi together, 2304Mi" in told


def test_bookies_are_not_left_open_to_everyone_by_mistake() -> None:
    """They do not authenticate clients, so only the NetworkPolicy protects them."""
    region, nobody = {"storage": "bookkeeper"}, {"enabled": False}
    told = refusal("meridian-region", region_values(region=region, networkPolicy=nobody))
    assert "can read, fence and write all of the region's messages" in told
    assert "bookies.withoutNetworkPolicy" in told
    chosen = region_values(region=region, networkPolicy=nobody, bookies={"withoutNetworkPolicy": True})
    assert not [name for kind, name in rendered("meridian-region", chosen) if kind == "NetworkPolicy"]
    assert "WARNING: no NetworkPolicy protects the bookies" in notes("meridian-region", chosen)
    assert "WARNING" not in notes("meridian-region", region_values(region=region))
    rendered("meridian-region", region_values(networkPolicy=nobody))


def test_the_operators_token_lives_long_enough_and_is_a_super_users() -> None:
    place = "meridian-system/token"
    for lifetime, taken in {"9m": False, "599s": False, "10m": True, "24h": True, "366d": False}.items():
        values = region_values(operatorToken={"secret": place, "lifetime": lifetime})
        if taken:
            rendered("meridian-region", values)
        else:
            assert f"operatorToken.lifetime: {lifetime}" in refusal("meridian-region", values)
    values = region_values(operatorToken={"secret": place, "subject": "bob"})
    assert "bob is not one of auth.superUserRoles" in refusal("meridian-region", values)
