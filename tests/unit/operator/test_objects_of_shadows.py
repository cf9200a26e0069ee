# SPDX-License-Identifier: Apache-2.0
"""ShadowTopics whose source cannot be read, is renamed or has other partitions: what the status and Events say, and
what a deletion leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.reporting import Answer
from meridian_operator.handlers.subject import Views
from meridian_operator.plan.changes import DeleteTopic, FollowPartitions
from meridian_operator.plan.observed import RegionSeen, ShadowSeen, TopicName, TopicSeen
from support.kubernetes.field_effects import OTHER_TOPIC, SUBJECTS, TIME, TOPIC, Witnessed

VIEW = f"{TOPIC}-view"
SPEC = {"source": TOPIC, "region": "ap", "topic": VIEW, "deletionPolicy": "Delete"}
BY_NAME = SPEC | {"source": "orders"}
STATUS = {
    "established": ["ap"],
    "state": "Reading",
    "source": TOPIC,
    "connected": True,
    "lagEntries": 50,
    "gapEntries": 3,
    "autoResets": 1,
}


def shadow(partitions: int = 0, **fields: Any) -> TopicSeen:
    """The shadow in its region."""
    given: dict[str, Any] = {"source": TOPIC, "connected": True, "holds": True, "backlog": 50, "gap": 3, "resets": 1}
    return TopicSeen(partitions, shadow=ShadowSeen(**given | fields))


@dataclass
class SourceBusy(Witnessed):
    """The region answers, but cannot open the source now."""

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        if str(topic) == TOPIC:
            return [RegionSeen(name, "", problem="its disk is full", reason="TopicUnavailable") for name in names]
        return await Witnessed.see(self, names, topic, subscription)


def looked(world: Witnessed, spec: dict[str, Any], *, geo: str = "", deleted: bool = False, **more: Any) -> Answer:
    """One look.

    :param geo: the topic of the GeoTopic ``orders``; empty: there is none.
    """
    meta = {"name": "view", "namespace": "y", "uid": "view", "generation": 1, "creationTimestamp": TIME}
    meta |= {"finalizers": [FINALIZER], "annotations": more.pop("annotations", {})}
    meta |= {"deletionTimestamp": TIME} if deleted else {}
    views = Views({}, {}, {}, {}, geo_topic_names={("y", "orders"): [geo]} if geo else {})
    body = {"metadata": meta, "spec": spec, **more}
    return asyncio.run(look(SUBJECTS["ShadowTopic"], body, views, world))  # type: ignore[arg-type]


def condition(answer: Answer, kind: str = "Ready") -> tuple[str, str, str]:
    (found,) = (one for one in answer.status["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def told(answer: Answer) -> list[str]:
    return [one.reason for one in answer.events]


def test_an_object_whose_source_is_no_topic_name_can_be_deleted() -> None:
    spec = SPEC | {"source": "shop/orders"}
    assert condition(looked(Witnessed(), spec))[1] == "InvalidSpec"
    world = Witnessed(topic=shadow())
    gone = looked(world, spec, deleted=True)
    assert (world.made, gone.finalizers, told(gone)) == ([], (), ["NothingDeleted"])


def test_a_source_that_cannot_be_read_now_is_not_called_missing() -> None:
    answer = looked(SourceBusy(), SPEC)
    assert condition(answer)[:2] == ("False", "TopicUnavailable")
    assert "its disk is full" in condition(answer)[2] and TOPIC in condition(answer)[2]
    world = SourceBusy(topic=shadow())
    assert condition(looked(world, SPEC, status=STATUS))[1] == "AsSpecified", "the shadow needs no such look"
    looked(world, SPEC, status=STATUS, deleted=True)
    assert world.made == [DeleteTopic("ap", TopicName.parse(VIEW), partitioned=False)] * len(world.made) != []


def test_a_deletion_that_leaves_a_topic_of_that_name_says_so() -> None:
    for there, what in ((TopicSeen(0), "is not a shadow"), (shadow(source=OTHER_TOPIC), f"a shadow of {OTHER_TOPIC}")):
        world = Witnessed(topic=there)
        gone = looked(world, SPEC, deleted=True)
        assert (world.made, gone.finalizers) == ([], ())
        (event,) = gone.events
        assert (event.reason, event.warning) == ("NothingDeleted", True)
        assert what in event.message and "left unchanged" in event.message
    (event,) = looked(Witnessed(), SPEC, deleted=True).events
    assert event.reason == "Deleted"


def test_the_source_s_geo_topic_is_made_again_with_another_topic() -> None:
    """The status names what the shadow reads, so that the deletion finds it."""
    world = Witnessed(topic=shadow())
    answer = looked(world, BY_NAME, geo=OTHER_TOPIC, status=STATUS)
    assert condition(answer)[1] == "TopicExists"
    assert "source" not in answer.status, "it still reads the same"
    gone = looked(world, BY_NAME, geo=OTHER_TOPIC, status=STATUS, deleted=True)
    assert {type(one) for one in world.made} == {DeleteTopic}
    assert "NothingDeleted" not in told(gone)


def test_a_region_that_is_away_leaves_what_was_last_seen_there() -> None:
    answer = looked(Witnessed(away=frozenset({"ap"})), SPEC, status=STATUS)
    assert condition(answer, "Synced")[:2] == ("Unknown", "RegionUnreachable")
    assert answer.status["state"] == "RegionUnreachable"
    assert {"lagEntries", "gapEntries", "autoResets", "connected", "source"}.isdisjoint(answer.status)


def test_a_status_in_which_only_numbers_changed_can_wait() -> None:
    settled = looked(Witnessed(topic=shadow()), SPEC, status=STATUS)
    before = STATUS | dict(settled.status)
    moved = looked(Witnessed(topic=shadow(backlog=70, gap=4, resets=2)), SPEC, status=before)
    assert set(moved.status) == {"lagEntries", "gapEntries", "autoResets"}
    assert not moved.pressing


@pytest.mark.parametrize("has", [2, 3])
def test_a_shadow_that_could_not_follow_its_source_is_made_to(has: int) -> None:
    """In a region of several brokers, the request that adds partitions is refused then, and has to be repeated, but not
    while the source grows."""
    world = Witnessed(topics={VIEW: shadow(has), TOPIC: TopicSeen(4)})
    answer = looked(world, SPEC, status=STATUS)
    assert (world.made, condition(answer)[:2]) == ([], ("False", "Progressing"))
    assert "may be growing" in condition(answer)[2]
    status = {**STATUS, **answer.status}
    answer = looked(world, SPEC, status=status)
    assert told(answer) == ["Changed"]
    again = looked(world, SPEC, status={**status, **answer.status})
    assert told(again) == [], "it is not told at each look"
    world.made.pop()
    assert world.made == [FollowPartitions("ap", TopicName.parse(VIEW), TOPIC, 4)]
    assert condition(answer)[:2] == ("False", "Progressing"), "the region has not followed yet"
    assert "4 partitions" in condition(answer)[2]
    assert condition(answer, "Drifted")[0] == "False", "nobody changed it"


@pytest.mark.parametrize(("has", "source"), [(4, 2), (4, 0), (0, 2)])
def test_a_source_made_again_with_other_partitions_is_a_problem(has: int, source: int) -> None:
    world = Witnessed(topics={VIEW: shadow(has, connected=False), TOPIC: TopicSeen(source)})
    answer = looked(world, SPEC, status=STATUS)
    assert world.made == []
    status, reason, message = condition(answer)
    assert (status, reason) == ("False", "PartitioningDiffers")
    assert VIEW in message and TOPIC in message and "delete" in message
    assert condition(answer, "Synced")[:2] == ("False", "PartitioningDiffers")


def test_a_shadow_waits_for_its_geo_topic_without_a_warning() -> None:
    """One file may create both."""
    answer = looked(Witnessed(), BY_NAME)
    assert (condition(answer)[1], told(answer)) == ("WaitingForSource", [])
    waiting = {"source": TOPIC, "state": "NotThere"}  # seen while the source's topic was awaited
    assert condition(looked(Witnessed(), BY_NAME, status=waiting))[1] == "WaitingForSource"


def test_a_shadow_reads_on_when_its_geo_topic_is_gone() -> None:
    """It leaves its topic by default."""
    world = Witnessed(topics={VIEW: shadow(), TOPIC: TopicSeen(0)})
    answer = looked(world, BY_NAME, status=STATUS)
    assert world.made == []
    assert condition(answer)[:2] == ("True", "AsSpecified")
    assert condition(answer, "Synced")[:2] == ("True", "Reading")
    assert {**STATUS, **answer.status}["source"] == TOPIC


@dataclass
class MadeAgain(Witnessed):
    """As soon as the shadow is deleted, a client's producer creates an ordinary topic of that name."""

    async def apply(self, changes: Sequence[Any]) -> Any:
        failures = await Witnessed.apply(self, changes)
        self.topics = {**self.topics, VIEW: TopicSeen(0)}
        return failures


def test_a_topic_made_at_the_moment_of_the_deletion_does_not_hide_it() -> None:
    world = MadeAgain(topics={VIEW: shadow(), TOPIC: TopicSeen(0)})
    answer = looked(world, SPEC, status=STATUS, deleted=True)
    assert told(answer) == ["Deleted"]
