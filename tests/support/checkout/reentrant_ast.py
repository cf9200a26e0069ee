# SPDX-License-Identifier: Apache-2.0
"""Keeps a fault of CPython 3.11 and 3.12 out of the tests.

``ast.parse`` there counts how deep it is in a number that the whole interpreter shares. The garbage collector may run
while it works. If it meets a finalizer that fails, and the exception is formatted, then the traceback parses the line
that failed, to place carets below it, and the outer call ends with ``SystemError: AST constructor recursion depth
mismatch`` (python/cpython#106905). This can happen to any test that reads source code or imports a module, because
of something that an earlier test left behind.

Without carets a traceback still shows the line.
"""

from __future__ import annotations

import sys
import traceback


def _no_carets(_line: str) -> None:
    return None


def parse_nothing_in_tracebacks() -> None:
    """From now on, tracebacks of this process mark whole lines and parse none of them."""
    if sys.version_info < (3, 13):
        setattr(traceback, "_extract_caret_anchors_from_line_segment", _no_carets)  # noqa: B010
