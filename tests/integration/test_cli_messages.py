# SPDX-License-Identifier: Apache-2.0
"""``meridian produce`` and ``meridian consume`` as processes, against a real broker and beside the real client."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.cli.output import USAGE
from meridian_broker.cli.produce import key_hash
from support.brokers.broker_process import BrokerProcess
from support.brokers.forked_meridian import MERIDIAN, meridian, meridian_text
from support.brokers.free_ports import free_port
from support.brokers.region_clients import connect

PATIENCE = 60.0


def ended_of(broker: BrokerProcess, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return meridian(*arguments, "--url", broker.service_url, stdin=stdin, seconds=PATIENCE)


def done(broker: BrokerProcess, *arguments: str, stdin: bytes = b"") -> bytes:
    ended = ended_of(broker, *arguments, stdin=stdin)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


def started(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*MERIDIAN, *arguments, "--url", broker.service_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def next_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of its output, as soon as it arrives."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([process.stdout], [], [], PATIENCE)[0], "no output"
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, process.communicate()[1].decode()
        line += byte
    return line


def consumed(broker: BrokerProcess, topic: str, subscription: str, count: int, *more: str) -> list[dict[str, Any]]:
    output = done(broker, "consume", topic, "-s", subscription, "--count", str(count), "--json", *more)
    return [json.loads(line) for line in output.splitlines()]


def backlog(broker: BrokerProcess, topic: str, subscription: str) -> int:
    answer = broker.http("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
    return int(answer.json["subscriptions"][subscription]["msgBacklog"])


def test_texts_and_lines_come_out_as_they_went_in(broker: BrokerProcess) -> None:
    said = done(broker, "produce", "plain", "-m", "one espresso", "-m", "zwei Mokka für Ünal")
    assert said.startswith(b"stored 2 messages in persistent://public/default/plain, the last at ")
    told = json.loads(done(broker, "produce", "plain", "--json", stdin=b"from a pipe\r\n\nwithout an end"))
    assert (told["sent"], told["stored"]) == (3, 3)
    expected = "one espresso\nzwei Mokka für Ünal\nfrom a pipe\n\nwithout an end\n"
    assert done(broker, "consume", "plain", "-s", "s", "--count", "5").decode() == expected
    assert backlog(broker, "plain", "s") == 0


def test_a_regular_file_is_read_like_a_pipe(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
    with file.open("rb") as opened:
        command = [*MERIDIAN, "produce", "file", "--json", "--url", broker.service_url]
        told = json.loads(subprocess.run(command, stdin=opened, check=True, capture_output=True).stdout)
    assert told["stored"] == 20_000
    assert done(broker, "consume", "file", "-s", "s", "--count", "20000") == file.read_bytes()


def test_key_and_properties_travel(broker: BrokerProcess) -> None:
    done(broker, "produce", "marked", "-m", "x", "--key", "table 7", "--property", "a=1", "--property", "b=c=d")
    (message,) = consumed(broker, "marked", "s", 1)
    assert (message["key"], message["properties"], message["payload"]) == ("table 7", {"a": "1", "b": "c=d"}, "x")
    assert message["publishTime"] > 0
    assert message["redeliveryCount"] == 0


def test_count_repeats_texts_and_rate_paces_them(broker: BrokerProcess) -> None:
    done(broker, "produce", "counted", "-m", "a", "-m", "b", "--count", "5", "--rate", "1000")
    assert [message["payload"] for message in consumed(broker, "counted", "s", 5)] == list("ababa")
    process = started(broker, "produce", "slow", "-m", "x", "--count", "1000000", "--rate", "0.01")
    watching = started(broker, "consume", "slow", "-s", "s")
    assert next_line(watching) == b"x\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out.startswith(b"stored 1 message in"), err) == (
        1,
        True,
        b"Error: 1 of 1000000 messages sent, then the input ended\n",
    )
    watching.send_signal(signal.SIGTERM)
    watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0


def test_ctrl_c_ends_produce_after_what_was_typed(broker: BrokerProcess) -> None:
    watching = started(broker, "consume", "typed", "-s", "s")
    typing = started(broker, "produce", "typed")
    assert typing.stdin is not None
    typing.stdin.write(b"first\n")
    typing.stdin.flush()
    assert next_line(watching) == b"first\n"
    typing.send_signal(signal.SIGINT)
    out, err = typing.communicate(timeout=PATIENCE)
    assert (typing.returncode, err) == (0, b"")
    assert out.startswith(b"stored 1 message in ")
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, err) == (0, b"")
    assert backlog(broker, "typed", "s") == 0


def test_no_ack_only_looks(broker: BrokerProcess) -> None:
    done(broker, "produce", "looked", "-m", "a", "-m", "b")
    assert done(broker, "consume", "looked", "-s", "s", "--no-ack", "--count", "2") == b"a\nb\n"
    assert backlog(broker, "looked", "s") == 2
    assert done(broker, "consume", "looked", "-s", "s", "--timeout", "4") == b"a\nb\n"
    assert backlog(broker, "looked", "s") == 0


def test_latest_begins_with_the_next_message(broker: BrokerProcess) -> None:
    done(broker, "produce", "late", "-m", "old")
    ended = ended_of(broker, "consume", "late", "-s", "s", "--latest", "--timeout", "0.2")
    assert (ended.returncode, ended.stdout) == (0, b"")
    done(broker, "produce", "late", "-m", "new")
    assert done(broker, "consume", "late", "-s", "s", "--count", "1") == b"new\n"


def test_of_a_batch_only_what_was_printed_is_acknowledged(broker: BrokerProcess) -> None:
    client = connect(broker.service_url)
    producer = client.create_producer(
        "batched",
        batching_enabled=True,
        batching_max_messages=100,
        batching_max_publish_delay_ms=60_000,
        compression_type=pulsar.CompressionType.ZLib,
    )
    for number in range(100):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number}")
    producer.flush()
    client.close()
    first = consumed(broker, "batched", "s", 70)
    assert [message["payload"] for message in first] == [str(number) for number in range(70)]
    assert {message["id"].rsplit(":", 1)[0] for message in first} == {first[0]["id"].rsplit(":", 1)[0]}, (
        "these are of one batch"
    )
    rest = consumed(broker, "batched", "s", 30)
    assert [message["payload"] for message in rest] == [str(number) for number in range(70, 100)]
    assert rest[0]["key"] == "k70"
    assert backlog(broker, "batched", "s") == 0


def test_partitions_are_chosen_by_key_and_otherwise_in_turn(broker: BrokerProcess) -> None:
    broker.http("PUT", "/admin/v2/persistent/public/default/parts/partitions", 4)
    # Java's "...".hashCode(), known from its language specification: 96354 and 2112 (for both).
    for key, partition in (("abc", 96354 % 4), ("Aa", 2112 % 4), ("BB", 2112 % 4), ("", 0)):
        done(broker, "produce", "parts", "-m", "x", "--key", key, "--count", "2")
        found = {(message["key"], message["topic"][-1]) for message in consumed(broker, "parts", "s", 2)}
        assert found == {(key, str(partition))}
    assert json.loads(done(broker, "produce", "parts", "-m", "x", "--count", "8", "--json"))["stored"] == 8
    taken = consumed(broker, "parts", "s", 8, "--type", "failover")
    assert sorted(message["topic"][-1] for message in taken) == sorted("00112233")


def test_consumers_of_a_key_shared_subscription_get_every_message(broker: BrokerProcess) -> None:
    done(broker, "produce", "keyed", "--key", "a", "-m", "1", "-m", "2")
    taken = consumed(broker, "keyed", "s", 2, "--type", "key-shared")
    assert [message["payload"] for message in taken] == ["1", "2"]


@pytest.mark.parametrize("key", ["Ünal", "日本", "🛩 and more"])
def test_the_hash_of_a_key_is_javas(key: str) -> None:
    # The definition: s[0]*31^(n-1) + s[1]*31^(n-2) + ... + s[n-1] over UTF-16 units.
    units = memoryview(key.encode("utf-16-le")).cast("H").tolist()
    assert key_hash(key) == sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units)) % 2**32 % 2**31


def test_bytes_that_are_not_text_are_shown_as_base64(broker: BrokerProcess) -> None:
    done(broker, "produce", "bytes", stdin=b"\xff\xfe\n")
    assert done(broker, "consume", "bytes", "-s", "plain", "--count", "1") == b"\xff\xfe\n"
    (message,) = consumed(broker, "bytes", "json", 1)
    assert message["payloadBase64"] == "//4="


def test_a_message_that_cannot_be_read_is_reported_and_not_acknowledged(broker: BrokerProcess) -> None:
    client = connect(broker.service_url)
    client.create_producer("packed", compression_type=pulsar.CompressionType.LZ4).send(b"a" * 100)
    client.create_producer("packed").send(b"readable")
    client.close()
    ended = ended_of(broker, "consume", "packed", "-s", "s", "--count", "1")
    assert (ended.returncode, ended.stdout) == (2, b"readable\n")
    assert b"is compressed with LZ4" in ended.stderr
    assert backlog(broker, "packed", "s") == 1


def test_a_closed_pipe_consumes_only_what_was_printed(broker: BrokerProcess) -> None:
    done(broker, "produce", "head", "-m", "a")
    consuming = started(broker, "consume", "head", "-s", "s")
    assert next_line(consuming) == b"a\n"
    assert consuming.stdout is not None
    consuming.stdout.close()
    done(broker, "produce", "head", "-m", "b")
    assert consuming.wait(PATIENCE) == 0
    assert consuming.stderr is not None
    assert consuming.stderr.read() == b""
    assert consuming.stdin is not None
    consuming.stdin.close()
    consuming.stderr.close()
    assert done(broker, "consume", "head", "-s", "s", "--count", "1") == b"b\n"


def test_a_refusal_exits_with_no(broker: BrokerProcess) -> None:
    holder = started(broker, "consume", "held", "-s", "s", "--type", "exclusive")
    done(broker, "produce", "held", "-m", "x")
    assert next_line(holder) == b"x\n"
    ended = ended_of(broker, "consume", "held", "-s", "s", "--type", "exclusive")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(b"Error: ")
    holder.send_signal(signal.SIGINT)
    holder.communicate(timeout=PATIENCE)
    ended = ended_of(broker, "produce", "nobody/nowhere/topic", "-m", "x")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(b"Error: ")


def test_fewer_messages_than_asked_for_exits_with_no(broker: BrokerProcess) -> None:
    ended = ended_of(broker, "produce", "few", "--count", "3", stdin=b"a\nb\n")
    assert (ended.returncode, ended.stderr) == (1, b"Error: 2 of 3 messages sent, then the input ended\n")
    ended = ended_of(broker, "consume", "few", "-s", "s", "--count", "3", "--timeout", "3")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"a\nb\n", b"Error: 2 of 3 messages arrived\n")


def test_a_message_that_is_too_large_is_refused_here(broker: BrokerProcess) -> None:
    ended = ended_of(broker, "produce", "large", stdin=b"ok\n" + b"x" * (6 * 1024 * 1024))
    assert ended.returncode == 1
    assert b"message 2 has 6291456 bytes; the broker accepts 5242880 at most" in ended.stderr
    assert ended.stdout.startswith(b"stored 1 message ")


def test_a_dead_broker_leaves_the_outcome_unknown(broker: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess("short", tmp_path / "short") as mortal:
        typing = started(mortal, "produce", "t", "--rate", "0.01", "-m", "x", "--count", "5")
        watching = started(mortal, "consume", "t", "-s", "s")
        assert next_line(watching) == b"x\n"
        mortal.kill()
        for process in (typing, watching):
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 2
            assert err.startswith(b"Error: pulsar://127.0.0.1:")


@pytest.mark.parametrize("command", [["produce", "t", "-m", "x"], ["consume", "t", "-s", "s"]])
def test_an_unreachable_broker_is_answered_with_what_to_try(command: list[str]) -> None:
    env = os.environ | {"MERIDIAN_SERVICE_URL": f"pulsar://127.0.0.1:{free_port()}"}
    ended = meridian_text(*command, environment=env)
    assert ended.returncode == 2
    assert "Error: cannot connect to 127.0.0.1:" in ended.stderr
    assert "Is the region up? `meridian up` starts one" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["consume", "t"], "Missing option"),
        (["consume", "t", "-s", "s", "--url", "http://127.0.0.1:8080"], "is an admin address"),
        (["produce", "t", "--url", "127.0.0.1:6650"], "begins with pulsar://"),
        (["produce", "t", "--property", "novalue"], "write NAME=VALUE"),
        (["produce", "a/b", "-m", "x"], "is not a topic"),
    ],
)
def test_what_is_not_understood_is_explained(arguments: list[str], hint: str) -> None:
    ended = meridian_text(*arguments)
    assert ended.returncode == USAGE
    assert hint in " ".join(ended.stderr.split())
