# SPDX-License-Identifier: Apache-2.0
"""The verifier's rules on exports of live regions, without Spark: for tests of one topic, in a second or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from meridian_verifier.align.completeness import completeness
from meridian_verifier.align.containment import missing_acks
from meridian_verifier.align.facts import PulsarRegion, World
from meridian_verifier.align.findings import Finding, Flow
from meridian_verifier.align.gather import gather
from meridian_verifier.align.loss import losses
from meridian_verifier.align.pulsar import beside_pulsar
from meridian_verifier.align.rewinds import owed_elsewhere
from meridian_verifier.align.shadows import compared, differences, lost_in_shadow
from meridian_verifier.align.verdicts import Verdict, judge
from meridian_verifier.source.client import RegionClient
from meridian_verifier.source.pulsar import PulsarClient
from meridian_verifier.source.regions import PULSAR, Region
from meridian_verifier.source.snapshots import Moment, take_moment
from meridian_verifier.source.tables import TABLES, combined, conform


def live_findings(admin_urls: Mapping[str, str], topic: str) -> list[Finding]:
    """All findings on one topic in quiet regions: losses, missing acks, missing entries."""
    return list(live_verdict(admin_urls, topic).findings)


def live_verdict(
    admin_urls: Mapping[str, str], topic: str, *, shadows: str = "", pulsar_urls: Mapping[str, str] | None = None
) -> Verdict:
    """The verdict on one topic in quiet regions.

    :param shadows: a regular expression that matches the shadows of the topic to export.
    :param pulsar_urls: admin URLs of regions of Apache Pulsar.
    """
    clients = [RegionClient(Region(name, url)) for name, url in admin_urls.items()]
    pattern = f"re:{topic}|{shadows}" if shadows else topic
    strangers = [PulsarClient(Region(name, url, kind=PULSAR)) for name, url in (pulsar_urls or {}).items()]
    first, second = (take_moment(clients, pattern, strangers) for _ in range(2))
    assert not first.unreachable and not second.unreachable
    pulsar = {name: PulsarRegion(first.pulsar[name], second.pulsar[name]) for name in pulsar_urls or {}}
    world = World(tuple(admin_urls), first.states, second.states, {}, 0, pulsar)
    entries = _table(clients, second, "entries", TABLES["entries"], {})
    ranges = pa.concat_tables(
        [
            _table(clients, first, "progress", combined(["ranges"]), {"taken": 1, "table": "progress"}),
            _table(clients, second, "ranges", combined(["ranges"]), {"taken": 2}),
        ]
    )
    found: list[Finding] = []
    flows: list[Flow] = []
    for origin in sorted({*admin_urls, *entries["origin_region"].drop_null().to_pylist()}):
        own = ranges.filter(pc.equal(ranges["topic"], topic))
        evidence = gather(
            topic, origin, world, entries.filter(pc.equal(entries["origin_region"], origin)), of(own, origin)
        )
        missing, some = completeness(evidence)
        found += [*missing, *missing_acks(evidence), *losses(evidence), *owed_elsewhere(evidence)]
        found += beside_pulsar(evidence)
        flows += some
    return judge(world, [*found, *differences(world), *_lost_in_shadows(world, topic, entries, ranges)], flows, [])


def _lost_in_shadows(world: World, topic: str, entries: pa.Table, ranges: pa.Table) -> Iterator[Finding]:
    """Losses in the exported shadows of the topic."""
    for one in compared(world):
        if one.later.shadow_of == topic:
            own = ranges.filter(pc.equal(ranges["topic"], one.name))
            here = entries.filter(pc.equal(entries["region"], one.region))
            for origin in sorted(set(here["origin_region"].drop_null().to_pylist())):
                of_source = here.filter(pc.equal(here["origin_region"], origin))
                yield from lost_in_shadow(gather(one.name, origin, world, of_source, of(own, origin)), one.region)


def of(ranges: pa.Table, origin: str) -> pa.Table:
    """Ranges that concern this origin's entries."""
    local = pc.is_null(ranges["origin_region"])
    return ranges.filter(pc.or_kleene(pc.equal(ranges["origin_region"], origin), local))


def _table(
    clients: list[RegionClient], moment: Moment, table: str, schema: pa.Schema, constants: Mapping[str, object]
) -> pa.Table:
    batches = [
        conform(batch, schema, **constants)
        for client in clients
        for partition in range(moment.taken[client.region.name].partitions[table])
        for batch in client.rows(moment.taken[client.region.name].snapshot, table, partition)
    ]
    return pa.Table.from_batches(batches, schema)
