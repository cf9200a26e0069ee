# SPDX-License-Identifier: Apache-2.0
"""Compacted views of trimmed logs, after brokers were killed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pulsar
from meridian_broker.engines.local.store import LocalLedgerStore
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import connect
from support.worlds.compaction_steps import (
    ADMIN,
    EARLIEST,
    SETTINGS,
    assert_quiet,
    compact,
    entries,
    internal,
    publish,
    read,
    receive,
    retain,
    rows,
    status,
)


def test_what_was_trimmed_from_the_log_stays_readable_and_survives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path, settings=SETTINGS) as broker:
        client = connect(broker.service_url)
        retain(broker, -1)
        publish(client, "t", [(f"k{number % 25}", b"%d" % number) for number in range(100)])
        compact(broker, "t")
        assert "__compaction" in broker.http("GET", f"{ADMIN}/t/subscriptions").json
        publish(client, "t", [("later", b"%d" % number) for number in range(25)])
        retain(broker, 0)
        wait_until(lambda: entries(broker, "t") < 50, "the log to be trimmed")
        expected = [(f"k{number % 25}", b"%d" % number) for number in range(75, 100)]
        expected += [("later", b"%d" % number) for number in range(25)]
        assert read(client, "t") == expected, "what the view does not cover is kept for the next one"
        broker.kill()
        broker.start()
        assert read(client, "t") == expected
        compact(broker, "t")
        assert read(client, "t") == [*expected[:25], expected[-1]]
        assert broker.http("DELETE", f"{ADMIN}/t/subscription/__compaction").status == 204
        wait_until(lambda: entries(broker, "t") <= 10, "compaction to hold no ledgers back any more")
        assert internal(broker, "t")["compactedLedger"]["ledgerId"] == -1
        assert broker.http("DELETE", f"{ADMIN}/t/subscription/__compaction").status == 404
        client.close()


def test_metadata_older_than_the_view_find_it_on_the_volume(tmp_path: Path) -> None:
    """R5: the log before the view was trimmed; the restored metadata names an older view, or none."""
    with BrokerProcess("one", tmp_path / "disk", settings=SETTINGS) as broker:
        client = connect(broker.service_url)
        retain(broker, 0)
        for topic in ("first", "second"):
            publish(client, topic, [(f"k{number % 5}", b"old %d" % number) for number in range(15)])
        compact(broker, "second")
        client.close()
        broker.kill()
        shutil.copytree(tmp_path / "disk", tmp_path / "copy")
        broker.start()
        client = connect(broker.service_url)
        expected = [(f"k{number % 5}", b"%d" % number) for number in range(45, 50)] + [("later", b"x")]
        for topic in ("first", "second"):
            publish(client, topic, [(f"k{number % 5}", b"%d" % number) for number in range(50)])
            compact(broker, topic)
            publish(client, topic, [("later", b"x")])
            wait_until(lambda topic=topic: entries(broker, topic) <= 11, "the log to be trimmed")
            assert read(client, topic) == expected
        client.close()
        broker.kill()
        for file in (tmp_path / "disk").glob("metadata.sqlite*"):
            file.unlink()
        for file in (tmp_path / "copy").glob("metadata.sqlite*"):
            shutil.copy(file, tmp_path / "disk")
        broker.start()
        client = connect(broker.service_url)
        for topic in ("first", "second"):
            assert read(client, topic) == expected
            compact(broker, topic)
            assert read(client, topic) == expected
        client.close()


def test_a_kill_in_the_midst_of_compaction_leaves_the_old_view_and_nothing_else(tmp_path: Path) -> None:
    settings = SETTINGS | {"compactionRateInMBPerSecond": "1", "managedLedgerMaxEntriesPerLedger": "1000"}
    with BrokerProcess("one", tmp_path, settings=settings) as broker:
        client = connect(broker.service_url)
        retain(broker, -1)
        publish(client, "t", [(f"k{number % 10}", b"first %d" % number) for number in range(100)])
        compact(broker, "t")
        expected = read(client, "t")
        assert len(expected) == 10
        publish(client, "t", [(f"k{number % 10}", b"second %d" % number) for number in range(1500)])
        assert broker.http("PUT", f"{ADMIN}/t/compaction").status == 204
        again = broker.http("PUT", f"{ADMIN}/t/compaction")
        assert again.status == 409, "the first compaction takes seconds at this rate"
        broker.kill()
        broker.start()
        assert status(broker, "t") == "NOT_RUN"
        assert read(client, "t")[:10] == expected
        compact(broker, "t")
        assert sorted(read(client, "t")) == sorted((f"k{n % 10}", b"second %d" % n) for n in range(1490, 1500))
        client.close()
        found = internal(broker, "t")
        broker.stop()
        known = {ledger["ledgerId"] for ledger in found["ledgers"]} | {found["compactedLedger"]["ledgerId"]}
        log = {ledger for ledger, entries in ledgers_on_disk(tmp_path).items() if entries >= 10}
        assert log == known, "the interrupted compaction left no ledger behind"


def ledgers_on_disk(directory: Path) -> dict[int, int]:
    """Ledger id -> number of entries."""

    async def look() -> dict[int, int]:
        store = await LocalLedgerStore.start(directory / "ledgers")
        try:
            return {info.ledger_id: info.entries for info in await store.list()}
        finally:
            await store.close()

    return asyncio.run(look())


def test_a_durable_subscription_reads_thinned_batches_and_what_only_the_view_has(tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path, settings=SETTINGS) as broker:
        client = connect(broker.service_url)
        retain(broker, -1)
        batched: dict[str, Any] = {
            "batching_enabled": True,
            "batching_max_messages": 4,
            "batching_max_publish_delay_ms": 60_000,
        }
        published = [(f"k{number % 10}", b"%d" % number) for number in range(120)]
        publish(client, "t", published, **batched)
        compact(broker, "t")
        publish(client, "t", [("later", b"later")] * 12)
        compact(broker, "t")
        retain(broker, 0)
        wait_until(lambda: entries(broker, "t") <= 12, "the log to be trimmed")
        expected = [*published[110:], ("later", b"later")]
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, is_read_compacted=True)
        messages = receive(consumer, 11)
        assert rows(messages) == expected
        consumer.acknowledge_cumulative(messages[5])
        consumer.close()
        consumer = client.subscribe("t", "s", is_read_compacted=True)
        messages = receive(consumer, 5)
        assert rows(messages) == expected[6:]
        consumer.acknowledge_cumulative(messages[-1])
        consumer.close()
        broker.kill()
        broker.start()
        consumer = client.subscribe("t", "s", is_read_compacted=True)
        assert_quiet(consumer)
        consumer.seek(pulsar.MessageId.earliest)
        assert rows(receive(consumer, 11)) == expected, "a seek can go back into the trimmed part"
        consumer.seek(messages[0].message_id())
        assert rows(receive(consumer, 4)) == expected[7:], "this client resumes after the message, inside its batch"
        client.close()
