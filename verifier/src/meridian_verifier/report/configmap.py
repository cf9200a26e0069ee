# SPDX-License-Identifier: Apache-2.0
"""The verdict as ConfigMaps, for the operator to read: one row per topic and per replicated subscription.

``meridian-verdict-NAME``, the *head*, has one document, ``verdict.json``. Rows that do not fit are stored in *shards*,
``meridian-verdict-NAME.GENERATION.NUMBER``, and the head says how many there are. All documents of a run carry its id,
and rows count only while the head names their run. The head is written last, and a run writes the generation that the
head does not name, so readers see all of the previous run, then all of this one. If space is short, the details of
rows are cut, never the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from meridian_verifier.align.verdicts import Verdict
from meridian_verifier.report.words import troubles

Json = dict[str, Any]
LABEL: Final = "meridian.dev/verdict"
DOCUMENT: Final = "verdict.json"
LARGEST: Final = 900_000
"""Maximum bytes of a document: a ConfigMap holds 1 MiB."""
DETAILED: Final = 32 << 20
"""Maximum characters of all rows, with their details."""
DETAIL_SIZES: Final = (4000, 1000, 200, 0)
"""Maximum characters of a row's detail: the largest that keeps all rows within ``DETAILED``."""
SHARDS_MAX: Final = 128
"""The chart's Role names this many shards of each generation."""
GENERATIONS: Final = ("a", "b")
NOTE: Final = 1000
"""Maximum characters of one sentence about the whole run."""


class TooManyRows(Exception):
    """The verdict does not fit into ``SHARDS_MAX`` ConfigMaps."""


@dataclass(frozen=True, slots=True)
class Run:
    """Common content of all documents of one run."""

    name: str
    """NAME of the verifier."""
    run: str
    """Unique id of the run."""
    now: datetime
    valid: timedelta
    """How long an aligned verdict is valid; after that it counts as unknown."""

    def head(self) -> Json:
        return {"run": self.run, "time": _time(self.now), "expires": _time(self.now + self.valid)}


def rows(verdict: Verdict) -> list[Json]:
    """One row per subject: the operator's input for the condition *Aligned*."""
    return [
        {
            "topic": one.topic,
            "subscription": one.subscription,
            "verdict": one.state.value,
            "detail": "; ".join(troubles(one)),
        }
        for one in verdict.subjects
    ]


def whole(verdict: Verdict) -> Json:
    """The head's content about the run as a whole."""
    return {
        "verdict": verdict.state.value,
        "summary": verdict.summary[:NOTE],
        "regions": list(verdict.world.named),
        "unreachable": {region: problem[:NOTE] for region, problem in verdict.world.unreachable.items()},
    }


def manifests(run: Run, told: Mapping[str, Any], listed: Sequence[Json], generation: str) -> list[Json]:
    """The ConfigMaps in the order in which to write them: the shards, if any, then the head.

    :param told: ``whole`` of the verdict. ``listed``: its ``rows``.
    :raises TooManyRows: they do not fit.
    """
    head = run.head() | dict(told)
    encoded = _encoded(listed)
    alone = _document(head | {"shards": 0, "generation": ""}, encoded)
    if len(alone) <= LARGEST:
        return [_config_map(run, head_name(run.name), alone)]
    packed = list(_packed(encoded, LARGEST - len(_document(run.head() | {"shard": SHARDS_MAX}, []))))
    if len(packed) > SHARDS_MAX:
        raise TooManyRows(
            f"{len(listed):,} topics and subscriptions take {len(packed)} ConfigMaps, and {SHARDS_MAX} are allowed: "
            "verify fewer topics in one run (--topics)"
        )
    shards = [
        _config_map(run, shard_name(run.name, generation, number), _document(run.head() | {"shard": number}, some))
        for number, some in enumerate(packed, 1)
    ]
    last = _document(head | {"shards": len(packed), "generation": generation}, [])
    return [*shards, _config_map(run, head_name(run.name), last)]


def next_generation(head: Mapping[str, Any] | None) -> str:
    """The generation of shards that is not in force. ``head``: the previous run's ConfigMap, or None."""
    try:
        used = json.loads((head or {})["data"][DOCUMENT])["generation"]
    except (KeyError, ValueError, TypeError):
        used = ""
    return GENERATIONS[1] if used == GENERATIONS[0] else GENERATIONS[0]


def head_name(name: str) -> str:
    return f"meridian-verdict-{name}"


def shard_name(name: str, generation: str, number: int) -> str:
    return f"{head_name(name)}.{generation}.{number}"


def _encoded(listed: Sequence[Json]) -> list[str]:
    """The rows as JSON, with roughly as much detail as there is room for."""
    named = sum(len(row["topic"]) + len(row["subscription"]) for row in listed)
    lengths = [len(row["detail"]) for row in listed]
    size = next((size for size in DETAIL_SIZES if named + sum(min(length, size) for length in lengths) <= DETAILED), 0)
    return [json.dumps(row | {"detail": _cut(row["detail"], size)}) for row in listed]


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(size - 3, 0)] + "..." if size else ""


def _packed(encoded: Sequence[str], room: int) -> Iterator[list[str]]:
    some: list[str] = []
    used = 0
    for row in encoded:
        if some and used + len(row) + 2 > room:
            yield some
            some, used = [], 0
        some.append(row)
        used += len(row) + 2
    if some:
        yield some


def _document(fields: Mapping[str, Any], encoded: Sequence[str]) -> str:
    """JSON in ASCII: characters are bytes."""
    return f'{json.dumps(fields)[:-1]}, "subscriptions": [{", ".join(encoded)}]}}'


def _config_map(run: Run, name: str, document: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {LABEL: run.name}},
        "data": {DOCUMENT: document},
    }


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
