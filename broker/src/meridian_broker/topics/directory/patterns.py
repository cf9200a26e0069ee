# SPDX-License-Identifier: Apache-2.0
"""Patterns over topic names, from clients and users of the admin API.

Anyone who can connect may send a pattern, which is matched against every topic of a namespace. Python's regular
expressions backtrack: a pattern of twenty characters can block the loop for years. RE2 matches in time linear in the
name, whatever the pattern, and is what Pulsar uses, so clients expect its syntax. Every external pattern is compiled
here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import re2
from crc32c import crc32c

MEMORY_BYTES: Final = 256 << 10
"""Memory limit of one pattern's automaton; beyond it RE2 gets slower, not larger."""
LENGTH_MAX: Final = 1000
"""Characters of a pattern. Clients' patterns have a lower limit of their own."""
_PARTITION: Final = "-partition-"
_GLOB: Final = {"*": ".*", "?": "."}


class BadPattern(ValueError):
    """RE2 does not accept it: a mistake, or a feature that only engines with backtracking have."""


class WholeName:
    """A pattern over full topic names, with their domain, that has to match the whole name."""

    __slots__ = ("_expression",)

    def __init__(self, text: str) -> None:
        """:param text: a regular expression. :raises BadPattern: it is not valid."""
        self._expression = _compiled(text, text)

    @classmethod
    def glob(cls, text: str) -> WholeName:
        """``*`` matches any characters, ``?`` one, ``[...]`` one of a set, ``[!...]`` one outside of it.

        :raises BadPattern: it is not valid, for example because a range of a set is reversed.
        """
        made = cls.__new__(cls)
        made._expression = _compiled(_from_glob(text), text)
        return made

    def matches(self, topic: str) -> bool:
        return self._expression.fullmatch(topic) is not None


class TopicPattern:
    """A pattern over topic names. A domain in it is ignored."""

    __slots__ = ("_expression", "text")

    def __init__(self, text: str) -> None:
        """:raises BadPattern: it is not valid."""
        self.text = text
        self._expression = _compiled(_without_domain(text), text)

    def matches(self, topic: str) -> bool:
        """Whether the whole name matches. A partition matches if its partitioned topic does."""
        name = _without_domain(topic)
        base, separator, index = name.rpartition(_PARTITION)
        if separator and index.isdecimal():
            name = base
        return self._expression.fullmatch(name) is not None


def _compiled(expression: str, text: str) -> Any:
    """:raises BadPattern: RE2 does not accept it. ``text`` is what its author wrote."""
    if len(text) > LENGTH_MAX:
        raise BadPattern(f"the pattern has {len(text)} characters; the limit is {LENGTH_MAX}")
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        (reason,) = error.args
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise BadPattern(f"{text!r} is not a regular expression that RE2 accepts: {said}") from None


def _from_glob(text: str) -> str:
    parts, at = [], 0
    while at < len(text):
        one = text[at]
        at += 1
        if one == "[" and (end := text.find("]", at + 1 + text.startswith("!", at))) > 0:
            is_negated = text[at] == "!"
            inside = re.sub(r"[\\\[^]", r"\\\g<0>", text[at + is_negated : end])
            parts.append(f"[{'^' * is_negated}{inside}]")
            at = end + 1
        else:
            parts.append(_GLOB.get(one) or re2.escape(one))
    return "(?s)" + "".join(parts)


def _without_domain(text: str) -> str:
    return text.partition("://")[2] or text


class Digest:
    """The hash by which clients detect whether a list changed: CRC32C over the sorted names."""

    def __init__(self) -> None:
        self._crc = 0
        self._count = 0
        self.encoded_bytes = 0
        """Size of all names in UTF-8."""

    def add(self, topics: Sequence[str]) -> None:
        """Add the next names, in order."""
        if topics:
            text = ",".join(topics).encode()
            self.encoded_bytes += len(text) - len(topics) + 1
            self._crc = crc32c(b"," + text if self._count else text, self._crc)
            self._count += len(topics)

    def __str__(self) -> str:
        return self._crc.to_bytes(4, "little").hex()
