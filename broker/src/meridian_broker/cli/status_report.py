# SPDX-License-Identifier: Apache-2.0
"""Tables and verdicts for ``subscriptions status``, ``topics status`` and ``regions status``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from meridian_broker.cli.output import COULD_NOT_TELL, NO, table

Json = Mapping[str, Any]

YES: Final = 0
HERE: Final = ("region", "mode", "backlog", "holes", "consumers", "set size", "bytes", "acknowledged up to")
PAIRS: Final = (
    "region",
    "other region",
    "in step",
    "entries behind",
    "ms behind",
    "last sent",
    "confirmed",
    "received",
)
PULSAR: Final = ("region", "messages from", "move", "why")
STREAMS: Final = ("stream", "seen from", "dispatched by", "lease left", "owed", "waits for")
REGIONS: Final = ("region", "progress link", "topics", "replicating", "backlog", "oldest")
LINKS: Final = ("region", "connected", "backlog", "not there: entries", "bytes", "oldest", "held")


def parts_of(seen: Json) -> list[Json]:
    """A region's answer by partition; one, when the topic has none."""
    return list(seen["partitions"].values()) if "partitions" in seen else [seen]


def peers_of(seen: Json) -> dict[str, Json]:
    """How each other region stands with all partitions, as one region sees it."""
    found: dict[str, Json] = {}
    for part in parts_of(seen):
        for peer in part["peers"]:
            known = found.get(peer["region"])
            found[peer["region"]] = peer if known is None else _worse(known, peer)
    return found


def _worse(one: Json, other: Json) -> dict[str, Any]:
    times = ("last_sent_at", "last_confirmed_at", "last_applied_at")
    return {
        **(one if one["reason"] or not other["reason"] else other),
        "lag_entries": one["lag_entries"] + other["lag_entries"],
        "lag_ms": max(one["lag_ms"], other["lag_ms"]),
        **{key: max((value[key] for value in (one, other) if value[key]), default=None) for key in times},
    }


def verdict(answer: Json, most_ms: int) -> tuple[int, list[str]]:
    """The exit code, and a sentence for each problem.

    :param most_ms: maximum age of an acknowledgement that is not confirmed.
    """
    wrong: list[str] = []
    unknown: list[str] = []
    for region, seen in sorted(answer["regions"].items()):
        if "problem" in seen:
            (wrong if seen["missing"] else unknown).append(str(seen["problem"]))
            continue
        if not all(part["replicated"] for part in parts_of(seen)):
            wrong.append(f"{region}: it is not replicated: its progress stays in {region}")
        if reasons := sorted({str(part["scope_reason"]) for part in parts_of(seen) if part.get("scope_reason")}):
            wrong.append(f"{region}: dispatch scope origin is not in force: {'; '.join(reasons)}")
        for other, peer in sorted(peers_of(seen).items()):
            if peer["reason"]:
                wrong.append(f"{region}: {peer['reason']}: {peer['detail']}")
            elif peer["lag_ms"] > most_ms:
                wrong.append(f"{region}: {other} is {peer['lag_ms']} ms behind")
    code = NO if wrong else COULD_NOT_TELL if unknown else YES
    return code, wrong + unknown


def tables(answer: Json, now_ms: int) -> Iterator[str]:
    """For people: a table of regions, one of region pairs, with regions of Apache Pulsar one of how acknowledgements of
    their messages move, and with dispatch scope ``origin`` one of origin streams."""
    regions = sorted(answer["regions"].items())
    rows = []
    for region, seen in regions:
        if "problem" in seen:
            rows.append((region, *["?"] * (len(HERE) - 1)))
            continue
        parts = parts_of(seen)
        place = parts[0]["mark_delete"] if len(parts) == 1 else f"({len(parts)} partitions)"
        sums = [sum(part[key] for part in parts) for key in ("backlog", "holes", "consumers", "set_size", "set_bytes")]
        rows.append((region, parts[0]["mode"], *sums, place))
    yield table(HERE, rows)
    pairs = [_pair(region, peer, now_ms) for region, seen in regions if "problem" not in seen for peer in _sorted(seen)]
    if pairs:
        yield ""
        yield table(PAIRS, pairs)
    pulsar = {_from_pulsar(region, one) for region, seen in regions if "problem" not in seen for one in _pulsar(seen)}
    if pulsar:
        yield ""
        yield table(PULSAR, sorted(pulsar))
    streams = [
        _stream(region, *stream) for region, seen in regions if "problem" not in seen for stream in _streams(seen)
    ]
    if streams:
        yield ""
        yield table(STREAMS, sorted(streams))


def _pulsar(seen: Json) -> Iterator[Json]:
    return (one for part in parts_of(seen) for one in part.get("pulsar", ()))


def _from_pulsar(region: str, one: Json) -> tuple[str, ...]:
    moves = {"exact": "exactly", "snapshot": "by snapshot only"}.get(one["moves"], str(one["moves"]))
    return region, str(one["region"]), moves, str(one["detail"]) or "-"


def _streams(seen: Json) -> Iterator[tuple[str, list[Json]]]:
    """The streams per origin region, by partition."""
    found: dict[str, list[Json]] = {}
    for part in parts_of(seen):
        for stream in part.get("shares", ()):
            found.setdefault(stream["origin"], []).append(stream)
    yield from found.items()


def _stream(region: str, origin: str, parts: list[Json]) -> tuple[object, ...]:
    """Each partition of a stream has its own lease: the shortest one is shown."""
    holders = sorted({str(part["dispatched_by"] or "nobody") for part in parts})
    left = min(part["lease_ms_left"] for part in parts)
    reasons = sorted({str(part["reason"]) for part in parts if part["reason"]})
    lease = f"{left / 1000:.1f} s" if left else "-"
    counts = [part.get("owed") for part in parts]
    owed = "-" if None in counts else sum(count or 0 for count in counts)
    return origin, region, ", ".join(holders), lease, owed, "; ".join(reasons) or "-"


def _sorted(seen: Json) -> Iterable[Json]:
    return (peer for _, peer in sorted(peers_of(seen).items()))


def _pair(region: str, peer: Json, now_ms: int) -> tuple[object, ...]:
    times = (ago(peer[key], now_ms) for key in ("last_sent_at", "last_confirmed_at", "last_applied_at"))
    return region, peer["region"], peer["reason"] or "yes", peer["lag_entries"], peer["lag_ms"], *times


def ago(at_ms: int | None, now_ms: int) -> str:
    """A time as people say it; ``-`` for none."""
    if at_ms is None:
        return "-"
    seconds = max(0, now_ms - at_ms) / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.1f} s ago"


def link_rows(replication: Mapping[str, Json]) -> list[tuple[object, ...]]:
    """For people: how many of this region's messages each other region has."""
    rows: list[tuple[object, ...]] = []
    for remote, link in sorted(replication.items()):
        behind = link["meridian"]["unreplicated"]
        age = f"{behind['ageMs'] / 1000:.1f} s" if behind["entries"] else "-"
        rows.append(
            (
                remote,
                "yes" if link["connected"] else "no",
                link["replicationBacklog"],
                behind["entries"],
                behind["bytes"],
                age,
                link["hold"] or "-",
            )
        )
    return rows


def wrong_links(answer: Json) -> list[str]:
    """A sentence for each thing about one region's links that is not as it should be."""
    wrong: list[str] = []
    for region in answer["regions"]:
        name = region["name"]
        wrong += [f"{topic}: not filled yet: {why}" for topic, why in region.get("not_ready", {}).items()]
        wrong += _not_open(region.get("not_open", {"topics": 0}))
        if "progress" not in region:
            wrong += [] if region["local"] else [f"{name}: there is no link to it yet"]
            continue
        link, sent = region["progress"], region["replication"]
        if not link["connected"]:
            wrong.append(f"{name}: {link['problem']}")
        wrong += [": ".join(filter(None, (name, about, why))) for about, why in link.get("apart", {}).items()]
        if apart := sent["topics"] - sent["connected"]:
            have = "has" if apart == 1 else "have"
            wrong.append(f"{name}: {apart} of {sent['topics']} topics {have} no connection for messages")
        wrong += [f"{name}: {topic} is held: {why}" for topic, why in sent["held"].items()]
    return wrong


def _not_open(listed: Json) -> list[str]:
    count = listed["topics"]
    if count is None:
        return ["the topics on record are not known yet: the broker is starting"]
    shown = listed["first"][:3] if count else []
    return [f"not open yet: {', '.join(shown)}" + (f" and {count - 3} more" if count > 3 else "")] if count else []


def links_of(answer: Json) -> Iterator[str]:
    """For people: the state of one region's links to the others, and what is wrong with them."""
    rows: list[tuple[object, ...]] = []
    for region in answer["regions"]:
        name = region["name"]
        if "progress" not in region:
            rows.append((name, "(this one)" if region["local"] else "none", *["-"] * (len(REGIONS) - 2)))
            continue
        link, sent = region["progress"], region["replication"]
        oldest = f"{sent['delay_ms'] / 1000:.1f} s" if sent["backlog"] else "-"
        up = "up" if link["connected"] else "down"
        rows.append((name, up, sent["topics"], sent["connected"], sent["backlog"], oldest))
    yield from table(REGIONS, rows).split("\n")
    wrong = wrong_links(answer)
    yield from ["", *wrong] if wrong else []
