# SPDX-License-Identifier: Apache-2.0
"""Writes the verdict's ConfigMaps to the pod's own namespace, and deletes those of the previous run.

The rights needed are to get, patch and delete these objects by name, and to create ConfigMaps: see the chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meridian_verifier.cluster import Cluster, ClusterError
from meridian_verifier.report.configmap import (
    GENERATIONS,
    SHARDS_MAX,
    Run,
    TooManyRows,
    head_name,
    manifests,
    next_generation,
    shard_name,
)


class NotPublished(Exception):
    """The verdict could not be written: the previous one stays in force. The message says why."""


def publish(cluster: Cluster, run: Run, told: Mapping[str, Any], listed: Sequence[dict[str, Any]]) -> list[str]:
    """Write the ConfigMaps: see ``configmap``. Returns which old ones could not be deleted: harmless clutter.

    :raises NotPublished: it does not fit, or the API server refuses.
    """
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    try:
        generation = next_generation(cluster.get(f"{path}/{head_name(run.name)}"))
        made = manifests(run, told, listed, generation)
        for manifest in made:
            cluster.apply(f"{path}/{manifest['metadata']['name']}", manifest)
    except (ClusterError, TooManyRows) as error:
        raise NotPublished(str(error)) from error
    return list(_clear(cluster, path, run.name, {generation: len(made) - 1}))


def _clear(cluster: Cluster, path: str, name: str, used: Mapping[str, int]) -> Iterator[str]:
    """Delete the shards that the head does not name.

    They are numbered without gaps, even if this is interrupted, because the last one is deleted first.
    """
    for generation in GENERATIONS:
        first = last = used.get(generation, 0)
        try:
            while last < SHARDS_MAX and cluster.get(f"{path}/{shard_name(name, generation, last + 1)}") is not None:
                last += 1
            for number in range(last, first, -1):
                cluster.delete(f"{path}/{shard_name(name, generation, number)}")
        except ClusterError as error:
            yield str(error)
