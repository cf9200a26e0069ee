# SPDX-License-Identifier: Apache-2.0
"""The verdict as tables in a terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from meridian_verifier.align.findings import Finding
from meridian_verifier.align.verdicts import WORST_FIRST, State, SubjectVerdict, Verdict
from meridian_verifier.report.shown import markup
from meridian_verifier.report.words import (
    MEANINGS,
    compared_text,
    part_text,
    place_text,
    ranges_text,
    short_topic,
    troubles,
)

FINDINGS_SHOWN: Final = 20
ROWS_SHOWN: Final = 60
LINES_SHOWN: Final = 8
"""Maximum number of lines per row; the rest is only counted."""
_SYMBOLS: Final = {State.ALIGNED: "✓", State.MISALIGNED: "✗", State.UNKNOWN: "?"}
_STYLES: Final = {State.ALIGNED: "green", State.MISALIGNED: "bold red", State.UNKNOWN: "yellow"}


def show(verdict: Verdict, console: Console) -> None:
    """Print the tables and, last, the summary line."""
    console.print(_matrix(verdict))
    console.print(_subjects(verdict))
    if verdict.findings:
        console.print(_findings(verdict))
    for region, problem in sorted(verdict.world.unreachable.items()):
        console.print(f"[yellow]{markup(region)} could not be asked:[/] {markup(problem)}", highlight=False)
    style = _STYLES[verdict.state]
    console.print(f"[{style}]{verdict.state.value.upper()}[/] {markup(verdict.summary)}", highlight=False)


def _matrix(verdict: Verdict) -> Table:
    """Regions against regions: the worst verdict of each pair; on the diagonal, of the region itself."""
    table = Table(title="Does the column's region have what is acked in the row's region?", title_justify="left")
    table.add_column("")
    for target in verdict.world.named:
        table.add_column(markup(target), justify="center")
    for source in verdict.world.named:
        cells = [
            _alone(verdict, source) if source == target else _worst(verdict, source, target)
            for target in verdict.world.named
        ]
        table.add_row(markup(source), *cells)
    return table


def _alone(verdict: Verdict, region: str) -> str:
    own = verdict.of_region(region)
    return _said(State.MISALIGNED, own[0].reason) if own else "[dim]-[/]"


def _worst(verdict: Verdict, source: str, target: str) -> str:
    pairs = [pair for pair in verdict.pairs if (pair.source, pair.target) == (source, target)]
    for state in WORST_FIRST:
        reasons = [reason for pair in pairs if pair.state is state for reason in pair.reasons]
        if any(pair.state is state for pair in pairs):
            return _said(state, reasons[0].value if reasons else state.value)
    return ""


def _said(state: State, text: str) -> str:
    return f"[{_STYLES[state]}]{_SYMBOLS[state]} {text}[/]"


def _subjects(verdict: Verdict) -> Table:
    """Problems come first."""
    table = Table(title="Topics and their replicated subscriptions", title_justify="left")
    for name in ("topic", "subscription", "verdict"):
        table.add_column(name, overflow="fold")
    shown = verdict.worst_first[:ROWS_SHOWN]
    for one in shown:
        table.add_row(markup(short_topic(one.topic)), _subscription(one), _subject(one))
    if len(verdict.subjects) > len(shown):
        table.caption = f"and {len(verdict.subjects) - len(shown):,} more rows, all in the JSON"
    return table


def _subscription(one: SubjectVerdict | Finding) -> str:
    return markup(one.subscription) or f"[dim]{part_text(one.topic, one.subscription)}[/]"


def _subject(one: SubjectVerdict) -> str:
    if one.state is State.ALIGNED:
        return "\n".join([_said(one.state, f"aligned, {compared_text(one)}"), *map(markup, one.notes)])
    lines = list(troubles(one, 0))
    left = [f"and {len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
    said = _said(one.state, f"{one.state}: {', '.join(one.reasons)}")
    return "\n".join([said, *map(markup, lines[:LINES_SHOWN]), *left])


def _findings(verdict: Verdict) -> Table:
    table = Table(title="What is wrong", title_justify="left")
    for name in ("reason", "topic", "subscription", "where", "origin", "entries", "messages", "ranges"):
        table.add_column(name, justify="right" if name in ("entries", "messages") else "left", overflow="fold")
    for one in verdict.findings[:FINDINGS_SHOWN]:
        table.add_row(
            one.reason.value,
            markup(short_topic(one.topic)),
            _subscription(one),
            markup(place_text(one)),
            markup(one.origin),
            f"{one.entries:,}",
            f"{one.messages:,}",
            markup(ranges_text(one, 1)),
        )
    reasons = dict.fromkeys(one.reason for one in verdict.findings)
    told = "Ranges are (after, up to] in the origin's positions; the report shows more of them.\n"
    told += "\n".join(f"{reason.value}: {MEANINGS[reason]}" for reason in reasons)
    left = len(verdict.findings) - FINDINGS_SHOWN
    table.caption = told + (f"\nand {left} more findings, all in the JSON" if left > 0 else "")
    table.caption_justify = "left"
    return table
