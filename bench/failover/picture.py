# SPDX-License-Identifier: Apache-2.0
"""A page of results: the cursor's lag over time and its distribution, messages repeated after each move, and all other
figures. One file, no dependencies."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stories import Lag

Figures = Mapping[str, float | int]
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 240, 60, 30
MOVED = {
    "confirmed": "acknowledged",
    "again": "of these again",
    "again_percent": "%",
    "lost": "lost",
    "without_receipt": "receipt under way",
    "without_receipt_again": "of these again",
    "first_message_ms": "first message, ms",
}
"""Endings of the figures of one move -> their column heads."""
STYLE = """.missed { color: #b00; font-weight: bold } th { text-align: right; font-weight: normal; color: #555 }
th, td { vertical-align: bottom; padding: .1em 0 .1em 1em } td { border-top: 1px solid #eee }
th:first-child, td:first-child { text-align: left; padding: 0 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; color: #222 }
svg { width: 100%; height: auto } table { border-collapse: collapse }
td + td { text-align: right; font-variant-numeric: tabular-nums } text { font-size: 12px; fill: #555 }"""


def write_report(
    path: Path, lag: Lag | None, figures: Figures, missed: Collection[str], machine: Mapping[str, object]
) -> None:
    """Write the page.

    :param missed: figures that do not meet their targets.
    """
    moves: dict[str, dict[str, str]] = {}
    others = ""
    for name, value in figures.items():
        ending = next((one for one in sorted(MOVED, key=len, reverse=True) if name.endswith(f"_{one}")), None)
        cell = f"<td{' class=missed' if name in missed else ''}>{value:,}</td>"
        if ending is None:
            others += f"<tr><td>{_words(name)}</td>{cell}</tr>\n"
        else:
            moves.setdefault(name.removesuffix(f"_{ending}"), {})[ending] = cell
    about = ", ".join(
        f"{name.replace('_', ' ')} {value:.1f}" if isinstance(value, float) else f"{value} {name.replace('_', ' ')}"
        for name, value in machine.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Failover, measured</title><style>{STYLE}</style>
<h1>Failover, measured</h1>
<p>{f'<span class="missed">{len(missed)} targets are missed</span>, in red' if missed else "All targets are met"}.
Machine: {html.escape(about)}.</p>{"" if lag is None else _drawn(lag)}{_moved(moves)}
<h2>{"All other" if moves else "All"} figures</h2><table>{others}</table></html>
""",
        encoding="utf-8",
    )


def _moved(moves: Mapping[str, Mapping[str, str]]) -> str:
    if not moves:
        return ""
    heads = "".join(f"<th>{head}</th>" for head in MOVED.values())
    rows = "".join(
        f"<tr><td>{_words(name)}</td>{''.join(cells.get(ending, '<td></td>') for ending in MOVED)}</tr>\n"
        for name, cells in moves.items()
    )
    return f"""
<h2>Moves to another region</h2><p>Messages that were acknowledged with the broker's receipt, and how many of them came
again after the move. Those whose receipt was under way are counted apart: nobody had been promised anything.</p>
<table><tr><th></th>{heads}</tr>{rows}</table>"""


def _words(name: str) -> str:
    return html.escape(name.replace("_", " ").replace(" percent", " %"))


def _drawn(lag: Lag) -> str:
    return f"""
<p>From the sending of an acknowledgement in one region until the other one's admin API shows it, in milliseconds.
p50 {lag.percentile(50):.1f}, p99 {lag.percentile(99):.1f}, largest {lag.sorted_ms[-1]:.1f}, of {len(lag.samples)}.</p>
<h2>Over time</h2>{_over_time(lag)}
<h2>Distribution</h2>{_distribution(lag)}"""


def _over_time(lag: Lag) -> str:
    """One point per acknowledgement."""
    end = max(seconds for seconds, _ in lag.samples) or 1
    top = lag.sorted_ms[-1] or 1
    dots = "".join(
        f'<circle cx="{_x(seconds / end):.1f}" cy="{_y(ms / top):.1f}" r="1.2" fill="#2a6f97"/>'
        for seconds, ms in lag.samples
    )
    return _chart(dots, [(0, "0 s"), (1, f"{end:.0f} s")], [(0, "0 ms"), (1, f"{top:.0f} ms")])


def _distribution(lag: Lag) -> str:
    """The fraction of messages that took at most a given time."""
    top = lag.sorted_ms[-1] or 1
    count = len(lag.sorted_ms)
    points = " ".join(f"{_x(ms / top):.1f},{_y((at + 1) / count):.1f}" for at, ms in enumerate(lag.sorted_ms))
    line = f'<polyline points="{points}" fill="none" stroke="#2a6f97" stroke-width="2"/>'
    for percent in (50, 99):
        at = _x(lag.percentile(percent) / top)
        line += f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_y(0)}" y2="{_y(1)}" stroke="#c44" stroke-dasharray="3"/>'
        line += f'<text x="{at + 3:.1f}" y="{_y(percent / 100) + 14:.1f}">p{percent}</text>'
    return _chart(line, [(0, "0 ms"), (1, f"{top:.0f} ms")], [(0, "0 %"), (0.5, "50 %"), (1, "100 %")])


def _chart(inside: str, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]]) -> str:
    axes = f'<polyline points="{_x(0)},{_y(1)} {_x(0)},{_y(0)} {_x(1)},{_y(0)}" fill="none" stroke="#888"/>'
    for share, text in across:
        axes += f'<text x="{_x(share)}" y="{HEIGHT - 8}" text-anchor="{"end" if share else "start"}">{text}</text>'
    for share, text in up:
        axes += f'<text x="{LEFT - 6}" y="{_y(share) + 4}" text-anchor="end">{text}</text>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{axes}{inside}</svg>'


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - 10)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 10)
