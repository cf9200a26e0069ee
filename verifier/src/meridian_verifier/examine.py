# SPDX-License-Identifier: Apache-2.0
"""The heavy part as one Spark job: entries and ranges are grouped by (topic, origin), and the pure rules judge each
group.

Every table is read once, packed (``source.packing``). One shuffle brings together what all regions report about one
origin's entries of one topic; the result is findings and drawings, small whatever the size of the input. Ranges and
entries never reach the driver.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from meridian_verifier.align.completeness import completeness
from meridian_verifier.align.containment import missing_acks
from meridian_verifier.align.evidence import Evidence
from meridian_verifier.align.facts import World
from meridian_verifier.align.findings import Finding, Flow, Reason, Strip
from meridian_verifier.align.gather import gather
from meridian_verifier.align.loss import losses
from meridian_verifier.align.pulsar import beside_pulsar
from meridian_verifier.align.rewinds import owed_elsewhere
from meridian_verifier.align.shadows import compared, lost_in_shadow
from meridian_verifier.align.strips import strips
from meridian_verifier.align.synced_metadata import Written, differences, within
from meridian_verifier.source.client import Taken
from meridian_verifier.source.datasource import MeridianDataSource
from meridian_verifier.source.packing import unpack
from meridian_verifier.source.regions import Region

STRIPS_PER_RUN: Final = 40
"""Maximum number of subscriptions drawn in one report."""
METADATA_GROUPS: Final = 16
"""Number of groups of metadata paths: each is judged by one task."""
_OUTCOME: Final = pa.schema([("kind", pa.string()), ("payload", pa.string())])


@dataclass(slots=True)
class Outcome:
    """The results of the rules."""

    findings: list[Finding] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Regions whose export failed while it was read, each with the reason."""


def examine(
    spark: SparkSession,
    regions: Sequence[Region],
    snapshots: Mapping[str, Sequence[Taken]],
    world: World,
    token_file: str | None = None,
) -> Outcome:
    """Run the job over S1 and S2 (the two snapshots of each region, in that order)."""
    spark.dataSource.register(MeridianDataSource)
    reachable = [region for region in regions if region.name not in world.unreachable]
    if not reachable:
        return Outcome()
    options = _options(reachable, snapshots, token_file)
    reader = spark.read.format(MeridianDataSource.name()).options(**options)
    packed = reader.options(table="entries@2,progress@1,ranges@2", packed="true").load()
    grouped = _everywhere(_for_shadows(spark, packed, world), _origins(world)).groupBy("topic", "origin_region")
    with warnings.catch_warnings():
        # Spark looks for pandas here, and warns about new versions of it, though only Arrow is used.
        warnings.simplefilter("ignore", FutureWarning)
        judged = grouped.applyInArrow(_judge_group(world, _drawn(world)), "kind string, payload string")
    return _outcome(judged.collect())


def examine_metadata(
    spark: SparkSession,
    regions: Sequence[Region],
    snapshots: Mapping[str, Sequence[Taken]],
    pairs: Mapping[tuple[str, str], Collection[str]],
    token_file: str | None = None,
) -> Outcome:
    """R63 for metadata over S1 and S2.

    :param pairs: source and target to compare -> the folders below which they sync metadata.
    """
    spark.dataSource.register(MeridianDataSource)
    named = {name for pair in pairs for name in pair}
    options = _options([region for region in regions if region.name in named], snapshots, token_file)
    reader = spark.read.format(MeridianDataSource.name()).options(**options)
    wanted = f.col("problem").isNotNull()
    for folder in sorted({folder for folders in pairs.values() for folder in folders}):
        wanted = wanted | f.col("path").startswith(folder + "/")
    rows = reader.options(table="metadata@1,metadata@2").load().where(wanted)
    grouped = rows.withColumn("bucket", f.pmod(f.hash("path"), f.lit(METADATA_GROUPS))).groupBy("bucket")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as above
        judged = grouped.applyInArrow(_judge_metadata(pairs), "kind string, payload string")
    return _outcome(judged.collect())


def _judge_metadata(pairs: Mapping[tuple[str, str], Collection[str]]) -> Callable[[pa.Table], pa.Table]:
    def judge_group(rows: pa.Table) -> pa.Table:
        told = list(_problems(rows))
        known: dict[tuple[str, int], dict[str, Written]] = {}
        for row in rows.to_pylist():
            if row["problem"] is None and row["shared"] is not False:
                stamp = row["stamp_ms"], row["stamp_counter"], row["stamp_region"]
                written = Written(row["generation"] or 0, *stamp, "" if row["deleted"] else row["digest"])
                known.setdefault((row["region"], row["taken"]), {})[row["path"]] = written
        for (source, target), folders in pairs.items():
            first, still, second = (known.get(key, {}) for key in ((source, 1), (source, 2), (target, 2)))
            found = differences(source, target, within(first, folders), still, second)
            told += [("finding", _json(one)) for one in found]
        return _table(told)

    return judge_group


def _options(
    regions: Sequence[Region], snapshots: Mapping[str, Sequence[Taken]], token_file: str | None
) -> dict[str, str]:
    """Options of the data source."""
    options = {
        "regions": ",".join(f"{region.name}={region.admin_url}" for region in regions),
        "snapshot": json.dumps(
            {
                region.name: [
                    {"snapshot": taken.snapshot, "partitions": dict(taken.partitions)}
                    for taken in snapshots[region.name]
                ]
                for region in regions
            }
        ),
    }
    return options | ({"token-file": token_file} if token_file else {})


def _for_shadows(spark: SparkSession, packed: DataFrame, world: World) -> DataFrame:
    """Makes entries of sources also rows of their shadows, which export none."""
    views: dict[tuple[str, str], list[str]] = {}
    for one in compared(world):
        if one.later.cursors:
            views.setdefault((one.region, one.later.shadow_of), []).append(one.name)
    if not views:
        return packed
    rows = [(region, source, [source, *names]) for (region, source), names in views.items()]
    known = spark.createDataFrame(rows, "region string, topic string, seen_as array<string>")
    joined = packed.join(f.broadcast(known), ["region", "topic"], "left")
    is_seen = (f.col("table") == "entries") & f.col("seen_as").isNotNull()
    topic = f.explode(f.when(is_seen, f.col("seen_as")).otherwise(f.array("topic"))).alias("topic")
    return joined.select("region", topic, "table", "payload", "problem", "origin_region")


def _everywhere(packed: DataFrame, origins: Sequence[str]) -> DataFrame:
    """Local ranges name no origin: they concern every origin's entries. Entries without an origin are left out (R2)."""
    local = f.col("origin_region").isNull() & (f.col("table") != "entries") & f.col("problem").isNull()
    every = f.array(*[f.lit(origin) for origin in origins])
    origin = f.explode(f.when(local, every).otherwise(f.array("origin_region"))).alias("origin_region")
    useful = (f.col("table") != "entries") | f.col("origin_region").isNotNull() | f.col("problem").isNotNull()
    return packed.where(f.coalesce(useful, f.lit(True))).select(
        "region", "topic", "table", "payload", "problem", origin
    )


def _origins(world: World) -> list[str]:
    """Every region whose entries may be in some log: those asked, and those that a region has on record."""
    named = set(world.asked)
    for state in world.later.values():
        for topic in state.topics.values():
            named |= set(topic.last_origins)
    return sorted(named)


def _drawn(world: World) -> dict[str, list[str]]:
    """The subscriptions that get a strip, per topic."""
    chosen: dict[str, list[str]] = {}
    every = [(topic, name) for topic in world.topics() for name in world.subscriptions(topic)]
    for topic, name in every[:STRIPS_PER_RUN]:
        chosen.setdefault(topic, []).append(name)
    return chosen


def _judge_group(
    world: World, drawn: Mapping[str, Collection[str]]
) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    def told(topic: str, origin: str, packed: pa.Table) -> Evidence:
        is_entries = pc.equal(packed["table"], "entries")
        entries = unpack(packed.filter(is_entries)["payload"], "entries")
        ranges = unpack(packed.filter(pc.invert(is_entries))["payload"], "ranges")
        # Only first-hand acks are evidence; those received from peers are not.
        heard = pc.and_(pc.equal(ranges["table"], "acks"), pc.invert(pc.fill_null(ranges["firsthand"], False)))
        return gather(topic, origin, world, entries, ranges.filter(pc.invert(heard)))

    def judge_group(key: tuple[pa.Scalar, ...], packed: pa.Table) -> pa.Table:
        topic, origin = key[0].as_py(), key[1].as_py()
        if topic is None:
            return _table(list(_problems(packed)))
        shadowed = [region for region, state in world.later.items() if topic in state.shadows]
        found = [
            one
            for region in shadowed
            for one in lost_in_shadow(told(topic, origin, packed.filter(pc.equal(packed["region"], region))), region)
        ]
        if shadowed:
            packed = packed.filter(pc.invert(pc.is_in(packed["region"], pa.array(shadowed))))
            if not packed.num_rows:
                return _table([("finding", _json(one)) for one in found])
        evidence = told(topic, origin, packed)
        findings, flows = completeness(evidence)
        findings += found
        findings += missing_acks(evidence)
        findings += losses(evidence)
        findings += owed_elsewhere(evidence)
        findings += beside_pulsar(evidence)
        rows = [("finding", _json(found)) for found in findings]
        rows += [("flow", _json(flow)) for flow in flows]
        rows += [("strip", _json(strip)) for strip in strips(evidence, drawn.get(topic, ()))]
        return _table(rows)

    return judge_group


def _problems(rows: pa.Table) -> Iterable[tuple[str, str]]:
    for region, problem in zip(rows["region"].to_pylist(), rows["problem"].to_pylist(), strict=True):
        if problem is not None:
            yield "problem", json.dumps([region, problem])


def _table(rows: Sequence[tuple[str, str]]) -> pa.Table:
    return pa.table([[kind for kind, _ in rows], [payload for _, payload in rows]], schema=_OUTCOME)


def _json(value: Finding | Flow | Strip) -> str:
    return json.dumps(asdict(value))


def _outcome(rows: Iterable[Any]) -> Outcome:
    outcome = Outcome()
    for kind, payload in rows:
        told = json.loads(payload)
        if kind == "problem":
            outcome.problems[told[0]] = told[1]
        elif kind == "finding":
            told["reason"] = Reason(told["reason"])
            told["stamps"] = tuple(told["stamps"])
            told["ranges"] = tuple(((a[0], a[1]), (b[0], b[1])) for a, b in told["ranges"])
            outcome.findings.append(Finding(**told))
        elif kind == "flow":
            outcome.flows.append(Flow(**told | {"quantiles_ms": tuple(told["quantiles_ms"])}))
        else:
            outcome.strips.append(Strip(**told | {name: tuple(told[name]) for name in ("acked", "dropped", "missing")}))
    return outcome
