# SPDX-License-Identifier: Apache-2.0
"""The verdict as tables in a terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from meridian_verifier.align.verdicts import PairVerdict, State, Verdict
from meridian_verifier.report.words import MEANINGS, ranges_text, short_topic

FINDINGS_SHOWN: Final = 20
ROWS_SHOWN: Final = 60
_SYMBOLS: Final = {State.ALIGNED: "✓", State.MISALIGNED: "✗", State.UNKNOWN: "?"}
_STYLES: Final = {State.ALIGNED: "green", State.MISALIGNED: "bold red", State.UNKNOWN: "yellow"}


def show(verdict: Verdict, console: Console) -> None:
    """Print the tables and, last, the one line that matters."""
    console.print(_matrix(verdict))
    console.print(_subscriptions(verdict))
    if verdict.findings:
        console.print(_findings(verdict))
    for region, problem in sorted(verdict.world.unreachable.items()):
        console.print(f"[yellow]{region} could not be asked:[/] {problem}", highlight=False)
    style = _STYLES[verdict.state]
    console.print(f"[{style}]{verdict.state.value.upper()}[/] {verdict.summary}", highlight=False)


def _matrix(verdict: Verdict) -> Table:
    """Regions against regions: what the worst verdict of each pair says."""
    table = Table(title="Settled in the left region: in the upper one too?", title_justify="left")
    table.add_column("")
    for target in verdict.world.asked:
        table.add_column(target, justify="center")
    for source in verdict.world.asked:
        cells = ["[dim]-[/]" if source == target else _worst(verdict, source, target) for target in verdict.world.asked]
        table.add_row(source, *cells)
    return table


def _worst(verdict: Verdict, source: str, target: str) -> str:
    pairs = [pair for pair in verdict.pairs if (pair.source, pair.target) == (source, target)]
    for state in (State.MISALIGNED, State.UNKNOWN, State.ALIGNED):
        reasons = [reason for pair in pairs if pair.state is state for reason in pair.reasons]
        if any(pair.state is state for pair in pairs):
            return f"[{_STYLES[state]}]{_SYMBOLS[state]} {reasons[0].value if reasons else state.value}[/]"
    return ""


def _subscriptions(verdict: Verdict) -> Table:
    """What is wrong comes first, and is never among the rows left out."""
    table = Table(title="Topics and their replicated subscriptions", title_justify="left")
    for name in ("topic", "subscription", "verdict"):
        table.add_column(name, overflow="fold")
    rows: dict[tuple[str, str], list[PairVerdict]] = {}
    for pair in verdict.pairs:
        rows.setdefault((pair.topic, pair.subscription), []).append(pair)
    order = sorted(rows, key=lambda row: all(pair.state is State.ALIGNED for pair in rows[row]))
    for topic, subscription in order[:ROWS_SHOWN]:
        pairs = rows[topic, subscription]
        wrong = [_cell(pair) for pair in pairs if pair.state is not State.ALIGNED]
        good = f"[green]{_SYMBOLS[State.ALIGNED]} {len(pairs) - len(wrong)} of {len(pairs)} pairs aligned[/]"
        table.add_row(short_topic(topic), subscription or "[dim](its entries)[/]", "\n".join([*wrong, good]))
    if len(order) > ROWS_SHOWN:
        table.caption = f"and {len(order) - ROWS_SHOWN} more rows, all in the JSON"
    return table


def _cell(pair: PairVerdict) -> str:
    count = f" {pair.entries:,}" if pair.entries else ""
    said = f"{_SYMBOLS[pair.state]} {', '.join(pair.reasons)}{count}"
    return f"[{_STYLES[pair.state]}]{said}[/] {pair.source} -> {pair.target}"


def _findings(verdict: Verdict) -> Table:
    table = Table(title="What is wrong", title_justify="left")
    for name in ("reason", "subscription", "where", "origin", "entries", "messages", "ranges"):
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
            ranges_text(one, 1),
        )
    reasons = dict.fromkeys(one.reason for one in verdict.findings)
    told = "Ranges are (after, up to] in the origin's positions; the report shows more of them.\n"
    told += "\n".join(f"{reason.value}: {MEANINGS[reason]}" for reason in reasons)
    left = len(verdict.findings) - FINDINGS_SHOWN
    table.caption = told + (f"\nand {left} more findings, all in the JSON" if left > 0 else "")
    table.caption_justify = "left"
    return table
