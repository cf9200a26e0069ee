# SPDX-License-Identifier: Apache-2.0
"""What the verifier's chart renders from its values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from meridian_verifier.report.configmap import Run, manifests
from support.kubernetes.charts import notes, refusal, rendered, with_defaults

REGIONS: dict[str, Any] = {
    "regions": [
        {"name": "us-east", "adminUrl": "https://us-east:8443"},
        {"name": "us-west", "adminUrl": "https://us-west:8443"},
    ]
}


def test_driver_and_executors_trust_the_regions_authority() -> None:
    regions = [REGIONS["regions"][0] | {"caSecret": "us-east-ca"}, REGIONS["regions"][1]]
    made = rendered("meridian-verifier", {"regions": regions, "tls": {"caSecret": "regions-ca"}})
    driver = made["CronJob", "meridian"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    executor = yaml.safe_load(made["ConfigMap", "meridian"]["data"]["executor.yaml"])["spec"]
    for pod in (driver, executor):
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts["tls"] == "/etc/meridian/tls"
        sources = next(one for one in pod["volumes"] if one["name"] == "tls")["projected"]["sources"]
        files = {one["secret"]["name"]: one["secret"]["items"] for one in sources}
        assert files == {
            "regions-ca": [{"key": "ca.crt", "path": "default"}],
            "us-east-ca": [{"key": "ca.crt", "path": "us-east"}],
        }
    assert "--ca-dir=/etc/meridian/tls" in driver["containers"][0]["args"]


def test_without_its_own_authority_a_region_is_trusted_by_the_systems_authorities() -> None:
    driver = rendered("meridian-verifier", REGIONS)["CronJob", "meridian"]["spec"]["jobTemplate"]["spec"]["template"]
    assert not [one for one in driver["spec"]["containers"][0]["args"] if one.startswith("--ca-dir")]
    assert "tls" not in {one["name"] for one in driver["spec"]["volumes"]}


def test_it_lists_subscriptions_in_the_listed_namespaces_only() -> None:
    for team in ("team-a", "team-b"):
        made = rendered("meridian-verifier", REGIONS | {"namespaces": [team]})
        assert not [kind for kind, _ in made if kind.startswith("ClusterRole")]
        for kind in ("Role", "RoleBinding"):
            assert made[kind, "meridian-us-east"]["metadata"]["namespace"] == team
    both = rendered("meridian-verifier", REGIONS | {"namespaces": ["team-a", "team-b"]})
    arguments = both["CronJob", "meridian"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    told = [one for one in arguments if one.startswith("--max-lags-namespace")]
    assert told == ["--max-lags-namespace=team-a", "--max-lags-namespace=team-b"]
    assert ("ClusterRole", "meridian-us-east") in rendered("meridian-verifier", REGIONS)


def test_the_api_server_reserves_verdicts_for_the_verifier() -> None:
    made = rendered("meridian-verifier", REGIONS | {"name": "orders"})
    policy, binding = (made[f"ValidatingAdmissionPolicy{of}", "meridian-us-east"]["spec"] for of in ("", "Binding"))
    assert (binding["policyName"], binding["validationActions"]) == ("meridian-us-east", ["Deny"])
    assert policy["failurePolicy"] == "Fail"
    constraints = policy["matchConstraints"]
    assert constraints["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "us-east"}}
    (rule,) = constraints["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["configmaps"], ["CREATE", "UPDATE"])
    (matched,) = policy["matchConditions"]
    told = manifests(Run("orders", "1", datetime.now(UTC), timedelta(1)), {}, [], "a")
    ((label, name),) = told[0]["metadata"]["labels"].items()
    for one in ("object", "oldObject"):
        assert f"{one}.metadata.labels['{label}'] == '{name}'" in matched["expression"]
    pod = made["CronJob", "meridian"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    account = f"system:serviceaccount:us-east:{pod['serviceAccountName']}"
    assert policy["validations"][0]["expression"] == f"request.userInfo.username == '{account}'"
    open_to_all = rendered("meridian-verifier", REGIONS | {"admissionPolicy": {"enabled": False}})
    assert not [kind for kind, _ in open_to_all if kind.startswith("ValidatingAdmissionPolicy")]


def test_for_a_cluster_without_admission_policies_the_chart_says_what_to_set() -> None:
    old = ("--kube-version", "1.29.4")
    told = refusal("meridian-verifier", REGIONS, *old)
    assert "Kubernetes 1.29.4 has no ValidatingAdmissionPolicy" in told and "admissionPolicy.enabled=false" in told
    assert rendered("meridian-verifier", REGIONS | {"admissionPolicy": {"enabled": False}}, *old)


def test_the_notes_say_what_the_operator_has_to_be_told() -> None:
    told = notes("meridian-verifier", REGIONS | {"name": "orders"})
    assert "verdicts.namespace=us-east and lists orders in verdicts.verifiers" in told


def test_values_of_an_older_chart_are_refused_with_the_next_step() -> None:
    with with_defaults("meridian-verifier", lambda defaults: defaults.pop("admissionPolicy")) as older:
        told = refusal(older, REGIONS, "--is-upgrade")
    assert "--reset-then-reuse-values" in told


def test_no_region_is_compared_with_itself() -> None:
    twice = [*REGIONS["regions"], {"name": "us-east", "adminUrl": "https://elsewhere:8443"}]
    assert "us-east is listed twice" in refusal("meridian-verifier", {"regions": twice})
