# SPDX-License-Identifier: Apache-2.0
"""What the verifier's chart makes of its values."""

from __future__ import annotations

from typing import Any

import yaml
from support.kubernetes.charts import merged, refusal, rendered

REGIONS: dict[str, Any] = {
    "regions": [
        {"name": "us-east", "adminUrl": "https://us-east:8443"},
        {"name": "us-west", "adminUrl": "https://us-west:8443"},
    ]
}


def test_driver_and_executors_believe_the_regions_authority() -> None:
    made = rendered("meridian-verifier", merged(REGIONS, {"tls": {"caSecret": "regions-ca"}}))
    driver = made["CronJob", "meridian"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    executor = yaml.safe_load(made["ConfigMap", "meridian"]["data"]["executor.yaml"])["spec"]
    for pod in (driver, executor):
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts["tls"] == "/etc/meridian/tls"
        assert next(one for one in pod["volumes"] if one["name"] == "tls")["secret"]["secretName"] == "regions-ca"
    believed = {"name": "SSL_CERT_FILE", "value": "/etc/meridian/tls/ca.crt"}
    assert believed in driver["containers"][0]["env"]
    assert f"--spark-conf=spark.executorEnv.SSL_CERT_FILE={believed['value']}" in driver["containers"][0]["args"]


def test_no_region_is_compared_with_itself() -> None:
    twice = [*REGIONS["regions"], {"name": "us-east", "adminUrl": "https://elsewhere:8443"}]
    assert "us-east is listed twice" in refusal("meridian-verifier", {"regions": twice})
