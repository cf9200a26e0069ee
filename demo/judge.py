# SPDX-License-Identifier: Apache-2.0
"""Computes the demo's results from the clients' journals and from the regions' own records.

A message is one (origin entry, index in its batch). Clients know only the ids of the region they used; the
``entries`` export of each region maps them to the origin. Whether an acknowledgement had reached the region that
was killed is read from that region's own ack log, after it is back.
"""

from __future__ import annotations

import json
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.ipc
from worker import RECORD

RECEIVED_BEFORE_MS = 50
"""An ack counts as received by the dead region when its log has it at least this long before the kill."""

Message = tuple[str, int, int, int]
"""Origin region, ledger, entry, index in the batch."""


class Event(NamedTuple):
    """One record of a consumer's journal."""

    kind: str
    ledger: int
    entry: int
    place: int
    flight: int
    time_ms: int


def journal(path: Path) -> Iterator[Event]:
    """A worker's journal; a last record cut short is left out."""
    data = path.read_bytes()
    usable = len(data) - len(data) % RECORD.size
    for kind, *rest in RECORD.iter_unpack(data[:usable]):
        yield Event(kind.decode(), *rest)


class Export:
    """A region's exported state."""

    def __init__(self, admin_url: str, topic: str) -> None:
        self._base = f"{admin_url}/meridian/v1/export"
        body = json.dumps({"topics": topic}).encode()
        request = urllib.request.Request(self._base, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            self._snapshot: dict[str, Any] = json.load(answer)

    def rows(self, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """The table's rows, only these columns."""
        for partition in range(self._snapshot["partitions"][table]):
            url = f"{self._base}/{self._snapshot['snapshot']}/{table}?partition={partition}"
            with urllib.request.urlopen(url, timeout=120) as answer, pyarrow.ipc.open_stream(answer) as stream:
                for batch in stream:
                    yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def origins(export: Export) -> dict[tuple[int, int], tuple[str, int, int]]:
    """Local position -> origin, for each entry a region holds."""
    wanted = ("ledger", "entry", "origin_region", "origin_ledger", "origin_entry")
    return {(ledger, entry): (region, ol, oe) for ledger, entry, region, ol, oe in export.rows("entries", wanted)}


@dataclass
class AckLog:
    """Acks a region received, by time."""

    ranges: dict[tuple[str, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(origin region, ledger) -> (after, upto, received ms), sorted."""
    parts: dict[tuple[str, int, int], list[tuple[bytes, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, export: Export, subscription: str) -> AckLog:
        log = cls()
        columns = (
            "subscription", "origin_region", "after_ledger", "after_entry", "upto_ledger", "upto_entry",
            "batch_size", "acked_bits", "received_ms", "firsthand",
        )  # fmt: skip
        for name, region, after_ledger, after, ledger, upto, size, bits, received, own in export.rows("acks", columns):
            if name != subscription or received is None or not own:
                continue
            if size is not None:
                log.parts.setdefault((region, ledger, upto), []).append((bits, received))
            else:
                low = after if after_ledger == ledger else -1
                log.ranges.setdefault((region, ledger), []).append((low, upto, received))
        for ranges in log.ranges.values():
            ranges.sort()
        return log

    def received(self, message: Message, before_ms: int) -> bool:
        """Was this message's ack on record before that time?"""
        region, ledger, entry, index = message
        ranges = self.ranges.get((region, ledger), [])
        at = bisect_right(ranges, (entry, 0, 0))
        for low, upto, received in reversed(ranges[max(0, at - 64) : at]):
            if low < entry <= upto and received <= before_ms:
                return True
        return any(
            received <= before_ms and index >= 0 and bits[index // 8] >> index % 8 & 1
            for bits, received in self.parts.get((region, ledger, entry), [])
        )


@dataclass
class Stage:
    """Consumers in one region, from one switch to the next."""

    region: str
    journal: Path
    kind: str
    """How the stage before ended: first, sigkill or planned."""
    began_ms: int
    """When the stage before ended."""


@dataclass
class Switch:
    """The cost of a switch."""

    kind: str
    source: str
    target: str
    first_message_ms: int
    redelivered_acked: int
    redelivered_in_client: int
    redelivered_unacked: int
    delivered: int

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "from": self.source,
            "to": self.target,
            "first_message_ms": self.first_message_ms,
            "redelivered_acked": self.redelivered_acked,
            "redelivered_in_client": self.redelivered_in_client,
        }


def judge(
    stages: list[Stage], exports: dict[str, Export], subscription: str, killed_ms: int
) -> tuple[set[int], list[Switch]]:
    """The distinct flights processed, and the cost of each switch."""
    places = {region: origins(export) for region, export in exports.items()}
    ack_logs = {stage.region: AckLog.of(exports[stage.region], subscription) for stage in stages[:1]}
    processed: set[int] = set()
    acked_before: dict[Message, str] = {}
    """Acknowledged in an earlier stage -> the region it was acknowledged in."""
    seen_before: set[Message] = set()
    switches: list[Switch] = []
    for number, stage in enumerate(stages):
        acked_here: list[Message] = []
        seen_here: set[Message] = set()
        again: list[Message] = []
        first_ms: int | None = None
        for event in journal(stage.journal):
            origin = places[stage.region].get((event.ledger, event.entry))
            if origin is None:
                raise SystemExit(f"demo: {stage.region} delivered {event.ledger}:{event.entry}, which it does not hold")
            message = (*origin, event.place)
            if event.kind == "D":
                processed.add(event.flight)
                first_ms = first_ms or event.time_ms
                if message in seen_before:
                    again.append(message)
                seen_here.add(message)
            else:
                acked_here.append(message)
        if number:
            known = in_client = 0
            for message in again:
                region = acked_before.get(message)
                if region is None:
                    continue
                log = ack_logs.get(region)
                if log is None or log.received(message, killed_ms - RECEIVED_BEFORE_MS):
                    known += 1
                else:
                    in_client += 1
            switches.append(
                Switch(
                    stage.kind,
                    stages[number - 1].region,
                    stage.region,
                    (first_ms or 0) - stage.began_ms,
                    known,
                    in_client,
                    len(again) - known - in_client,
                    len(seen_here),
                )
            )
        seen_before |= seen_here
        acked_before.update(dict.fromkeys(acked_here, stage.region))
    return processed, switches


def judge_receipts(journals: dict[str, Path], first: str, exports: dict[str, Export]) -> tuple[int, int]:
    """How many batches had the receipt of their acknowledgement before the kill, and how many of those were delivered
    again in another region.

    :param first: the region that was killed.
    """
    confirmed: set[tuple[str, int, int]] = set()
    again = 0
    for region in (first, *(name for name in journals if name != first)):
        places = origins(exports[region])
        for event in journal(journals[region]):
            origin = places[event.ledger, event.entry]
            if region == first and event.kind == "A":
                confirmed.add(origin)
            elif region != first and event.kind == "D":
                again += origin in confirmed
    return len(confirmed), again
