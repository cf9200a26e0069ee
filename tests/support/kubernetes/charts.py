# SPDX-License-Identifier: Apache-2.0
"""The Helm charts, rendered by Helm itself, with or without a cluster for lookups."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from meridian_broker.server.settings import Settings, load

CHARTS = Path(__file__).parents[3] / "helm"
Values = Mapping[str, Any]
Rendered = dict[tuple[str, str], Any]
"""Objects by kind and name, whatever their namespace."""

KINDS = {
    "v1": {"configmaps": "ConfigMap", "secrets": "Secret", "namespaces": "Namespace"},
    "apps/v1": {"statefulsets": "StatefulSet"},
}
"""Kinds that the stand-in for a cluster knows, by API and plural."""


@functools.cache
def helm() -> str:
    """Path of Helm: from the virtual environment, else from PATH. Without Helm, the test is skipped."""
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("Helm is not installed, and its wheel does not exist for this platform: put helm on PATH")
    return found


def region_values(**more: Any) -> dict[str, Any]:
    """Values of a region with existing credentials: making certificates takes most of a render's time."""
    etcd = {"auth": {"existingSecret": "etcd-login"}, "tls": {"existingSecret": "etcd-tls"}}
    return merged({"region": {"name": "us-east"}, "etcd": etcd}, more)


def merged(values: Values, more: Values) -> dict[str, Any]:
    """Merge like Helm: objects deeply, everything else is replaced."""
    both = dict(values)
    for key, value in more.items():
        known = both.get(key)
        both[key] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return both


def rendered(chart: str | Path, values: Values, *options: str, cluster: str | None = None) -> Rendered:
    """Objects rendered from the values, in release ``meridian`` of namespace ``us-east``."""
    done = _run(chart, values, *options, cluster=cluster)
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    named = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in documents}
    assert len(named) == len(documents), "an object is rendered twice"
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod(made: Rendered, part: str) -> Any:
    """The template of a part's pods, such as ``broker``."""
    return made["StatefulSet", f"meridian-{part}"]["spec"]["template"]


def configuration(made: Rendered, directory: Path, *assignments: str) -> Settings:
    """The settings that a broker reads from its ConfigMap and the assignments on its command line."""
    for name, text in made["ConfigMap", "meridian-broker"]["data"].items():
        (directory / name).write_text(text)
    return load(directory / "broker.conf", assignments, {})


def refusal(chart: str | Path, values: Values, *options: str, cluster: str | None = None) -> str:
    """The chart's error message for invalid values."""
    done = _run(chart, values, *options, cluster=cluster)
    assert done.returncode != 0, f"rendering succeeded:\n{done.stdout[:2000]}"
    return done.stderr


def refusals_by_schema(chart: str, cases: Mapping[str, Values]) -> dict[str, str]:
    """The schema's errors for each case, by name; empty for a case that it accepts.

    One run checks all of them, as dependencies of a chart that uses this one under many aliases.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "charts").mkdir()
        shutil.copytree(CHARTS / chart, directory / "charts" / chart)
        uses = [{"name": chart, "version": "0.1.0", "alias": f"case-{number}"} for number in range(len(cases))]
        about = {"apiVersion": "v2", "name": "cases", "version": "0.1.0", "dependencies": uses}
        (directory / "Chart.yaml").write_text(json.dumps(about))
        told = refusal(directory, {f"case-{number}": values for number, values in enumerate(cases.values())})
    parts = re.split(r"^(case-\d+):$", told, flags=re.MULTILINE)
    by_part = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: by_part.get(f"case-{number}", "").strip() for number, name in enumerate(cases)}


@contextmanager
def with_defaults(chart: str, change: Callable[[dict[str, Any]], object]) -> Iterator[Path]:
    """The chart with changed defaults, as Helm renders it with those of the installed release (``--reuse-values``)."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / chart
        shutil.copytree(CHARTS / chart, directory)
        defaults = yaml.safe_load((directory / "values.yaml").read_text())
        change(defaults)
        (directory / "values.yaml").write_text(yaml.safe_dump(defaults))
        yield directory


def notes(chart: str, values: Values) -> str:
    """Helm's notes after installing the chart."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / chart
        shutil.copytree(CHARTS / chart, directory)
        (directory / "templates/shown.yaml").write_text(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shown}\n"
            'data: {notes: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}}\n'
        )
        shown = rendered(directory, values, "--show-only", "templates/shown.yaml")
    return str(shown["ConfigMap", "shown"]["data"]["notes"])


@contextmanager
def cluster_with(*objects: Any) -> Iterator[str]:
    """The address of an API server with just these objects, as far as ``lookup`` can tell."""
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group("apps")]},
    }
    for api, kinds in KINDS.items():
        resources = [
            {"name": plural, "kind": kind, "namespaced": plural != "namespaces", "verbs": ["get", "list"]}
            for plural, kind in kinds.items()
        ]
        answers[_path(api)] = {"kind": "APIResourceList", "groupVersion": api, "resources": resources}
    for one in objects:
        plural = next(plural for plural, kind in KINDS[one["apiVersion"]].items() if kind == one["kind"])
        place = "" if plural == "namespaces" else "namespaces/us-east/"
        answers[f"{_path(one['apiVersion'])}/{place}{plural}/{one['metadata']['name']}"] = one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            data = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _path(api: str) -> str:
    return f"/apis/{api}" if "/" in api else f"/api/{api}"


def _run(
    chart: str | Path, values: Values, *options: str, cluster: str | None = None
) -> subprocess.CompletedProcess[str]:
    where = CHARTS / chart if isinstance(chart, str) else chart
    asked = () if cluster is None else ("--dry-run=server", "--kube-apiserver", cluster)
    with tempfile.TemporaryDirectory() as home:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
        return subprocess.run(
            [helm(), "template", "meridian", where, "--namespace", "us-east", "-f", "-", *options, *asked],
            input=json.dumps(values),
            env=kept | {"HOME": home},
            capture_output=True,
            text=True,
            timeout=120,
        )
