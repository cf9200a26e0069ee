# SPDX-License-Identifier: Apache-2.0
"""From the verifiers' ConfigMaps to the condition Aligned: the newest whole run counts, and the worst of its rows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kopf._core.engines.indexing import OperatorIndexer
from meridian_operator.api.settings import Settings
from meridian_operator.api.shared import GROUP
from meridian_operator.handlers.subject import Views
from meridian_operator.handlers.world import VERDICT_LABEL, verdict_on, verdict_runs, verdicts
from meridian_operator.plan.outcome import Finding
from meridian_operator.plan.verdicts import aligned, rows_of, run_of

TOPIC = "persistent://public/default/orders"
MEMO = SimpleNamespace(settings=Settings(verdicts_namespace="meridian-system"))
NEW_YEAR = "2026-01-01T00:00:00Z"
NEXT_DAY = "2026-01-02T00:00:00Z"


class Indexed:
    """The operator's indices, kept by kopf's own code."""

    def __init__(self) -> None:
        self._indexers: dict[str, Any] = {"verdicts": OperatorIndexer(), "verdict_runs": OperatorIndexer()}

    def see(self, name: str, document: Any, verifier: str = "default") -> None:
        """A ConfigMap was made or changed."""
        data = {"verdict.json": document if isinstance(document, str) else json.dumps(document)}
        told = {
            "namespace": "meridian-system",
            "memo": MEMO,
            "labels": {VERDICT_LABEL: verifier},
            "body": {"data": data},
        }
        handlers: dict[str, Any] = {"verdicts": verdicts, "verdict_runs": verdict_runs}
        for index, handler in handlers.items():
            self._indexers[index].replace(("meridian-system", name, None), handler(**told))

    def forget(self, name: str) -> None:
        """A ConfigMap was deleted."""
        for indexer in self._indexers.values():
            indexer.discard(("meridian-system", name, None))

    def condition(self, subscription: str = "billing", now: str = NEW_YEAR) -> Finding:
        indices = {name: indexer.index for name, indexer in self._indexers.items()}
        views = Views({}, {}, {}, indices["verdicts"], indices["verdict_runs"])
        return aligned(verdict_on(views, TOPIC, subscription), now)


def row(verdict: str, topic: str = TOPIC, subscription: str = "billing") -> dict[str, str]:
    return {"topic": topic, "subscription": subscription, "verdict": verdict, "detail": f"{verdict} here"}


def document(*rows: dict[str, str], run: str = "1", time: str = NEW_YEAR, **fields: Any) -> dict[str, Any]:
    return {"run": run, "time": time, "subscriptions": list(rows), **fields}


@pytest.fixture
def indexed() -> Indexed:
    return Indexed()


def test_the_newest_run_of_two_verifiers_counts(indexed: Indexed) -> None:
    assert indexed.condition().reason == "NotVerifiedYet"
    indexed.see("late", document(row("aligned"), run="2", time=NEXT_DAY), "late")
    indexed.see("early", document(row("misaligned")), "early")
    assert indexed.condition().status == "True"
    assert indexed.condition("other").reason == "NotVerifiedYet"
    indexed.see("late", document(run="3", time=NEXT_DAY), "late")
    assert indexed.condition().status == "False", "the newer one no longer speaks of it"


@pytest.mark.parametrize("broken", ["broken", "[]", "3", "{}", '{"subscriptions": [3]}', '{"subscriptions": {"a": 1}}'])
def test_a_document_that_cannot_be_read_says_nothing(indexed: Indexed, broken: str) -> None:
    indexed.see("good", document(row("aligned")), "good")
    indexed.see("broken", broken, "broken")
    assert indexed.condition().status == "True"


def test_a_config_map_without_a_document_says_nothing() -> None:
    assert rows_of(("meridian-system", "default"), {}) == {}
    assert run_of({}) is None


def test_the_worst_partition_counts(indexed: Indexed) -> None:
    partitions = [
        row(verdict, f"{TOPIC}-partition-{number}")
        for number, verdict in enumerate(("aligned", "misaligned", "unknown"))
    ]
    indexed.see("head", document(*partitions))
    told = indexed.condition()
    assert (told.status, told.reason) == ("False", "Misaligned")


def test_a_word_that_is_not_known_is_not_good_news(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned"), row("excellent", f"{TOPIC}-partition-1")))
    assert indexed.condition().status == "Unknown"


def test_what_is_wrong_with_the_topic_is_wrong_with_a_subscription_that_no_row_names(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned", subscription="")))
    assert indexed.condition().reason == "NotVerifiedYet", "that the topic is well says nothing of a subscription"
    assert indexed.condition("").status == "True"
    indexed.see("head", document(row("misaligned", subscription="")))
    assert indexed.condition().status == "False"


def test_rows_count_while_the_head_names_their_run(indexed: Indexed) -> None:
    """Shards of the run before, of one that is being written, and of one that was never finished, say nothing."""
    indexed.see("shard.a.1", document(row("aligned"), run="1", shard=1))
    assert indexed.condition().reason == "NotVerifiedYet", "no head yet"
    indexed.see("head", document(run="1", shards=1))
    assert indexed.condition().status == "True"
    indexed.see("shard.b.1", document(row("misaligned"), run="2", time=NEXT_DAY, shard=1))
    assert indexed.condition().status == "True"
    indexed.see("head", document(run="2", time=NEXT_DAY, shards=1))
    assert indexed.condition().status == "False"
    indexed.see("shard.b.1", document(row("misaligned"), run="4", shard=1))
    assert indexed.condition().reason == "NotVerifiedYet", "the shards of the run in force are gone"
    indexed.forget("head")
    assert indexed.condition().reason == "NotVerifiedYet"


def test_an_aligned_verdict_expires_a_misaligned_one_does_not(indexed: Indexed) -> None:
    indexed.see("head", document(row("aligned"), row("misaligned", subscription="lost"), expires=NEXT_DAY))
    assert indexed.condition(now=NEXT_DAY).status == "True"
    told = indexed.condition(now="2026-01-02T00:00:01Z")
    assert (told.status, told.reason) == ("Unknown", "VerdictExpired")
    assert NEW_YEAR in told.message
    assert indexed.condition("lost", now="2026-01-03T00:00:00Z").status == "False"


def test_a_run_without_ids_is_read_as_before(indexed: Indexed) -> None:
    """A verifier of an earlier version: one ConfigMap, no run, no end."""
    indexed.see("head", {"time": NEW_YEAR, "subscriptions": [row("aligned")]})
    assert indexed.condition(now="2030-01-01T00:00:00Z").status == "True"


def test_the_label_is_ours() -> None:
    assert VERDICT_LABEL.startswith(f"{GROUP}/")
