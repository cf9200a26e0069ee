# SPDX-License-Identifier: Apache-2.0
"""The verdict as tables in a terminal."""

from __future__ import annotations

import itertools
from typing import Final

from rich.console import Console
from rich.table import Table

from meridian_verifier.align.verdicts import PairVerdict, State, Verdict
from meridian_verifier.report.words import MEANINGS, ranges_text, short_topic

FINDINGS_SHOWN: Final = 20
ROWS_SHOWN: Final = 60
_STYLES: Final = {State.ALIGNED: "green", State.MISALIGNED: "bold red", State.UNKNOWN: "yellow"}


def show(verdict: Verdict, console: Console) -> None:
    """Print the tables and, last, the one line that matters."""
    console.print(_pairs(verdict))
    if verdict.findings:
        console.print(_findings(verdict))
    for region, problem in sorted(verdict.world.unreachable.items()):
        console.print(f"[yellow]{region} could not be asked:[/] {problem}", highlight=False)
    style = _STYLES[verdict.state]
    console.print(f"[{style}]{verdict.state.value.upper()}[/] {verdict.summary}", highlight=False)


def _pairs(verdict: Verdict) -> Table:
    table = Table(title="Does each region stand where the others stood?", title_justify="left")
    table.add_column("topic", overflow="fold", min_width=10)
    table.add_column("subscription", overflow="fold", min_width=8)
    for source, target in itertools.permutations(verdict.world.asked, 2):
        table.add_column(f"{source}\nin {target}", no_wrap=True, justify="center")
    rows: dict[tuple[str, str], dict[tuple[str, str], PairVerdict]] = {}
    for pair in verdict.pairs:
        rows.setdefault((pair.topic, pair.subscription), {})[(pair.source, pair.target)] = pair
    # What is wrong comes first, and is never among the rows left out.
    order = sorted(rows, key=lambda row: all(pair.state is State.ALIGNED for pair in rows[row].values()))
    for topic, subscription in order[:ROWS_SHOWN]:
        row = rows[topic, subscription]
        cells = [_cell(row.get(way)) for way in itertools.permutations(verdict.world.asked, 2)]
        table.add_row(short_topic(topic), subscription or "[dim](entries)[/]", *cells)
    if len(order) > ROWS_SHOWN:
        table.caption = f"and {len(order) - ROWS_SHOWN} more rows, all in the JSON"
    return table


def _cell(pair: PairVerdict | None) -> str:
    if pair is None:
        return ""
    words = "✓" if pair.state is State.ALIGNED else ", ".join(pair.reasons)
    count = f" {pair.entries:,}" if pair.entries else ""
    return f"[{_STYLES[pair.state]}]{words}{count}[/]"


def _findings(verdict: Verdict) -> Table:
    table = Table(title="What is wrong", title_justify="left")
    for name in ("reason", "subscription", "where", "origin", "entries", "messages", "ranges in origin's positions"):
        table.add_column(name, justify="right" if name in ("entries", "messages") else "left", overflow="fold")
    for one in verdict.findings[:FINDINGS_SHOWN]:
        where = one.target if one.source == one.target else f"{one.source} -> {one.target}"
        table.add_row(
            one.reason.value,
            one.subscription,
            where,
            one.origin,
            f"{one.entries:,}",
            f"{one.messages:,}",
            ranges_text(one),
        )
    reasons = dict.fromkeys(one.reason for one in verdict.findings)
    told = "\n".join(f"{reason.value}: {MEANINGS[reason]}" for reason in reasons)
    left = len(verdict.findings) - FINDINGS_SHOWN
    table.caption = told + (f"\nand {left} more findings, all in the JSON" if left > 0 else "")
    table.caption_justify = "left"
    return table
