# SPDX-License-Identifier: Apache-2.0
"""A finalizer that formats a traceback while the interpreter parses does not break the parsing."""

from __future__ import annotations

import ast
import gc
import traceback
from pathlib import Path


class LeftBehind:
    """Finalized only by the garbage collector, and its finalizer fails."""

    formatted = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        try:
            raise ValueError("left" + " behind")
        except ValueError as error:
            traceback.format_exception(error)
            LeftBehind.formatted += 1


def test_a_finalizer_that_fails_while_a_file_is_parsed_does_no_harm() -> None:
    source = Path(ast.__file__).read_text(encoding="utf-8")
    before = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for _ in range(5):
            for _ in range(20):
                LeftBehind()
            ast.parse(source)
    finally:
        gc.set_threshold(*before)
    assert LeftBehind.formatted >= 20
