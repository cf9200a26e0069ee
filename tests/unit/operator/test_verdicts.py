# SPDX-License-Identifier: Apache-2.0
"""From the verifiers' ConfigMaps to the condition Aligned: the newest complete run counts, by its worst row."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from meridian_operator.api.fields import GROUP
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.subject import Views
from meridian_operator.plan.observed import RegionSeen
from meridian_operator.plan.outcome import Finding
from meridian_operator.plan.verdicts import LABEL, Verdicts, aligned

TOPIC = "persistent://public/default/orders"
VERIFIERS = ("default", "early", "late", "good", "broken")
NEW_YEAR = "2026-01-01T00:00:00Z"
NEXT_DAY = "2026-01-02T00:00:00Z"


class Indexed:
    """The verifiers' ConfigMaps as they arrive."""

    def __init__(self) -> None:
        self.verdicts = Verdicts(VERIFIERS)

    def see(self, part: str, document: Any, verifier: str = "default", metadata: dict[str, Any] | None = None) -> None:
        """A ConfigMap was created or changed: the head, or a shard such as ``a.1``."""
        name = f"meridian-verdict-{verifier}" + ("" if part == "head" else f".{part}")
        data = {"verdict.json": document if isinstance(document, str) else json.dumps(document)}
        named = {"name": name, "labels": {LABEL: verifier}}
        self.verdicts.put({"metadata": named if metadata is None else metadata, "data": data})

    def forget(self, part: str, verifier: str = "default") -> None:
        """A ConfigMap was deleted."""
        self.verdicts.forget(f"meridian-verdict-{verifier}" + ("" if part == "head" else f".{part}"))

    def condition(self, subscription: str = "billing", now: str = NEXT_DAY) -> Finding:
        return aligned(self.verdicts.on(TOPIC, subscription, now), now, self.verdicts.problem)


def row(verdict: str, topic: str = TOPIC, subscription: str = "billing") -> dict[str, str]:
    return {"topic": topic, "subscription": subscription, "verdict": verdict, "detail": f"{verdict} here"}


def document(*rows: dict[str, str], run: str = "1", time: str = NEW_YEAR, **fields: Any) -> dict[str, Any]:
    return {"run": run, "time": time, "subscriptions": list(rows), **fields}


@pytest.fixture
def indexed() -> Indexed:
    return Indexed()


def test_the_newest_run_of_two_verifiers_counts(indexed: Indexed) -> None:
    assert indexed.condition().reason == "NotVerifiedYet"
    indexed.see("head", document(row("aligned"), run="2", time=NEXT_DAY), "late")
    indexed.see("head", document(row("misaligned")), "early")
    assert indexed.condition().status == "True"
    assert indexed.condition("other").reason == "NotVerifiedYet"
    indexed.see("head", document(run="3", time=NEXT_DAY), "late")
    assert indexed.condition().status == "False", "the newer run no longer mentions it"


@pytest.mark.parametrize("broken", ["broken", "[]", "3", "{}", '{"subscriptions": [3]}', '{"subscriptions": {"a": 1}}'])
def test_an_unreadable_document_is_ignored(indexed: Indexed, broken: str) -> None:
    indexed.see("head", document(row("aligned")), "good")
    indexed.see("head", broken, "broken")
    assert indexed.condition().status == "True"


def test_a_config_map_without_a_document_is_ignored(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned")))
    indexed.verdicts.put({"metadata": {"name": "meridian-verdict-default", "labels": {LABEL: "default"}}})
    assert indexed.condition().reason == "NotVerifiedYet"


@pytest.mark.parametrize(
    "wrong",
    [
        {"time": ""},
        {"time": "yesterday"},
        {"time": "2026-13-01T00:00:00Z"},
        {"time": "9999-12-31T23:59:59Z"},
        {"expires": "never"},
        {"run": "x" * 129},
        {"subscriptions": [row("aligned") | {"topic": "t" * 2101}]},
        {"subscriptions": [row("aligned") | {"detail": None}]},
        {"shard": "one"},
    ],
)
def test_a_document_with_values_of_other_types_is_ignored(indexed: Indexed, wrong: dict[str, Any]) -> None:
    indexed.see("head", document(row("aligned")) | wrong)
    assert indexed.condition().reason == "NotVerifiedYet"


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "a-name"},
        {"name": "meridian-verdict-default.c.1"},
        {"name": "meridian-verdict-default.a.0"},
        {"name": "meridian-verdict-default.a.129"},
        {"name": "meridian-verdict-late"},
        {"labels": {LABEL: "late"}},
        {"labels": {}},
        {"name": "meridian-verdict-unlisted", "labels": {LABEL: "unlisted"}},
    ],
)
def test_only_config_maps_reserved_for_a_listed_verifier_count(indexed: Indexed, metadata: dict[str, Any]) -> None:
    named = {"name": "meridian-verdict-default", "labels": {LABEL: "default"}}
    indexed.see("head", document(row("aligned"), time=NEW_YEAR), "good")
    indexed.see("head", document(row("misaligned"), time=NEXT_DAY), metadata=named | metadata)
    assert indexed.condition().status == "True"
    indexed.see("head", document(row("misaligned"), time=NEXT_DAY), metadata=named)
    assert indexed.condition().status == "False", "a valid one must count, or the above proves nothing"


def test_a_verdict_from_the_future_does_not_outlast_later_runs(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned")), "good")
    indexed.see("head", document(row("misaligned"), time="2026-01-02T00:05:01Z"), "late")
    assert indexed.condition().status == "True"
    assert indexed.condition(now="2026-01-02T00:00:01Z").status == "False", "clocks may differ by minutes"


def test_listing_again_forgets_what_was_deleted_meanwhile(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned")), "good")
    indexed.see("head", document(row("misaligned"), time=NEXT_DAY), "late")
    indexed.verdicts.keep(["meridian-verdict-good"])
    assert indexed.condition().status == "True"
    indexed.verdicts.keep([])
    assert indexed.condition().reason == "NotVerifiedYet"


def test_unreadable_verdicts_are_reported_and_known_ones_count_until_they_expire(indexed: Indexed) -> None:
    indexed.verdicts.problem = "HTTP 403"
    told = indexed.condition()
    assert (told.status, told.reason) == ("Unknown", "VerdictsUnreadable") and "HTTP 403" in told.message
    indexed.see("head", document(row("aligned"), expires=NEXT_DAY))
    assert indexed.condition().status == "True"
    assert indexed.condition(now="2026-01-02T00:00:01Z").reason == "VerdictExpired"


def test_the_worst_partition_counts(indexed: Indexed) -> None:
    partitions = [
        row(verdict, f"{TOPIC}-partition-{number}")
        for number, verdict in enumerate(("aligned", "misaligned", "unknown"))
    ]
    indexed.see("head", document(*partitions))
    told = indexed.condition()
    assert (told.status, told.reason) == ("False", "Misaligned")


def test_an_unknown_verdict_is_not_good_news(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned"), row("excellent", f"{TOPIC}-partition-1")))
    assert indexed.condition().status == "Unknown"


def test_a_problem_of_the_topic_applies_to_a_subscription_without_a_row(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned", subscription="")))
    assert indexed.condition().reason == "NotVerifiedYet", "a sound topic says nothing about a subscription"
    assert indexed.condition("").status == "True"
    indexed.see("head", document(row("misaligned", subscription="")))
    assert indexed.condition().status == "False"


def test_rows_count_while_the_head_names_their_run(indexed: Indexed) -> None:
    """Shards of the previous run, of one being written, and of one never finished do not count."""
    indexed.see("a.1", document(row("aligned"), run="1", shard=1))
    assert indexed.condition().reason == "NotVerifiedYet", "no head yet"
    indexed.see("head", document(run="1", shards=1))
    assert indexed.condition().status == "True"
    indexed.see("b.1", document(row("misaligned"), run="2", time=NEXT_DAY, shard=1))
    assert indexed.condition().status == "True"
    indexed.see("head", document(run="2", time=NEXT_DAY, shards=1))
    assert indexed.condition().status == "False"
    indexed.see("b.1", document(row("misaligned"), run="4", shard=1))
    assert indexed.condition().reason == "NotVerifiedYet", "the shards of the current run are gone"
    indexed.forget("head")
    assert indexed.condition().reason == "NotVerifiedYet"


def test_an_aligned_verdict_expires_a_misaligned_one_does_not(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned"), row("misaligned", subscription="lost"), expires=NEXT_DAY))
    assert indexed.condition(now=NEXT_DAY).status == "True"
    told = indexed.condition(now="2026-01-02T00:00:01Z")
    assert (told.status, told.reason) == ("Unknown", "VerdictExpired")
    assert NEW_YEAR in told.message
    assert indexed.condition("lost", now="2026-01-03T00:00:00Z").status == "False"


@pytest.mark.parametrize("annotation", ["paused", "dry-run"])
@pytest.mark.parametrize("leaving", [False, True])
def test_an_object_that_is_no_longer_reconciled_does_not_stay_aligned(
    indexed: Indexed, annotation: str, leaving: bool
) -> None:
    """Its other conditions stay, but this one states when it ends."""

    async def see(*_: Any) -> list[RegionSeen]:
        return []

    indexed.see("head", document(row("aligned", subscription=""), expires=NEW_YEAR))
    before = {"type": "Aligned", "status": "True", "reason": "Aligned", "message": "", "lastTransitionTime": NEW_YEAR}
    meta = {"name": "orders", "namespace": "shop", "uid": "1", "annotations": {f"{GROUP}/{annotation}": "true"}}
    if leaving:
        meta |= {"deletionTimestamp": NEW_YEAR, "finalizers": [FINALIZER]}
    spec = {"topic": TOPIC, "regions": ["a", "b"], "deletionPolicy": "Delete" if leaving else "Retain"}
    settings = Settings(tenants_by_namespace={"shop": ["public"]})
    world: Any = SimpleNamespace(
        now=lambda: NEXT_DAY, settings=settings, gone=frozenset(), verdicts=indexed.verdicts, see=see
    )
    body = {"metadata": meta, "spec": spec, "status": {"conditions": [before]}}
    answer = asyncio.run(look(GeoTopics(), body, Views({}, {}, {}, {}), world))
    told = {one["type"]: one["reason"] for one in answer.status["conditions"]}
    assert told["Aligned"] == "VerdictExpired" and told["Ready"] in ("Paused", "DryRun", "DeletionBlocked")


@pytest.mark.parametrize("fields", [{}, {"expires": "9999-01-01T00:00:00Z"}])
def test_no_aligned_verdict_counts_for_more_than_a_week(indexed: Indexed, fields: dict[str, str]) -> None:
    indexed.see("head", document(row("aligned"), **fields))
    assert indexed.condition(now="2026-01-08T00:00:00Z").status == "True"
    assert indexed.condition(now="2026-01-08T00:00:01Z").reason == "VerdictExpired"


def test_a_document_without_a_run_id_is_read_as_before(indexed: Indexed) -> None:
    """From a verifier of an earlier version: one ConfigMap, no run id, no end."""
    indexed.see("head", {"time": NEW_YEAR, "subscriptions": [row("aligned")]})
    assert indexed.condition().status == "True"


def test_the_label_is_ours() -> None:
    assert LABEL.startswith(f"{GROUP}/")
