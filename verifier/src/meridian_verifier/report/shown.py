# SPDX-License-Identifier: Apache-2.0
"""Escapes untrusted names and reasons, so that a terminal or a page shows them and does not obey them."""

from __future__ import annotations

from html import escape

import rich.markup


def printable(text: str) -> str:
    """Escapes characters that would change a terminal or a page: controls, and the writing direction."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def markup(text: str) -> str:
    """The same for a rich console, where ``[red]`` is markup and an unmatched ``[/x]`` an error."""
    return rich.markup.escape(printable(text))


def html(text: str) -> str:
    """The same for a page."""
    return escape(printable(text))
