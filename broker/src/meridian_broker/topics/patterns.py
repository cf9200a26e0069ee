# SPDX-License-Identifier: Apache-2.0
"""Patterns over topic names, as clients send them.

A pattern comes from anybody who can connect, and is tried on every topic of a namespace. Python's own expressions go
back over what they tried: a pattern of twenty characters can keep the loop busy for years. RE2 takes time in proportion
to the name, has no patterns that take longer, and is what Pulsar uses; so its syntax is what clients expect, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import re2
from crc32c import crc32c

MEMORY_BYTES: Final = 256 << 10
"""What one pattern's automaton may take; beyond that RE2 is slower, not larger."""
_PARTITION: Final = "-partition-"


class BadPattern(ValueError):
    """RE2 cannot read it: the client's mistake, or a feature that only engines with backtracking have."""


class TopicPattern:
    """One pattern. The domain in it, if any, is not looked at."""

    __slots__ = ("_expression", "text")

    def __init__(self, text: str) -> None:
        """:raises BadPattern: it is none."""
        options = re2.Options()
        options.max_mem = MEMORY_BYTES
        options.log_errors = False
        self.text = text
        try:
            self._expression = re2.compile(_without_domain(text), options)
        except re2.error as error:
            (reason,) = error.args
            said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
            raise BadPattern(f"{text!r} is no pattern that RE2 reads: {said}") from None

    def matches(self, topic: str) -> bool:
        """Does the whole name match? A partition matches when its partitioned topic does."""
        name = _without_domain(topic)
        base, separator, index = name.rpartition(_PARTITION)
        if separator and index.isdecimal():
            name = base
        return self._expression.fullmatch(name) is not None


def _without_domain(text: str) -> str:
    return text.partition("://")[2] or text


def digest(topics: Iterable[str]) -> str:
    """The hash by which clients tell whether a list is the one they know: CRC32C over the sorted names."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
