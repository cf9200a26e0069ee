# SPDX-License-Identifier: Apache-2.0
"""ShadowTopics beside GeoTopics: an object that does not control a topic neither changes nor deletes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from meridian_operator.api.geo_topic import GeoTopicSpec
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.reporting import Answer
from meridian_operator.handlers.subject import Views
from meridian_operator.plan import geo_topic
from meridian_operator.plan.changes import CreateShadow, DeleteTopic, SetPolicy
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import Link, RegionSeen, ShadowSeen, TopicName, TopicSeen
from meridian_operator.plan.outcome import Plan
from support.kubernetes.field_effects import NAMES, SUBJECTS, TIME, TOPIC, Witnessed

VIEW = f"{TOPIC}-view"
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
GEO = {"topic": VIEW, "regions": list(NAMES), "deletionPolicy": "Delete"}
SHADOW = {"source": TOPIC, "region": "ap", "topic": VIEW, "deletionPolicy": "Delete"}
SEEN = TopicSeen(0, shadow=ShadowSeen(TOPIC, connected=True, holds=True, backlog=0, gap=0))


def views(*, geo: str = "", shadow: str = "", name: str = "shadow") -> Views:
    """What the watches have seen: the objects of these ages, if any, that name the same topic.

    :param name: the name of the ShadowTopic.
    """
    return Views(
        geo_topics={VIEW: [Contender(geo, "y", "geo", "GeoTopic", "geo")]} if geo else {},
        replicated_subscriptions={},
        topic_regions={},
        sync_policies={},
        shadow_topics={(VIEW, "ap"): [Contender(shadow, "y", name, "ShadowTopic", "shadow")]} if shadow else {},
    )


def looked(kind: str, created: str, seen: Views, world: Witnessed, **more: Any) -> Answer:
    """One reconciliation of an object; with ``deleted``, of its deletion."""
    uid = "geo" if kind == "GeoTopic" else "shadow"
    meta = {"name": uid, "namespace": "y", "uid": uid, "generation": 1, "creationTimestamp": created}
    meta |= {"finalizers": [FINALIZER]}
    if more.pop("deleted", False):
        meta |= {"deletionTimestamp": TIME}
    body = {"metadata": meta, "spec": GEO if kind == "GeoTopic" else SHADOW} | more
    return asyncio.run(look(SUBJECTS[kind], body, seen, world))  # type: ignore[arg-type]


def ready(answer: Answer) -> str:
    return next((one["reason"] for one in answer.status.get("conditions", ()) if one["type"] == "Ready"), "")


@pytest.mark.parametrize("name", ["shadow", "geo"], ids=["names that differ", "one name for both"])
def test_a_geo_topic_younger_than_a_shadow_of_its_name_has_no_effect(name: str) -> None:
    both = views(geo=LATER, shadow=EARLIER, name=name)
    world = Witnessed(topic=SEEN)
    answer = looked("GeoTopic", LATER, both, world)
    assert answer.finalizers == (), "its deletion deletes nothing"
    gone = looked("GeoTopic", LATER, both, world, deleted=True)
    assert (world.made, gone.finalizers, [one.reason for one in gone.events]) == ([], (), ["NothingDeleted"])
    assert ready(looked("ShadowTopic", EARLIER, both, Witnessed(topic=SEEN))) == "AsSpecified"


def test_a_shadow_in_another_region_does_not_affect_a_geo_topic() -> None:
    both = views(geo=LATER, shadow=EARLIER)
    elsewhere = replace(both, shadow_topics={(VIEW, "sa"): both.shadow_topics[VIEW, "ap"]})
    world = Witnessed()
    looked("GeoTopic", LATER, elsewhere, world)
    assert world.made


def test_a_geo_topic_neither_changes_nor_deletes_a_shadow() -> None:
    alone = views(geo=EARLIER)
    world = Witnessed(topic=SEEN)
    answer = looked("GeoTopic", EARLIER, alone, world)
    assert (ready(answer), world.made) == ("TopicExists", [])
    gone = looked("GeoTopic", EARLIER, alone, world, deleted=True)
    assert (world.made, gone.finalizers) == ([], ())


def test_if_one_region_has_a_shadow_of_that_name_only_the_others_delete_the_topic() -> None:
    links = tuple(Link(name, True, 0, 0) for name in NAMES)
    world = Witnessed(topic=TopicSeen(0, policies={"replication": list(NAMES)}, links=links))
    world.by_region["ap"] = SEEN
    looked("GeoTopic", EARLIER, views(geo=EARLIER), world, deleted=True)
    assert [(type(one), one.region) for one in world.made] == [
        (SetPolicy, "eu"),
        (SetPolicy, "us"),
        (DeleteTopic, "eu"),
    ]
    assert {tuple(one.value) for one in world.made if isinstance(one, SetPolicy)} == {("eu", "us")}


@pytest.mark.parametrize(
    ("recorded", "deleted"),
    [({"source": TOPIC}, True), ({"source": f"{TOPIC}-of-others"}, False), ({}, False)],
    ids=["its own", "somebody else's", "never looked at"],
)
def test_a_shadow_topic_deletes_what_it_created_even_without_its_sources_geo_topic(
    recorded: dict[str, str], deleted: bool
) -> None:
    """The GeoTopic named as the source was deleted first, so only the status says which topic it was."""
    world = Witnessed(topic=SEEN)
    spec = SHADOW | {"source": "orders"}
    looked("ShadowTopic", EARLIER, views(shadow=EARLIER), world, deleted=True, spec=spec, status=recorded)
    assert bool(world.made) is deleted


def looked_alone(world: Witnessed, status: dict[str, Any], **annotations: str) -> Answer:
    """One reconciliation of the ShadowTopic, by its annotations ``meridian.dev/...``."""
    meta = {"name": "shadow", "namespace": "y", "uid": "shadow", "generation": 1, "creationTimestamp": EARLIER}
    named = {f"meridian.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    body = {"metadata": meta | {"finalizers": [FINALIZER], "annotations": named}, "spec": SHADOW, "status": status}
    return asyncio.run(look(SUBJECTS["ShadowTopic"], body, views(shadow=EARLIER), world))  # type: ignore[arg-type]


def test_a_shadow_that_vanished_is_made_again_only_on_demand() -> None:
    """Its subscriptions would begin anew."""
    had, world = {"established": ["ap"]}, Witnessed(topics={TOPIC: TopicSeen(0)})
    assert (ready(looked_alone(world, had)), world.made) == ("Vanished", [])
    assert ready(looked_alone(world, had, recreate="1", dry_run="true")) == "DryRun"
    assert world.made == []
    looked_alone(world, had, recreate="1")
    assert world.made == [CreateShadow("ap", TopicName.parse(VIEW), TOPIC, holds=True, reset_behind=0)]


def test_a_shadow_whose_source_is_in_other_regions_says_how_to_get_it() -> None:
    world = Witnessed()
    answer = looked_alone(world, {})
    (told,) = [one for one in answer.status["conditions"] if one["type"] == "Ready"]
    assert told["reason"] == "SourceNotFound" and "add ap to the regions of its GeoTopic" in told["message"]
    assert world.made == []
    assert [(one.reason, one.warning) for one in answer.events] == [("SourceNotFound", True)]


def test_a_region_that_leaves_and_has_a_shadow_of_that_name_is_not_unlinked() -> None:
    """Nor does it count as holding a copy: where all copies are lost, the topic has vanished."""
    spec = GeoTopicSpec.model_validate(GEO | {"regions": ["eu", "us"]})
    history = History(established=frozenset(NAMES))
    whole = TopicSeen(0, policies={"replication": ["eu", "us"]})
    seen = [RegionSeen(name, "", known_regions=frozenset(NAMES), topic=whole) for name in ("eu", "us")]
    shadow = RegionSeen("ap", "", known_regions=frozenset(NAMES), topic=SEEN)
    assert geo_topic.plan(spec, [*seen, shadow], history) == Plan()
    assert geo_topic.established(spec, [*seen, shadow], history) == ["eu", "us"]
    assert geo_topic.left(spec, [*seen, shadow], history) == []
    lost = [replace(one, topic=None) for one in seen]
    wider = GeoTopicSpec.model_validate(GEO)
    planned = geo_topic.plan(wider, [*lost, shadow], history)
    assert planned.changes == ()
    assert {reason for _, reason, _ in planned.problems} == {"Vanished", "TopicExists"}
