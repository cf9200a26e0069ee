# SPDX-License-Identifier: Apache-2.0
"""The verdict as a ConfigMap of the pod's own namespace, for the operator to read.

One object, ``meridian-verdict-NAME``, with one document, ``verdict.json``. It is written by server-side apply, so that
the right to patch this one object is all that is needed, and no Kubernetes client.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from meridian_verifier.align.facts import Place
from meridian_verifier.align.findings import Finding
from meridian_verifier.align.verdicts import PairVerdict, State, Verdict

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL: Final = "meridian.dev/verdict"
LARGEST: Final = 900_000
"""Bytes of the document: a ConfigMap holds a mebibyte."""
DETAILS: Final = 20
_ORDER: Final = (State.ALIGNED, State.UNKNOWN, State.MISALIGNED)


class NotPublished(Exception):
    """The verdict could not be written. The message says where and why."""


def document(verdict: Verdict, now: datetime) -> dict[str, Any]:
    """What is published: the whole verdict, and one row per topic and subscription."""
    groups: dict[tuple[str, str], list[PairVerdict]] = {}
    for pair in verdict.pairs:
        groups.setdefault((pair.topic, pair.subscription), []).append(pair)
    return {
        "time": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": verdict.state.value,
        "summary": verdict.summary,
        "regions": list(verdict.world.asked),
        "unreachable": dict(verdict.world.unreachable),
        "subscriptions": [
            {
                "topic": topic,
                "subscription": subscription,
                "verdict": max((pair.state for pair in pairs), key=_ORDER.index).value,
                "detail": "; ".join(_detail(verdict, topic, subscription, pairs)),
            }
            for (topic, subscription), pairs in sorted(groups.items())
        ],
    }


def manifest(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap. Aligned subscriptions are left out, then all, when it would be too large."""
    shortened = dict(told)
    text = json.dumps(shortened)
    if len(text) > LARGEST:
        shortened["subscriptions"] = [one for one in told["subscriptions"] if one["verdict"] != State.ALIGNED.value]
        shortened["shortened"] = True
        text = json.dumps(shortened)
    if len(text) > LARGEST:
        text = json.dumps({**shortened, "subscriptions": []})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"meridian-verdict-{name}", "labels": {LABEL: name}},
        "data": {"verdict.json": text},
    }


def publish(name: str, told: Mapping[str, Any], account: Path = ACCOUNT) -> None:
    """Write the ConfigMap.

    :raises NotPublished: this is no pod, or the API server refuses.
    """
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        token = (account / "token").read_text(encoding="utf-8").strip()
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
        trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except (KeyError, OSError) as error:
        raise NotPublished(f"a ConfigMap is written from inside a pod with a service account: {error}") from error
    body = manifest(name, told)
    path = f"/api/v1/namespaces/{namespace}/configmaps/{body['metadata']['name']}"
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}{path}?fieldManager=meridian-verifier&force=true",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/apply-patch+yaml"},
        method="PATCH",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    try:
        with opener.open(request, timeout=30):
            pass
    except urllib.error.HTTPError as error:
        reason = error.read(1000).decode(errors="replace")
        raise NotPublished(f"ConfigMap {body['metadata']['name']}: HTTP {error.code}: {reason}") from error
    except OSError as error:
        raise NotPublished(f"ConfigMap {body['metadata']['name']}: {error}") from error


def _detail(verdict: Verdict, topic: str, subscription: str, pairs: list[PairVerdict]) -> list[str]:
    """What is wrong: pairs of regions, then the positions."""
    told = [
        f"{pair.source} -> {pair.target}: {pair.entries} entries"
        + (f" ({', '.join(reason.value for reason in pair.reasons)})" if pair.reasons else "")
        + (f", {pair.note}" if pair.note else "")
        for pair in pairs
        if pair.state is not State.ALIGNED
    ]
    told += [
        f"{finding.reason.value}: {finding.entries} entries of {finding.origin} in {finding.target}: {_ranges(finding)}"
        for finding in verdict.findings
        if (finding.topic, finding.subscription) == (topic, subscription)
    ]
    return told[:DETAILS]


def _ranges(finding: Finding) -> str:
    shown = [f"({_place(after)}, {_place(upto)}]" for after, upto in finding.ranges[:DETAILS]]
    return ", ".join(shown) + (" ..." if len(finding.ranges) > DETAILS else "")


def _place(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
