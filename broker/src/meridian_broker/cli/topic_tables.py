# SPDX-License-Identifier: Apache-2.0
"""``topics stats`` for people: tables made from the admin API's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from meridian_broker.cli.output import table

Json = Mapping[str, Any]

TOPIC: Final = ("in: messages", "per s", "out: messages", "per s", "stored", "publishers")
SUBSCRIPTIONS: Final = ("subscription", "type", "replicated", "backlog", "unacked", "consumers", "out per s")
REPLICATORS: Final = ("to region", "connected", "backlog", "out per s", "in per s")
SHADOWS: Final = ("shadow", "reads")
SHADOW: Final = ("shadow of", "reads", "holds ledgers", "skipped entries")
LEDGERS: Final = ("ledger", "entries", "size")
CURSORS: Final = ("subscription", "acknowledged up to", "holes", "reads next")


def stats(found: Json) -> Iterator[str]:
    """Traffic, subscriptions and replication of a topic."""
    publishers = found.get("publishers", [])
    traffic = (
        found["msgInCounter"],
        _rate(found["msgRateIn"]),
        found["msgOutCounter"],
        _rate(found["msgRateOut"]),
        size(found["storageSize"]),
        len(publishers),
    )
    yield table(TOPIC, [traffic])
    rows = [
        (
            name,
            one["type"] or "-",
            "yes" if one["isReplicated"] else "no",
            one["msgBacklog"],
            one["unackedMessages"],
            len(one.get("consumers", [])),
            _rate(one["msgRateOut"]),
        )
        for name, one in sorted(found["subscriptions"].items())
    ]
    if rows:
        yield ""
        yield table(SUBSCRIPTIONS, rows)
    links = [
        (
            region,
            "yes" if one["connected"] else "no",
            one["replicationBacklog"],
            _rate(one["msgRateOut"]),
            _rate(one["msgRateIn"]),
        )
        for region, one in sorted(found.get("replication", {}).items())
    ]
    if links:
        yield ""
        yield table(REPLICATORS, links)
    shadows = [(name, _yes(one["connected"])) for name, one in sorted(found.get("shadowReplication", {}).items())]
    if shadows:
        yield ""
        yield table(SHADOWS, shadows)
    shadow = found.get("meridian", {}).get("shadow")
    if shadow:
        of = (shadow["source"], _yes(shadow["connected"]), _yes(shadow["holdsSourceLedgers"]), shadow["gapEntries"])
        yield ""
        yield table(SHADOW, [of])


def internal(found: Json) -> Iterator[str]:
    """Ledgers and cursors of a topic that is not partitioned."""
    rows = [(one["ledgerId"], one["entries"], size(one["size"])) for one in found["ledgers"]]
    yield table(LEDGERS, rows)
    cursors = [
        (name, one["markDeletePosition"], one["totalNonContiguousDeletedMessagesRange"], one["readPosition"])
        for name, one in sorted(found["cursors"].items())
    ]
    if cursors:
        yield ""
        yield table(CURSORS, cursors)


def _yes(is_so: object) -> str:
    return "yes" if is_so else "no"


def size(count: int) -> str:
    """Bytes as people write them."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def _rate(value: float) -> str:
    return f"{value:.1f}"
