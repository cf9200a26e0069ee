# SPDX-License-Identifier: Apache-2.0
"""images/etcd/go.mod names the version of etcd: charts install the one that is tested, and pages name no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def built_version() -> str:
    """The version that ``scripts/etcd`` builds."""
    modules = (ROOT / "images/etcd/go.mod").read_text(encoding="utf-8")
    found = re.search(r"^\s*go\.etcd\.io/etcd/server/v3 v(\S+)", modules, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_chart_installs_the_etcd_that_is_tested() -> None:
    values = yaml.safe_load((ROOT / "helm/meridian-region/values.yaml").read_text(encoding="utf-8"))
    image = values["etcd"]["image"]
    assert (image["repository"], image["tag"]) == ("quay.io/coreos/etcd", f"v{built_version()}")


def test_no_file_names_an_image_of_another_etcd() -> None:
    image = r"etcd:v?[0-9]+\.[0-9]+\.[0-9]+"
    listed = subprocess.run(["git", "grep", "-IhoE", image], cwd=ROOT, capture_output=True, text=True)
    assert {one.partition(":")[2].removeprefix("v") for one in listed.stdout.split()} <= {built_version()}


def test_contributing_names_the_etcd_that_is_tested() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"Tests with etcd use etcd (\d\S+),", page) == [built_version()]
