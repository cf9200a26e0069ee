# SPDX-License-Identifier: Apache-2.0
"""The demo's results, as tables for the terminal and as a page with the story, the counts and Spark's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from judge import Switch

KINDS = {"sigkill": "killed", "planned": "planned"}
EXPLAINED = (
    "A client library collects acknowledgements for 0.1 s before it sends them. Those that had not reached us-east 50 "
    "ms before it died are counted apart: it could not pass them on, so their messages come again. A client that asks "
    "for receipts knows which acknowledgements are safe; one consumer in this demo does."
)

Table = tuple[str, Sequence[str], list[tuple[str, ...]]]


def tables(result: dict[str, Any], switches: Sequence[Switch]) -> Iterator[Table]:
    """Title, heads and rows of each."""
    counts = (f"{result['published']:,}", f"{result['processed']:,}", str(result["lost"]), str(result["seconds"]))
    yield "Flights", ("published", "processed", "lost", "seconds"), [counts]
    heads = (
        "move",
        "first message after",
        "acknowledged, delivered again",
        "acknowledgement not sent yet, delivered again",
        "not acknowledged, delivered again",
    )
    rows: list[tuple[str, ...]] = [
        (
            f"{KINDS.get(one.kind, one.kind)}: {one.source} to {one.target}",
            f"{one.first_message_ms} ms",
            f"{one.redelivered_acked} of {one.delivered:,}",
            f"{one.redelivered_in_client:,}",
            f"{one.redelivered_unacked:,}",
        )
        for one in switches
    ]
    yield "Delivered again", heads, rows
    receipts = result["receipts"]
    row = (f"{receipts['batches']:,}", f"{receipts['redelivered']:,}")
    yield "Acknowledgements with receipts", ("batches with a receipt before the kill", "delivered again"), [row]


def page(result: dict[str, Any], switches: Sequence[Switch], story: Sequence[tuple[float, str]]) -> str:
    """One HTML file that stands alone, in the verifier's style. Spark's report lies beside it."""
    kind, symbol = ("aligned", "\u2713") if result["aligned"] else ("misaligned", "\u2717")
    style = files("meridian_verifier.report").joinpath("style.css").read_text(encoding="utf-8")
    verdict = "every region has the same progress" if result["aligned"] else "regions do not agree"
    turns = "".join(f"<tr><td>{when:.1f} s</td><td>{escape(text)}</td></tr>" for when, text in story)
    summary = (
        f"{result['lost']} of {result['published']:,} flights lost; {result['redelivered_acked']} acknowledged ones "
        f"delivered again; Spark: {verdict}."
    )
    banner = f'<header class="{kind}"><div class="symbol">{symbol}</div><div><h1>A region died</h1>'
    sections = [
        f"{banner}<p>{summary}</p></div></header>",
        f'<section><h2>What happened</h2><div class="wide"><table>{turns}</table></div></section>',
        *(_section(*table) for table in tables(result, switches)),
        f'<section><p class="faint">{escape(EXPLAINED)}</p></section>',
        *(
            f'<section><a href="{escape(name)}">Spark\'s report</a></section>'
            for name in [result["spark_report"]]
            if name
        ),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Meridian: the demo</title><style>{style}</style></head>\n<body>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, heads: Sequence[str], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<section><h2>{escape(title)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div></section>'
