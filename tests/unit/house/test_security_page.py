# SPDX-License-Identifier: Apache-2.0
"""The threat model names a test for each row, and each of these tests exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/security.md"


def test_every_threat_has_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    threats = [row for row in rows if not row.startswith("| They try")]
    without = [
        row for row in threats if not re.search(r"`(test_\w+\.py::test_\w+|scripts/\w+[^`]*)` ?", row.rsplit("|", 2)[1])
    ]
    assert threats and not without, without


def test_every_test_that_it_names_exists() -> None:
    files = {path.name: path for folder in ("tests", "e2e") for path in (ROOT / folder).rglob("test_*.py")}
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if file not in files or not re.search(rf"def {name}\(", files[file].read_text(encoding="utf-8"))
    ]
    assert named and not missing, missing
