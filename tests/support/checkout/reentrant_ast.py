# SPDX-License-Identifier: Apache-2.0
"""Keeps a bug of CPython 3.11 and 3.12 out of the tests.

Their ``ast.parse`` keeps its recursion depth in a counter of the whole interpreter. If the garbage collector runs
meanwhile, a finalizer fails, and the exception is formatted, then the traceback parses the line that failed, to place
carets below it, and the outer call ends with ``SystemError: AST constructor recursion depth mismatch``
(python/cpython#106905). This can happen to any test that reads source code or imports a module, because of garbage
that an earlier test left behind.

Without carets, a traceback still shows the line.
"""

from __future__ import annotations

import sys
import traceback


def _no_carets(_line: str) -> None:
    return None


def parse_nothing_in_tracebacks() -> None:
    """From now on, tracebacks of this process parse no lines and place no carets."""
    if sys.version_info < (3, 13):
        setattr(traceback, "_extract_caret_anchors_from_line_segment", _no_carets)  # noqa: B010
