# SPDX-License-Identifier: Apache-2.0
"""An earlier version of this repository: its checkout, its images, and the commands of its quickstart.

Which version: ``E2E_FROM`` (a commit), else the latest release before this one, else an older commit.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusters import ROOT, Cluster

TAG: Final = "earlier"
"""Tag of its images."""
COMMITS: Final = 100
"""How many commits back, as long as there is no release."""


@dataclass(frozen=True)
class Earlier:
    """The earlier version."""

    since: str
    """Its commit."""
    cluster: Cluster
    """The cluster, with commands that run in its checkout."""
    tag: str = TAG
    images: Sequence[str] = ("broker", "operator")
    """The images used from it; etcd's is this version's."""


def checked_out(cluster: Cluster, directory: Path) -> Earlier | None:
    """Write its files into the directory. None: the version is not here, as in a shallow clone."""
    since = _revision()
    if since is None:
        return None
    archive = subprocess.run(["git", "archive", since], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    (directory / ".venv").symlink_to(ROOT / ".venv")
    node = {"E2E_NODE": os.environ.get("E2E_NODE", str(ROOT.parent / "shared/node/node"))}
    code = {"PYTHONPATH": str(directory / "broker/src")}
    return Earlier(since, Cluster({**cluster.environment, **node, **code}, directory))


def _revision() -> str | None:
    for command in (
        ["git", "rev-parse", "--verify", f"{os.environ['E2E_FROM']}^{{commit}}"] if "E2E_FROM" in os.environ else [],
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"],
        ["git", "rev-list", "--first-parent", "-n1", f"--skip={COMMITS}", "HEAD"],
    ):
        if command:
            told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if told.returncode == 0 and told.stdout.strip():
                return told.stdout.strip()
    return None


def with_tls(cluster: Cluster) -> None:
    """Make its quickstart's values name addresses with TLS, and the Secrets ``regions-tls`` and ``regions-ca``."""
    ports = {"pulsar://": "pulsar+ssl://", "http://": "https://", ":6650": ":6651", ":8080": ":8443"}
    for file in (cluster.directory / "examples/kubernetes").glob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        for plain, secure in ports.items():
            text = text.replace(plain, secure)
        if "external:" in text:
            text += "tls: {enabled: true, existingSecret: regions-tls}\n"
        if "tenantsByNamespace:" in text:
            text += "tls: {caSecret: regions-ca}\n"
        file.write_text(text, encoding="utf-8")


def quickstart(cluster: Cluster) -> list[str]:
    """Its ten commands, with the images of that version."""
    text = (cluster.directory / "docs/quickstart-kubernetes.md").read_text(encoding="utf-8")
    found = re.findall(r"^```sh\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 10
    values = {"helm/meridian-region": f"broker.image.tag={TAG}", "helm/meridian-operator": f"image.tag={TAG}"}
    for chart, value in values.items():
        found = [command.replace(chart, f"{chart} --set {value}") for command in found]
    return found
