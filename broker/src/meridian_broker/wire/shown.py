# SPDX-License-Identifier: Apache-2.0
"""Makes foreign text safe to display.

Names, reasons and errors contain text that clients sent. In a log, a line break forges a line that this broker never
wrote; on a terminal, an escape sequence can clear the screen or change earlier output. So characters that are
not printable (C0 and C1 controls, line separators, marks that change the writing direction) are shown as escapes.
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls, line separators, overrides and isolates of the writing direction, lone surrogates."""


def is_name(text: str) -> bool:
    """Whether the text is allowed as a name. Refused are names that could be displayed as another name or as a separate
    line, and ``.`` and ``..``, which HTTP clients remove from a path."""
    return not _HIDDEN.search(text) and text not in (".", "..")


def shown(text: str) -> str:
    r"""The text with each character that is not printable as an escape, such as ``\n`` or ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def shown_lines(text: str) -> str:
    """Like ``shown``, but line by line, for text whose line breaks are our own."""
    return "\n".join(map(shown, text.split("\n")))


def cut(text: str, most: int) -> str:
    """At most ``most`` bytes of UTF-8, and how many were left out."""
    if 4 * len(text) <= most or len(whole := text.encode()) <= most:
        return text
    kept = whole[: most - 40].decode(errors="ignore")
    return f"{kept} ... {len(whole) - len(kept.encode())} more bytes"
