# SPDX-License-Identifier: Apache-2.0
"""For an origin without a chain, an Apache Pulsar region, nobody knows which entries a region should have (R62)."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from meridian_verifier.align.findings import Reason
from support.verifier.verifier_worlds import Simulation

few = settings(
    max_examples=settings().max_examples // 8, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@given(st.integers(0, 2**32), st.booleans())
@few
def test_nothing_is_missing_from_an_origin_that_reports_no_chain(seed: int, is_late: bool) -> None:
    """An Apache Pulsar region may have withheld it or given up sending it, or it may still come (R62)."""
    simulation = Simulation(seed, trim=False)
    region, source = simulation.rng.sample(list(simulation.regions.values()), 2)
    held = [copy for copy in region.log if copy.entry.origin == source.name and not copy.entry.marker]
    elsewhere = {copy.entry for other in simulation.regions.values() if other is not region for copy in other.log}
    held = [copy for copy in held if copy.entry in elsewhere]
    assume(held)
    simulation.unchained = frozenset({source.name})
    for copy in held[-1:] if is_late else held[: simulation.rng.randint(1, len(held))]:
        region.log.remove(copy)
    findings, flows = simulation.examined()
    assert not [one for one in findings if one.origin == source.name]
    assert sum(flow.missing for flow in flows if flow.origin == source.name) == 0
    simulation.unchained = frozenset()
    findings, _ = simulation.examined()
    assert {one.reason for one in findings} <= {Reason.ENTRY_MISSING}
