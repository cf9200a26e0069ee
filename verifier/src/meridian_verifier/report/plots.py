# SPDX-License-Identifier: Apache-2.0
"""The report's drawings, as self-contained SVG text. Colours are classes, defined by the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from meridian_verifier.align.completeness import QUANTILES
from meridian_verifier.align.findings import Flow, Strip
from meridian_verifier.align.verdicts import WORST_FIRST, State, Verdict
from meridian_verifier.report.shown import html

_CELL_WIDTH: Final = 168
_CELL_HEIGHT: Final = 66
_LABEL: Final = 120
_SYMBOLS: Final = {State.ALIGNED: "✓", State.MISALIGNED: "✗", State.UNKNOWN: "?"}
LINE_STYLES: Final = 9
"""Number of distinguishable lines (colour and dashes)."""
TOPIC_LETTERS: Final = 36
"""Maximum characters of a topic's name in the legend of the delays."""


def matrix(verdict: Verdict) -> str:
    """Regions against regions: the worst verdict of each ordered pair over all topics and subscriptions."""
    regions = verdict.world.named
    width, height = _LABEL + _CELL_WIDTH * len(regions), 46 + _CELL_HEIGHT * len(regions)
    parts = [_svg(width, height, "matrix of regions")]
    parts.append(f'<text x="{_LABEL + 6}" y="14" class="faint">… must be acked or dropped in</text>')
    parts.append('<text x="0" y="36" class="faint">what is acked in …</text>')
    for column, target in enumerate(regions):
        middle = _LABEL + _CELL_WIDTH * column + _CELL_WIDTH / 2
        parts.append(f'<text x="{middle:.0f}" y="36" class="label" text-anchor="middle">{html(target)}</text>')
    for row, source in enumerate(regions):
        top = 46 + _CELL_HEIGHT * row
        parts.append(f'<text x="0" y="{top + _CELL_HEIGHT / 2 + 5:.0f}" class="label">{html(source)}</text>')
        for column, target in enumerate(regions):
            kind, symbol, line, more = _pair_cell(verdict, source, target)
            left = _LABEL + _CELL_WIDTH * column
            middle = left + _CELL_WIDTH / 2
            parts.append(
                f'<rect x="{left + 2}" y="{top + 2}" width="{_CELL_WIDTH - 4}" height="{_CELL_HEIGHT - 4}" rx="6" '
                f'class="cell {kind}"/>'
                f'<text x="{middle:.0f}" y="{top + 29}" text-anchor="middle" class="cell-text {kind}">'
                f"{symbol} {html(line)}</text>"
                f'<text x="{middle:.0f}" y="{top + 48}" text-anchor="middle" class="cell-more {kind}">'
                f"{html(more)}</text>"
            )
    return "".join([*parts, "</svg>"])


def _pair_cell(verdict: Verdict, source: str, target: str) -> tuple[str, str, str, str]:
    if source == target:
        own = verdict.of_region(source)
        if source in verdict.world.unreachable:
            return "unknown", "?", "not reached", ""
        if own:
            return "misaligned", "✗", own[0].reason.value, f"{sum(one.entries for one in own):,} entries, itself"
        if source in verdict.world.pulsar:
            return "own", "", "Apache Pulsar", "positions only"
        held = sum(flow.entries for flow in verdict.flows if flow.region == source)
        return "own", "", f"{held:,}", "entries held"
    pairs = [pair for pair in verdict.pairs if (pair.source, pair.target) == (source, target)]
    if not pairs:
        return "own", "", "no common topic", ""
    worst = min(pairs, key=lambda pair: WORST_FIRST.index(pair.state))
    bad = [pair for pair in pairs if pair.state is worst.state]
    subscriptions = sum(bool(pair.subscription) for pair in pairs)
    if worst.state is State.ALIGNED:
        return "aligned", "✓", "aligned", f"{subscriptions} subscription{'s' if subscriptions != 1 else ''}"
    entries = sum(pair.entries for pair in bad)
    more = f"{entries:,} entries" if entries else f"{len(bad)} of {len(pairs)} checks"
    return worst.state.value, _SYMBOLS[worst.state], worst.reasons[0].value, more


def strip_rows(strips: Sequence[Strip], regions: Sequence[str]) -> str:
    """One subscription and origin: a row of bins per region, each bin coloured by its state."""
    by_region = {strip.region: strip for strip in strips}
    shown = [by_region[region] for region in regions if region in by_region]
    width, bar = 720, 16
    height = (bar + 4) * len(shown)
    parts = [_svg(_LABEL + width, height, "acked entries")]
    for row, strip in enumerate(shown):
        top = row * (bar + 4)
        parts.append(f'<text x="0" y="{top + 12}" class="small">{html(strip.region)}</text>')
        step = width / max(1, len(strip.acked))
        # Neighbours that look the same are one rectangle: a quiet stream needs a few, not 120.
        start = 0
        looks = [_bin(*bins) for bins in zip(strip.acked, strip.dropped, strip.missing, strict=True)]
        for at in range(1, len(looks) + 1):
            if at == len(looks) or looks[at] != looks[start]:
                kind, percent = looks[start]
                left = _LABEL + start * step
                title = f"<title>{html(strip.region)}: {kind} {percent} %</title>"
                parts.append(_bar(left, top, (at - start) * step, bar, "unacked"))
                parts.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{(at - start) * step + 0.3:.1f}" height="{bar}" '
                    f'class="{kind}" fill-opacity="{0.25 + 0.75 * percent / 100:.2f}">{title}</rect>'
                )
                start = at
    return "".join([*parts, "</svg>"])


def _bin(acked: int, dropped: int, missing: int) -> tuple[str, int]:
    if missing:
        return "missing", max(missing, 40)
    if dropped:
        return "dropped", max(dropped, 40)
    return ("acked", acked) if acked else ("unacked", 100)


def _bar(left: float, top: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.0f}" width="{width + 0.3:.1f}" height="{height:.0f}" class="{kind}"/>'


def lag_curves(flows: Sequence[Flow]) -> str:
    """For each pair of regions: the fraction of entries that had arrived within a number of milliseconds."""
    drawn = [flow for flow in flows if flow.quantiles_ms][:LINE_STYLES]
    if not drawn:
        return '<p class="faint">No entry is in two regions, so there is no delay to draw.</p>'
    width, height, left, bottom = 640, 240, 46, 30
    longest = max(2.0, *(flow.quantiles_ms[-1] for flow in drawn))
    decades = math.ceil(math.log10(longest + 1))

    def x(milliseconds: float) -> float:
        return left + math.log10(milliseconds + 1) / decades * (width - left - 10)

    def y(percent: float) -> float:
        return 10 + (100 - percent) / 100 * (height - bottom - 10)

    topics = {flow.topic for flow in drawn}
    parts = [_svg(width + (220 if len(topics) == 1 else 420), height, "delay between regions")]
    for percent in (0, 50, 90, 100):
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y(percent):.1f}" y2="{y(percent):.1f}" class="grid"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y(percent) + 4:.1f}" text-anchor="end" class="small">{percent} %</text>'
        )
    for tick in [0, *(10**exponent for exponent in range(decades + 1))]:
        at = x(tick)
        if at > width - 10:
            break
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="10" y2="{height - bottom}" class="grid"/>')
        said = f"{tick} ms" if tick < 1000 else f"{tick // 1000:,} s"
        parts.append(f'<text x="{at:.1f}" y="{height - 12}" text-anchor="middle" class="small">{said}</text>')
    for number, flow in enumerate(drawn):
        points = " ".join(
            f"{x(milliseconds):.1f},{y(percent):.1f}"
            for percent, milliseconds in zip(QUANTILES, flow.quantiles_ms, strict=True)
        )
        parts.append(f'<polyline points="{points}" class="line line{number}"/>')
        top = 20 + number * 20
        parts.append(f'<line x1="{width + 8}" x2="{width + 36}" y1="{top}" y2="{top}" class="line line{number}"/>')
        said = f"{flow.origin} to {flow.region}" + ("" if len(topics) == 1 else f", {_short(flow.topic)}")
        parts.append(f'<text x="{width + 42}" y="{top + 4}" class="small">{html(said)}</text>')
    return "".join([*parts, "</svg>"])


def _short(topic: str) -> str:
    """The topic's last name, shortened from the front: its end distinguishes partitions."""
    name = topic.rpartition("/")[2]
    return name if len(name) <= TOPIC_LETTERS else "…" + name[1 - TOPIC_LETTERS :]


def chip(state: State, words: Sequence[str]) -> str:
    """A verdict inside a table."""
    return f'<span class="chip {state.value}">{_SYMBOLS[state]} {html(", ".join(words))}</span>'


def _svg(width: float, height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="{html(title)}" xmlns="http://www.w3.org/2000/svg">'
    )
