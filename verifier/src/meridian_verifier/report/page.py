# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML file (no external script, font or picture), read at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Final

from meridian_verifier.align.findings import Strip
from meridian_verifier.align.verdicts import State, SubjectVerdict, Verdict, counted
from meridian_verifier.report.plots import chip, lag_curves, matrix, strip_rows
from meridian_verifier.report.shown import html
from meridian_verifier.report.words import (
    MEANINGS,
    compared_text,
    part_text,
    place_text,
    ranges_text,
    short_topic,
    troubles,
    when,
)

FINDINGS_SHOWN: Final = 100
ROWS_SHOWN: Final = 200
LINES_SHOWN: Final = 12
"""Maximum number of lines per row; the rest is only counted."""
_HEADLINES: Final = {
    State.ALIGNED: ("✓", "Aligned", "Every subscription has the same progress in every region."),
    State.MISALIGNED: ("✗", "Misaligned", "Regions do not agree, or messages are lost. See below for details."),
    State.UNKNOWN: ("?", "Could not tell", "Not everything could be asked. What could be is below."),
}


def page(verdict: Verdict) -> str:
    """The whole file."""
    sections = [
        _banner(verdict),
        _section(
            "Regions",
            "Read a row: everything acked in that region at the first snapshot must be acked or dropped in the "
            "column's region at the second. The diagonal is the region's own log.",
            matrix(verdict),
        ),
        _findings(verdict),
        _subscriptions(verdict),
        _holes(verdict),
        _section(
            "Delay between regions",
            "Fraction of the messages that had arrived within the given milliseconds after their origin stored them.",
            lag_curves(verdict.flows) + _flows(verdict),
        ),
    ]
    title = f"Meridian: {_HEADLINES[verdict.state][1].lower()}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_style()}</style></head>\n<body>{''.join(sections)}</body></html>\n"
    )


def _style() -> str:
    return files(__package__ or "").joinpath("style.css").read_text(encoding="utf-8")


def _banner(verdict: Verdict) -> str:
    symbol, word, meaning = _HEADLINES[verdict.state]
    facts = []
    if verdict.world.later:
        taken = [state.taken_ms for state in verdict.world.later.values()]
        before = [state.taken_ms for state in verdict.world.earlier.values()]
        facts.append(f"second snapshot {when(max(taken))}, {(min(taken) - max(before)) / 1000:.1f} s after the first")
    topics = verdict.world.topics()
    count = sum(bool(one.subscription) for one in verdict.subjects)
    held = sum(flow.entries for flow in verdict.flows)
    compared = f"{counted(len(topics), 'topic')}, {counted(count, 'replicated subscription')}"
    facts.append(f"{compared}, {held:,} entries in all regions together")
    missing = [
        f"{region} could not be asked: {problem}" for region, problem in sorted(verdict.world.unreachable.items())
    ]
    missing += [
        f"{short_topic(topic)} is replicated to {', '.join(strangers)}, which this check was not configured to query"
        for topic in topics
        if (strangers := verdict.world.not_asked(topic))
    ]
    left = [f"and {len(missing) - LINES_SHOWN:,} more"] if len(missing) > LINES_SHOWN else []
    warnings = "".join(f'<p class="warn">{html(one)}</p>' for one in missing[:LINES_SHOWN] + left)
    return (
        f'<header class="{verdict.state.value}"><div class="symbol">{symbol}</div><div><h1>{word}</h1>'
        f"<p>{meaning}</p><p>{html(verdict.summary)}</p>"
        f'<p class="faint">{html("; ".join(facts))}</p>{warnings}</div></header>'
    )


def _section(title: str, lead: str, body: str) -> str:
    return f'<section><h2>{html(title)}</h2><p class="faint">{html(lead)}</p>{body}</section>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` are HTML; ``heads`` are text."""
    head = "".join(f"<th>{html(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _findings(verdict: Verdict) -> str:
    if not verdict.findings:
        return ""
    rows = [
        (
            f'<b>{one.reason.value}</b><br><span class="faint">{html(MEANINGS[one.reason])}</span>',
            f"{html(short_topic(one.topic))}<br><b>{html(one.subscription)}</b>",
            html(place_text(one)),
            html(one.origin),
            f"{one.entries:,} / {one.messages:,}",
            f"{when(one.first_publish_ms)}<br>{when(one.last_publish_ms)}",
            f"<code>{html(ranges_text(one))}</code>",
        )
        for one in verdict.findings[:FINDINGS_SHOWN]
    ]
    heads = ("what", "topic, subscription", "where", "origin", "entries / messages", "first, last published", "ranges")
    left = len(verdict.findings) - FINDINGS_SHOWN
    more = f'<p class="faint">and {left} more, all in the JSON output</p>' if left > 0 else ""
    lead = "Ranges are (after, up to] in the positions of the origin region, ledger:entry."
    return _section("What is wrong", lead, _table(heads, rows) + more)


def _subscriptions(verdict: Verdict) -> str:
    rows = [
        (
            html(short_topic(one.topic)),
            html(one.subscription) or f'<span class="faint">{part_text(one.topic, "")}</span>',
            _subject(one),
        )
        for one in verdict.worst_first[:ROWS_SHOWN]
    ]
    left = len(verdict.subjects) - ROWS_SHOWN
    more = f'<p class="faint">and {left:,} more, all in the JSON output</p>' if left > 0 else ""
    lead = "One row per replicated subscription, and one per topic for its stored messages."
    return _section("Subscriptions", lead, _table(("topic", "subscription", "verdict"), rows) + more)


def _subject(one: SubjectVerdict) -> str:
    lines = [chip(one.state, [reason.value for reason in one.reasons] or [one.state.value])]
    if one.state is State.ALIGNED:
        lines[0] += f' <span class="faint">{compared_text(one)}</span>'
        said = list(one.notes)
    else:
        said = list(troubles(one, 0))
    lines += [f'<span class="faint">{html(line)}</span>' for line in said[:LINES_SHOWN]]
    lines += [f'<span class="faint">and {len(said) - LINES_SHOWN} more</span>'] if len(said) > LINES_SHOWN else []
    return "<br>".join(lines)


def _holes(verdict: Verdict) -> str:
    def subject(strip: Strip) -> tuple[str, str, str]:
        return strip.topic, strip.subscription, strip.origin

    parts = [
        (
            '<p class="legend"><span class="key acked"></span>acked <span class="key acked half"></span>acked in part '
            '<span class="key unacked"></span>not acked <span class="key dropped"></span>dropped with a record '
            '<span class="key missing"></span>missing here</p>'
        )
    ]
    last = None
    for (topic, name, origin), strips in groupby(sorted(verdict.strips, key=subject), key=subject):
        if (topic, name) != last:
            parts.append(f"<h3>{html(name)} <span class='faint'>on {html(short_topic(topic))}</span></h3>")
            last = topic, name
        shown = list(strips)
        lead = f"messages first stored in {html(origin)}, oldest left ({shown[0].entries:,} entries)"
        parts.append(f'<p class="faint tight">{lead}</p>{strip_rows(shown, verdict.world.asked)}')
    body = "".join(parts) if verdict.strips else '<p class="faint">No replicated subscription holds anything.</p>'
    return _section("Acked, and holes", "Bars one above the other should look the same in every region.", body)


def _flows(verdict: Verdict) -> str:
    rows = [
        (
            html(short_topic(flow.topic)),
            html(flow.origin),
            html(flow.region),
            f"{flow.entries:,} / {flow.messages:,}",
            f'<b class="bad">{flow.missing:,}</b>' if flow.missing else "0",
            f"{flow.behind:,}",
            f"{flow.late:,}",
            *(f"{flow.quantiles_ms[at]:,}" if flow.quantiles_ms else "" for at in (10, 19, 20)),
        )
        for flow in verdict.flows[:ROWS_SHOWN]
    ]
    heads = (
        "topic",
        "origin",
        "region",
        "entries / messages",
        "missing",
        "in transit",
        "came late",
        "p50 ms",
        "p95 ms",
        "max ms",
    )
    return _table(heads, rows)
