# SPDX-License-Identifier: Apache-2.0
"""From facts and findings to verdicts: what is misaligned, what is only unknown, and the exit code."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from meridian_verifier.align.containment import compared
from meridian_verifier.align.facts import Link
from meridian_verifier.align.findings import Flow, Reason
from meridian_verifier.align.verdicts import PairVerdict, State, judge, rewound
from support.verifier.verdict_worlds import CURSOR, A, B, finding, topic, world
from support.verifier.verifier_worlds import TOPIC


def pair(verdict: Any, source: str, target: str, subscription: str = "billing") -> PairVerdict:
    (found,) = [
        one for one in verdict.pairs if (one.subscription, one.source, one.target) == (subscription, source, target)
    ]
    assert isinstance(found, PairVerdict)
    return found


def test_nothing_wrong_is_aligned() -> None:
    verdict = judge(world(), [], [], [])
    assert (verdict.state, verdict.exit_code) == (State.ALIGNED, 0)
    assert len(verdict.pairs) == 4
    assert all(one.state is State.ALIGNED for one in verdict.pairs)
    assert verdict.summary == "1 subscription over 2 region pairs, nothing lost, nothing missing"


def test_a_finding_makes_its_pair_misaligned_and_no_other() -> None:
    verdict = judge(world(), [finding(Reason.MISSING_ACK, A, B)], [], [])
    assert (verdict.state, verdict.exit_code) == (State.MISALIGNED, 1)
    assert pair(verdict, A, B).reasons == (Reason.MISSING_ACK,)
    assert pair(verdict, B, A).state is State.ALIGNED


def test_a_loss_in_one_region_is_misaligned_though_every_pair_agrees() -> None:
    verdict = judge(world(), [finding(Reason.PASSED_UNACKED, A, A)], [], [])
    assert verdict.exit_code == 1
    assert verdict.losses


def test_a_region_that_does_not_answer_is_unknown() -> None:
    verdict = judge(world(unreachable={B: "us-west: connection refused"}), [], [], [])
    assert (verdict.state, verdict.exit_code) == (State.UNKNOWN, 2)
    assert pair(verdict, A, B).reasons == (Reason.UNREACHABLE,)
    assert pair(verdict, B, A).note == "us-west: connection refused"


def test_findings_based_on_a_broken_export_are_ignored() -> None:
    broken = dataclasses.replace(world(), unreachable={B: "us-west: table entries ended early"})
    found = [finding(Reason.MISSING_ACK, A, B), finding(Reason.OVERCLAIMED, A, A), finding(Reason.ENTRY_MISSING, A, B)]
    verdict = judge(broken, found, [], [])
    assert verdict.state is State.UNKNOWN
    assert verdict.findings == ()


def test_what_a_restored_region_received_is_no_longer_recorded() -> None:
    """R5: the others remember what it told them, and that is no overclaim."""
    found = [finding(Reason.OVERCLAIMED, A, A), finding(Reason.MISSING_ACK, A, B)]
    whole = Flow(TOPIC, A, A, 5, 5, 0, 0, ())
    assert len(judge(world(), found, [whole], []).findings) == 2
    restored = dataclasses.replace(whole, given_back=2)
    assert [one.reason for one in judge(world(), found, [restored], []).findings] == [Reason.MISSING_ACK]
    elsewhere = dataclasses.replace(restored, topic="public/default/other")
    assert len(judge(world(), found, [elsewhere], []).findings) == 2


def test_an_unnamed_region_of_the_topic_is_unknown() -> None:
    links = {B: Link(True, 0, 0), "eu-central": Link(True, 0, 0)}
    made = world({A: topic(B, links=links)}, {A: topic(B, links=links)})
    verdict = judge(made, [finding(Reason.OVERCLAIMED, A, A)], [], [])
    assert (verdict.state, verdict.exit_code, verdict.findings) == (State.UNKNOWN, 2, ())
    assert "eu-central" in verdict.summary
    assert all(pair.state is State.ALIGNED for pair in verdict.pairs)
    worse = judge(made, [finding(Reason.PASSED_UNACKED, A, A)], [], [])
    assert worse.state is State.MISALIGNED, "what one region proves is proven"


def test_one_region_of_several_alone_is_unknown_too() -> None:
    only = dataclasses.replace(world({B: None}, {B: None}), asked=(A,))
    verdict = judge(only, [], [], [])
    assert (verdict.state, [one.reasons for one in verdict.subjects]) == (State.UNKNOWN, [(Reason.NOT_ASKED,)] * 2)


def test_what_a_former_region_received_is_not_recorded_here() -> None:
    """It published once, so the others name it, but it is no longer a region of the topic."""
    former = topic(B, last_origins={A: (1, 5), "old": (3, 7)})
    verdict = judge(world({A: former}, {A: former}), [finding(Reason.OVERCLAIMED, A, A)], [], [])
    assert (verdict.state, verdict.findings) == (State.ALIGNED, ())
    assert all("Overclaimed was not judged: old" in one.notes[0] for one in verdict.subjects)


def test_two_incarnations_of_a_topic_are_not_compared() -> None:
    made = world(None, {B: topic(A, incarnation="2")})
    across = [Reason.ENTRY_MISSING, Reason.TRIMMED_UNACKED, Reason.OVERCLAIMED, Reason.CHECKSUM_DIFFERS]
    verdict = judge(made, [finding(reason, A, B) for reason in across], [], [])
    assert (verdict.state, verdict.findings) == (State.UNKNOWN, ())
    assert judge(made, [finding(Reason.PASSED_UNACKED, B, B)], [], []).state is State.MISALIGNED


def test_a_rewind_between_the_snapshots_is_no_overclaim() -> None:
    """What a region received before the rewind is not in what it received since."""
    after = topic(A, cursors={"billing": dataclasses.replace(CURSOR, epoch="2")})
    verdict = judge(world(None, {A: after, B: after}), [finding(Reason.OVERCLAIMED, A, A)], [], [])
    assert (verdict.state, verdict.findings) == (State.UNKNOWN, ())


@pytest.mark.parametrize(("before", "after", "expected"), [("", "2", Reason.REWOUND), ("2", "", Reason.EPOCH_BEHIND)])
def test_epochs(before: str, after: str, expected: Reason) -> None:
    first = topic(B, cursors={"billing": dataclasses.replace(CURSOR, epoch=before)})
    second = topic(A, cursors={"billing": dataclasses.replace(CURSOR, epoch=after)})
    made = world({A: first, B: first}, {A: first, B: second})
    verdict = judge(made, [], [], [])
    assert pair(verdict, A, B).reasons == (expected,)
    assert rewound(made)
    assert not rewound(world({A: first}, {A: first}))
    assert (A, B) not in compared(made, TOPIC, "billing")


def test_a_link_down_at_both_snapshots_is_misaligned_at_one_it_is_not() -> None:
    down = topic(B, link=False)
    assert pair(judge(world({A: down}, {A: down}), [], [], []), A, B).reasons == (Reason.LINK_DOWN,)
    assert judge(world({A: down}), [], [], []).state is State.ALIGNED
    assert judge(world(None, {A: down}), [], [], []).state is State.ALIGNED


def test_a_subscription_that_never_arrived_is_missing_and_one_on_its_way_is_not() -> None:
    none = topic(A, cursors={})
    assert pair(judge(world({B: none}, {B: none}), [], [], []), A, B).reasons == (Reason.SUBSCRIPTION_MISSING,)
    assert judge(world({B: none}), [], [], []).state is State.ALIGNED


def test_a_subscription_whose_state_one_region_does_not_replicate() -> None:
    local = topic(A, cursors={"billing": dataclasses.replace(CURSOR, replicated=False)})
    assert pair(judge(world({B: local}, {B: local}), [], [], []), A, B).reasons == (Reason.NOT_REPLICATED,)


def test_a_topic_that_never_arrived_is_missing() -> None:
    verdict = judge(world({B: None}, {B: None}), [], [], [])
    assert pair(verdict, A, B, "").reasons == (Reason.TOPIC_MISSING,)
    assert verdict.exit_code == 1


def test_a_topic_recreated_on_one_side_is_unknown() -> None:
    verdict = judge(world(None, {B: topic(A, incarnation="2")}), [], [], [])
    assert (verdict.state, pair(verdict, A, B).reasons) == (State.UNKNOWN, (Reason.INCARNATION,))


def test_without_any_topic_the_verdict_is_unknown() -> None:
    assert judge(world({A: None, B: None}, {A: None, B: None}), [], [], []).exit_code == 2
