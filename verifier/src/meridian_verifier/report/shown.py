# SPDX-License-Identifier: Apache-2.0
"""Names and reasons that others chose, as text that a terminal or a page shows and does not obey."""

from __future__ import annotations

from html import escape

import rich.markup


def printable(text: str) -> str:
    """Escapes characters that would change a terminal or a page: controls, and the writing direction."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def markup(text: str) -> str:
    """The same for a rich console, to which ``[red]`` is a command and a ``[/x]`` that closes nothing a mistake."""
    return rich.markup.escape(printable(text))


def html(text: str) -> str:
    """The same for a page."""
    return escape(printable(text))
