# SPDX-License-Identifier: Apache-2.0
"""How the demo reports its results: counts from journals, and the page that tells the story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "demo")
    import judge

    return judge


@pytest.fixture
def page(judge: ModuleType) -> ModuleType:
    import page

    return page


class Stored:
    """A region's export: each entry's position here, and where it was first stored."""

    def __init__(self, *entries: tuple[int, int, str, int, int]) -> None:
        self._entries = entries

    def rows(self, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        assert table == "entries"
        yield from self._entries


def journal(path: Path, judge: ModuleType, *events: tuple[bytes, int, int]) -> Path:
    path.write_bytes(b"".join(judge.RECORD.pack(kind, ledger, entry, -1, 0, 0) for kind, ledger, entry in events))
    return path


def test_only_messages_with_a_receipt_count_as_delivered_again(judge: ModuleType, tmp_path: Path) -> None:
    exports = {
        "east": Stored((1, 0, "east", 1, 0), (1, 1, "west", 7, 0), (1, 2, "east", 1, 1)),
        "west": Stored((7, 0, "west", 7, 0), (7, 1, "east", 1, 0), (7, 2, "east", 1, 1)),
    }
    journals = {
        "east": journal(tmp_path / "e", judge, (b"D", 1, 0), (b"A", 1, 0), (b"D", 1, 1), (b"A", 1, 1), (b"D", 1, 2)),
        "west": journal(tmp_path / "w", judge, (b"D", 7, 2), (b"A", 7, 2)),
    }
    assert judge.judge_receipts(journals, "east", exports) == (2, 0), "1:2 had no receipt"
    journal(tmp_path / "w", judge, (b"D", 7, 2), (b"D", 7, 1))
    assert judge.judge_receipts(journals, "east", exports) == (2, 1)


def test_the_page_tells_the_story_and_shows_each_count(judge: ModuleType, page: ModuleType) -> None:
    result = {
        "published": 336_776,
        "processed": 336_776,
        "lost": 0,
        "redelivered_acked": 0,
        "aligned": True,
        "seconds": 91.9,
        "receipts": {"batches": 1234, "redelivered": 0},
        "spark_report": "verify-1.html",
    }
    switch = judge.Switch("sigkill", "us-east", "us-west", 480, 0, 2829, 41, 90_000)
    shown = page.page(result, [switch], [(12.5, "us-east is killed"), (30.0, "us-east <b> comes back")])
    for text in ("12.5 s", "us-east is killed", "us-east &lt;b&gt; comes back", "0 of 336,776 flights lost"):
        assert text in shown
    for text in ("0 of 90,000", "2,829", "41", "1,234", 'href="verify-1.html"', "killed: us-east to us-west"):
        assert text in shown
    assert "<script" not in shown
