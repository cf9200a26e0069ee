# SPDX-License-Identifier: Apache-2.0
"""What the operator's chart renders from its values: rights above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from meridian_operator.api.settings import Settings
from support.kubernetes.charts import cluster_with, refusal, rendered

AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-"


def test_where_namespaces_are_listed_it_has_rights_in_those_only() -> None:
    made = rendered("meridian-operator", {"namespaces": ["team-a", "us-east"], "crds": {"enabled": False}})
    bound = [one for (kind, _), one in made.items() if kind == "ClusterRoleBinding"]
    assert not bound, "nothing is bound in the whole cluster"
    arguments = made["Deployment", "meridian"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--namespace=team-a", "--namespace=us-east"} <= set(arguments)


def test_its_rights_are_the_same_in_one_namespace_and_in_all() -> None:
    everywhere = rendered("meridian-operator", {"crds": {"enabled": False}})
    listed = rendered("meridian-operator", {"namespaces": ["team-a"], "crds": {"enabled": False}})
    wide = everywhere["ClusterRole", "meridian-us-east"]["rules"]
    narrow = listed["Role", "meridian-us-east"]
    assert narrow["metadata"]["namespace"] == "team-a"
    assert [rule for rule in wide if rule not in narrow["rules"]] == [
        {
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": ["customresourcedefinitions"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]},
    ]
    for rules in (wide, narrow["rules"]):
        named = {resource for rule in rules for resource in rule["resources"]}
        assert not named & {"*", "secrets", "pods"}
        assert not [rule for rule in rules if "delete" in rule["verbs"] or "*" in rule["verbs"]]


@pytest.mark.parametrize("namespaces", [[], ["team-a"]])
def test_it_reads_config_maps_in_the_verifier_s_namespace_only(namespaces: list[str]) -> None:
    values = {"crds": {"enabled": False}, "namespaces": namespaces, "verdicts": {"namespace": "meridian-verifier"}}
    made = rendered("meridian-operator", values)
    reading = {
        name: one["metadata"].get("namespace")
        for (kind, name), one in made.items()
        if kind in ("Role", "ClusterRole") and any("configmaps" in rule["resources"] for rule in one["rules"])
    }
    assert reading == {"meridian-us-east-verdicts": "meridian-verifier"}
    (rule,) = made["Role", "meridian-us-east-verdicts"]["rules"]
    assert rule["verbs"] == ["list", "watch"]
    bound = made["RoleBinding", "meridian-us-east-verdicts"]
    assert bound["metadata"]["namespace"] == "meridian-verifier"
    assert bound["roleRef"]["name"] == "meridian-us-east-verdicts"
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "meridian", "namespace": "us-east"}]


def test_the_verifiers_namespace_is_created_where_it_is_missing_and_outlives_the_release() -> None:
    values = {"crds": {"enabled": False}, "verdicts": {"namespace": "meridian-verifier"}}
    existing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "meridian-verifier"}}
    with cluster_with() as cluster:
        created = rendered("meridian-operator", values, cluster=cluster)["Namespace", "meridian-verifier"]
    assert created["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    with cluster_with(existing) as cluster:
        assert ("Namespace", "meridian-verifier") not in rendered("meridian-operator", values, cluster=cluster)
    assert not [kind for kind, _ in rendered("meridian-operator", {"crds": {"enabled": False}}) if kind == "Namespace"]


def test_people_may_read_and_get_no_rights_over_all_topics_by_default() -> None:
    plain = rendered("meridian-operator", {"crds": {"enabled": False}})
    given = rendered("meridian-operator", {"crds": {"enabled": False}, "roles": {"aggregateToEdit": True}})
    assert plain["ClusterRole", "meridian-us-east-view"]["metadata"]["labels"][f"{AGGREGATED}view"] == "true"
    assert not [key for key in plain["ClusterRole", "meridian-us-east-edit"]["metadata"]["labels"] if AGGREGATED in key]
    assert given["ClusterRole", "meridian-us-east-edit"]["metadata"]["labels"][f"{AGGREGATED}edit"] == "true"


def test_it_mounts_the_token_and_nothing_else_of_its_secret() -> None:
    made = rendered("meridian-operator", {"crds": {"enabled": False}, "podLabels": {"team": "messaging"}})
    pod = made["Deployment", "meridian"]["spec"]["template"]
    assert mounted(pod["spec"]) == {"tokens": [("meridian-tokens", "admin.jwt", "default")]}
    assert made["NetworkPolicy", "meridian"]["spec"]["ingress"] == []
    selector = made["Deployment", "meridian"]["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == selector | {"team": "messaging"}


def mounted(pod: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """What a pod mounts from Secrets, by volume: the Secret's name and key, and the file."""
    assert not [volume for volume in pod["volumes"] if "secret" in volume]
    return {
        volume["name"]: [
            (source["secret"]["name"], item["key"], item["path"])
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        ]
        for volume in pod["volumes"]
        if "projected" in volume
    }


def test_a_region_may_have_a_token_and_authorities_of_its_own() -> None:
    regions = [
        {"name": "plain", "adminUrl": "http://plain"},
        {"name": "keyed", "adminUrl": "https://keyed", "tokenKey": "keyed.jwt", "caSecret": "keyed-ca"},
        {"name": "apart", "adminUrl": "https://apart", "tokenSecret": "its-token"},
        {"name": "both", "adminUrl": "http://both", "tokenSecret": "its-tokens", "tokenKey": "x.jwt"},
    ]
    tls = {"caSecret": "regions-ca"}
    made = rendered("meridian-operator", {"crds": {"enabled": False}, "regions": regions, "tls": tls})
    pod = made["Deployment", "meridian"]["spec"]["template"]["spec"]
    own = [
        ("meridian-tokens", "keyed.jwt", "keyed"),
        ("its-token", "admin.jwt", "apart"),
        ("its-tokens", "x.jwt", "both"),
    ]
    assert mounted(pod) == {
        "tokens": [("meridian-tokens", "admin.jwt", "default"), *own],
        "authorities": [("regions-ca", "ca.crt", "default"), ("keyed-ca", "ca.crt", "keyed")],
    }
    made = rendered("meridian-operator", {"crds": {"enabled": False}, "regions": regions[1:]})
    pod = made["Deployment", "meridian"]["spec"]["template"]["spec"]
    assert mounted(pod) == {"tokens": own, "authorities": [("keyed-ca", "ca.crt", "keyed")]}, (
        "nothing is mounted needlessly"
    )


def test_it_believes_the_regions_authority() -> None:
    made = rendered("meridian-operator", {"crds": {"enabled": False}, "tls": {"caSecret": "regions-ca"}})
    pod = made["Deployment", "meridian"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"--authorities={mounts['authorities']}" in container["args"]
    assert f"--tokens={mounts['tokens']}" in container["args"]
    assert mounted(pod)["authorities"] == [("regions-ca", "ca.crt", "default")]
    plain = rendered("meridian-operator", {"crds": {"enabled": False}})
    arguments = plain["Deployment", "meridian"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [one for one in arguments if "authorities" in one]


def test_replicas_share_a_lease_that_they_may_hold_and_no_other() -> None:
    made = rendered("meridian-operator", {"crds": {"enabled": False}})
    spec = made["Deployment", "meridian"]["spec"]
    assert spec["replicas"] == 2
    assert spec["template"]["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert made["PodDisruptionBudget", "meridian"]["spec"]["maxUnavailable"] == 1
    assert "--lease=us-east/meridian" in spec["template"]["spec"]["containers"][0]["args"]
    named, made_first = made["Role", "meridian-lease"]["rules"]
    assert (named["resourceNames"], named["verbs"]) == (["meridian"], ["get", "update"])
    assert made_first["verbs"] == ["create"]
    alone = rendered("meridian-operator", {"crds": {"enabled": False}, "replicas": 1})
    assert ("PodDisruptionBudget", "meridian") not in alone, "it would block every drain"


def test_helm_test_asks_for_the_lease_that_replicas_hold() -> None:
    made = rendered("meridian-operator", {"crds": {"enabled": False}})
    spec = made["Pod", "meridian-test"]["spec"]
    assert "/namespaces/us-east/leases/meridian" in spec["containers"][0]["command"][2]
    compile(spec["containers"][0]["command"][2], "the test", "exec")
    bound = made["RoleBinding", "meridian-lease"]["subjects"][0]["name"]
    assert spec["serviceAccountName"] == bound == made["ServiceAccount", "meridian"]["metadata"]["name"]
    selected = made["Deployment", "meridian"]["spec"]["selector"]["matchLabels"]
    assert not selected.items() <= made["Pod", "meridian-test"]["metadata"]["labels"].items(), "it is no replica"


def test_prometheus_finds_every_replica_and_is_let_in() -> None:
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    values = {
        "crds": {"enabled": False},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"metrics": prometheus},
    }
    made = rendered("meridian-operator", values)
    monitor, service = made["ServiceMonitor", "meridian"], made["Service", "meridian-metrics"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    pod = made["Deployment", "meridian"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    opened = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
    (let_in,) = made["NetworkPolicy", "meridian"]["spec"]["ingress"]
    assert let_in == {"from": prometheus, "ports": [{"protocol": "TCP", "port": opened[port["targetPort"]]}]}


def test_it_is_told_the_regions_and_the_verifiers_that_count() -> None:
    values = {
        "crds": {"enabled": False},
        "namespaces": ["shop"],
        "regions": [
            {"name": "us-east", "adminUrl": "http://meridian-broker.us-east.svc:8080"},
            {"name": "elsewhere", "adminUrl": "https://broker.example.org:8443", "tokenSecret": "elsewhere-token"},
        ],
        "tenantsByNamespace": {"shop": ["acme"]},
        "verdicts": {"namespace": "meridian-verifier", "verifiers": ["orders"]},
    }
    made = rendered("meridian-operator", values)
    settings = Settings.model_validate_json(made["ConfigMap", "meridian-settings"]["data"]["settings.json"])
    assert {name: region.url for name, region in settings.regions.items()} == {
        "us-east": "http://meridian-broker.us-east.svc:8080",
        "elsewhere": "https://broker.example.org:8443",
    }
    assert settings.allows("shop", "persistent://acme/a/b") and not settings.allows("default", "persistent://acme/a/b")
    pod = made["Deployment", "meridian"]["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    assert [one for one in arguments if one.startswith("--namespace=")] == ["--namespace=shop"]
    assert (settings.verdicts_namespace, settings.verifiers) == ("meridian-verifier", ["orders"])
    tokens = [("meridian-tokens", "admin.jwt", "default"), ("elsewhere-token", "admin.jwt", "elsewhere")]
    assert mounted(pod) == {"tokens": tokens}
    nothing = rendered("meridian-operator", {"crds": {"enabled": False}})
    said = nothing["ConfigMap", "meridian-settings"]["data"]["settings.json"]
    assert Settings.model_validate_json(said) == Settings()


def test_the_example_names_the_regions_of_the_examples() -> None:
    examples = Path(__file__).parents[2] / "examples/kubernetes"
    operator = yaml.safe_load((examples / "operator.yaml").read_text(encoding="utf-8"))
    verifier = yaml.safe_load((examples / "verifier.yaml").read_text(encoding="utf-8"))
    assert sorted(one["name"] for one in operator["regions"]) == ["eu-central", "us-east", "us-west"]
    addresses = [[(one["name"], one["adminUrl"]) for one in values["regions"]] for values in (operator, verifier)]
    assert addresses[0] == addresses[1]
    for name, issuer in ((one["name"], one["tokenIssuer"]) for one in operator["regions"]):
        region = yaml.safe_load((examples / f"{name}.yaml").read_text(encoding="utf-8"))
        assert issuer == f"{name}/meridian-token-issuer"
        assert region["operatorToken"]["secret"] == f"meridian-system/operator-token-{name}"
    assert operator["verdicts"]["verifiers"] == [verifier["name"]]


def test_each_region_may_write_its_own_token_and_the_operator_reads_those_alone() -> None:
    regions = [
        {"name": "us-east", "adminUrl": "http://east", "tokenIssuer": "us-east/meridian-token-issuer"},
        {"name": "us-west", "adminUrl": "http://west", "tokenIssuer": "west/r-token-issuer"},
        {"name": "far", "adminUrl": "https://far", "tokenKey": "far.jwt"},
    ]
    made = rendered("meridian-operator", {"crds": {"enabled": False}, "regions": regions})
    writers = {}
    for (kind, name), one in made.items():
        if kind == "Role" and any("secrets" in rule["resources"] for rule in one["rules"]):
            (rule,) = one["rules"]
            bound = made["RoleBinding", name]
            assert bound["roleRef"]["name"] == name
            (subject,) = bound["subjects"]
            writers[f"{subject['namespace']}/{subject['name']}"] = (rule["resourceNames"], rule["verbs"])
    assert writers == {
        "us-east/meridian-token-issuer": (["meridian-token-us-east"], ["get", "patch"]),
        "west/r-token-issuer": (["meridian-token-us-west"], ["get", "patch"]),
        "us-east/meridian": (["meridian-token-us-east", "meridian-token-us-west"], ["get"]),
    }
    for name in ("us-east", "us-west"):
        assert "data" not in made["Secret", f"meridian-token-{name}"], "an upgrade would take the token away"
    settings = Settings.model_validate_json(made["ConfigMap", "meridian-settings"]["data"]["settings.json"])
    assert settings.regions["us-east"].token_secret == "us-east/meridian-token-us-east"
    assert settings.regions["us-east"].token_issuer == "us-east/meridian-token-issuer"
    assert not settings.regions["far"].token_secret
    assert mounted(made["Deployment", "meridian"]["spec"]["template"]["spec"]) == {
        "tokens": [("meridian-tokens", "far.jwt", "far")]
    }
    alone = rendered("meridian-operator", {"crds": {"enabled": False}, "regions": regions[:1]})
    assert mounted(alone["Deployment", "meridian"]["spec"]["template"]["spec"]) == {"tokens": []}


def test_a_region_has_one_source_of_tokens() -> None:
    both = {"name": "a", "adminUrl": "http://a", "tokenIssuer": "a/b", "tokenKey": "a.jwt"}
    assert "remove one of them" in refusal("meridian-operator", {"regions": [both]})
    named = {"name": "A_b", "adminUrl": "http://a", "tokenIssuer": "a/b"}
    assert "cannot be part of a Secret's" in refusal("meridian-operator", {"regions": [named]})
