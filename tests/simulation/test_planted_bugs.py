# SPDX-License-Identifier: Apache-2.0
"""Every planted bug is found, and the finding is due to the bug: the same seed passes without it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from simulation.planted import (
    SEEDS,
    Bug,
    BugDoesNotApply,
    Replacement,
    all_bugs,
    hunt,
    plant,
    run_tests,
    tell_stories,
    with_bug,
)

ALL = all_bugs()
QUICK = ("claim-without-chain", "receipt-before-fsync", "union-replaced-by-overwrite")
"""Hunted in ``make test``; the others in ``make simulate``."""
BY_STORIES = (
    "a-deleted-topic-still-asks-what-to-keep",
    "a-deletion-counts-when-it-is-finished",
    "a-quarantine-is-forgotten-with-the-metadata",
    "a-quarantined-copy-is-trimmed",
    "a-returned-entry-revives-a-topic",
    "a-topic-at-rest-is-not-counted",
    "an-old-number-of-partitions-comes-back",
    "an-older-end-counts",
    "backfill-waits-for-a-wall-clock",
    "brokers-a-bundle-is-released-during-its-split",
    "chapters-go-before-the-record",
    "damaged-entry-passed-over",
    "divided-a-topic-that-comes-back-is-not-compared",
    "divided-dispatch-does-not-wait-for-owners",
    "entries-being-written-count-as-returned",
    "forgotten-view-stays-passed",
    "former-regions-are-not-asked-for",
    "half-a-creation-of-partitions",
    "half-a-deletion",
    "half-a-deletion-of-partitions",
    "ids-continue-from-the-copy",
    "incarnation-unknown-before-a-topic-is-open",
    "late-entries-dropped",
    "older-volume-is-swept",
    "owed-entries-passed-over",
    "planned-stop-forgets-acks",
    "quota-is-bypassed",
    "refusal-passes-the-barrier",
    "renewal-not-fenced",
    "report-outlives-a-rewind",
    "shadow-forgets-what-it-skips",
    "shadow-that-is-fastest-counts",
    "sharers-read-the-view",
    "snapshot-counts-a-repeated-answer",
    "snapshot-in-one-round",
    "snapshot-tells-pulsar-what-nobody-vouched-for",
    "stray-id-acknowledges",
    "sync-a-forgotten-deletion-knew-everything",
    "sync-a-future-event-is-dropped",
    "sync-a-minority-expels",
    "sync-a-parked-event-was-heard",
    "sync-a-region-that-was-away-expels",
    "sync-a-tombstone-goes-early",
    "sync-an-event-is-applied-twice",
    "sync-a-writer-knows-only-what-it-replaced",
    "sync-an-expelled-region-deleted-nothing",
    "sync-partitions-become-fewer",
    "sync-the-horizon-is-one-regions-word",
    "sync-what-an-expelled-region-wrote-is-lost",
    "trimmed-ledgers-are-left",
    "voters-change-at-once",
    "votes-before-its-topic-is-open",
)
"""A thousand seeds may miss these; stories written for them find them."""
BY_TESTS = {
    "a-damaged-creation-is-forgotten": "unit/topics/test_lost_records.py",
    "a-failed-join-is-not-answered": "integration/test_merges_from_regions.py",
    "a-failed-sync-is-believed-after-a-start": "integration/test_ledger_engine_crashes.py",
    "a-gap-that-grew-is-overwritten": "unit/topics/test_gaps.py",
    "a-ledger-is-recovered-without-fencing-a-quorum": "unit/ledgers/test_bookkeeper_promises.py",
    "a-lost-bookie-still-counts": "unit/ledgers/test_bookkeeper_adding.py",
    "a-lost-subscription-keeps-no-entries": "unit/topics/test_lost_records.py",
    "a-new-bookie-lacks-entries-in-flight": "unit/ledgers/test_bookkeeper_promises.py",
    "a-partition-without-its-topic": "integration/catalog/test_catalog_topics.py",
    "a-recreated-subscription-follows-no-region": "unit/topics/test_lost_records.py",
    "a-reported-deletion-is-forgotten": "integration/test_record_before_memory.py",
    "an-earlier-incarnation-counts": "unit/positions/test_progress.py",
    "an-unreadable-segment-is-tried-at-once": "integration/test_ledger_engine_faults.py",
    "bookies-confirm-before-the-ack-quorum": "unit/ledgers/test_bookkeeper_promises.py",
    "brokers-a-later-term-begins-while-topics-are-closed": "integration/test_ownership_sqlite.py",
    "brokers-a-lost-bundle-is-handed-over": "integration/test_ownership_sqlite.py",
    "brokers-a-part-arrives-while-the-whole-is-dropped": "integration/test_ownership_sqlite.py",
    "brokers-a-topic-of-an-earlier-term-is-served": "integration/test_ownership_topics.py",
    "brokers-acquired-while-it-is-released": "integration/test_ownership_sqlite.py",
    "close-without-look-ups": "unit/topics/test_closing.py",
    "copies-of-a-failed-move-stay": "integration/test_ledger_engine_faults.py",
    "damaged-entry-claimed": "unit/topics/test_damaged.py",
    "entries-claim-that-unconfirmed-ones-are-confirmed": "unit/ledgers/test_bookkeeper_promises.py",
    "lease-term-used-again": "unit/replication/test_lease_renewals.py",
    "ledgers-go-before-a-log-is-at-rest": "unit/topics/test_resting.py",
    "new-bookies-are-asked-what-they-never-got": "unit/ledgers/test_bookkeeper_recovering.py",
    "one-bookie-without-an-entry-ends-the-ledger": "unit/ledgers/test_bookkeeper_promises.py",
    "one-error-ends-periodic-work": "unit/server/test_periodic_work.py",
    "progress-ledger-on-record-too-early": "unit/topics/test_roll_over.py",
    "pulsar-message-claims-the-one-before": "unit/topics/test_pulsar_origins.py",
    "report-sent-before-its-record": "unit/topics/test_floors.py",
    "snapshot-without-a-meridian-region": "unit/replication/test_snapshot_world.py",
    "sync-a-mark-is-sent-before-it-is-stored": "unit/metadata/test_sync_recording.py",
    "sync-a-stamp-outside-the-transaction": "unit/metadata/test_sync_world.py",
    "sync-an-outbox-entry-is-deleted-blindly": "unit/metadata/test_sync_world.py",
    "sync-the-outbox-is-written-second": "integration/test_metadata_sync_stores.py",
    "topics-close-one-by-one": "integration/test_harm_nobody_else.py",
    "view-forgotten-in-memory-first": "integration/test_record_before_memory.py",
}
"""Neither seeds nor stories find these; unit tests do."""
BY_TESTS_AND_SEEDS = (
    "a-new-bookie-lacks-entries-in-flight",
    "bookies-confirm-before-the-ack-quorum",
    "entries-claim-that-unconfirmed-ones-are-confirmed",
)
"""Seeds of brokers on bookies find these as well."""


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_the_bug_applies(bug: Bug) -> None:
    for path, text in with_bug(bug).items():
        compile(text, path, "exec")


@pytest.mark.parametrize("file", sorted({*BY_TESTS.values()}))
def test_the_tests_that_find_bugs_are_there(file: str) -> None:
    assert (Path(__file__).parents[1] / file).is_file()


def test_a_bug_that_no_longer_applies_is_named() -> None:
    bug = Bug("gone", "", (Replacement("ledgers/log.py", "no such text", ""),))
    with pytest.raises(BugDoesNotApply, match="gone"):
        with_bug(bug)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    if bug.name not in QUICK and not os.environ.get("SIMULATE_BUGS"):
        pytest.skip("hunted by make simulate")
    plant(bug, tmp_path)
    if bug.name in BY_STORIES:
        told = tell_stories(tmp_path)
        assert told.returncode == 1 and "different: R" in told.stdout, told.stdout + told.stderr
        return
    if bug.name in BY_TESTS:
        tested = run_tests(tmp_path, BY_TESTS[bug.name])
        assert tested.returncode == 1 and "FAILED" in tested.stdout, tested.stdout + tested.stderr
        if bug.name not in BY_TESTS_AND_SEEDS:
            return
    is_of_bookies = bug.name in BY_TESTS_AND_SEEDS
    world = next((one for one in ("brokers", "divided") if bug.name.startswith(f"{one}-") or is_of_bookies), "regions")
    found = hunt(tmp_path, SEEDS, "--as-found", "--world", world)
    assert found.returncode == 1, f"{SEEDS} seeds do not find it: {bug.about}\n{found.stdout}{found.stderr}"
    seed = re.search(r"^seed (\d+): (.*)$", found.stdout, re.MULTILINE)
    assert seed is not None, found.stderr
    print(f"{bug.name}: seed {seed[1]}: {seed[2]}")
