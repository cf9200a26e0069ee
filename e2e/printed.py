# SPDX-License-Identifier: Apache-2.0
"""The commands in docs/operations.md."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from clusters import ROOT

PAGE: Final = ROOT / "docs/operations.md"


def printed(heading: str) -> list[str]:
    """The blocks of commands below a heading, in order, as a reader would paste them."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{PAGE} has no heading {heading!r}"
    below = rest.partition("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", below, re.MULTILINE)]
