# SPDX-License-Identifier: Apache-2.0
"""``spec.maxLag`` of every ReplicatedSubscription, directly from the Kubernetes API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from meridian_verifier.align.verdicts import Key
from meridian_verifier.cluster import Cluster, ClusterError

GROUP: Final = "/apis/meridian.dev/v1alpha1"
KIND: Final = "replicatedsubscriptions"
PAGE: Final = 500
Age = tuple[str, str, str]
"""An object's creation time and, to break ties, its namespace and name."""
_DURATION: Final = re.compile(r"([0-9]{1,9}(ms|s|m|h|d))+")
_MILLIS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def max_lags(cluster: Cluster, namespaces: Sequence[str] = ()) -> dict[Key, int]:
    """Milliseconds by topic and subscription. If several objects name the same subscription, the oldest wins.

    :param namespaces: where to read objects; empty: all namespaces.
    :raises ClusterError: no answer, a refusal, or an invalid object.
    """
    paths = [f"{GROUP}/namespaces/{namespace}/{KIND}" for namespace in namespaces] or [f"{GROUP}/{KIND}"]
    found: dict[Key, tuple[Age, int]] = {}
    for path in paths:
        _read(cluster, path, found)
    return {key: lag for key, (_, lag) in found.items()}


def _read(cluster: Cluster, path: str, found: dict[Key, tuple[Age, int]]) -> None:
    """Add the objects of one list, which comes in pages."""
    following = ""
    while True:
        page = cluster.get(f"{path}?limit={PAGE}&continue={quote(following)}")
        if page is None:
            return  # the cluster does not have this kind
        try:
            for one in page["items"]:
                meta, spec = one["metadata"], one["spec"]
                age = str(meta["creationTimestamp"]), str(meta["namespace"]), str(meta["name"])
                key = str(spec["topic"]), str(spec["subscription"])
                if "maxLag" in spec and (key not in found or age < found[key][0]):
                    found[key] = age, milliseconds(spec["maxLag"])
            following = page["metadata"].get("continue") or ""
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ClusterError(f"GET {path}: an object is not valid: {error!r}") from error
        if not following:
            return


def milliseconds(text: str) -> int:
    """Milliseconds in a duration such as ``1m30s``. :raises ValueError: it is not a duration."""
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration such as 30s")
    return sum(int(number) * _MILLIS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h|d)", text))
