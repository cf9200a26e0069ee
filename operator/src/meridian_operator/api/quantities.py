# SPDX-License-Identifier: Apache-2.0
"""Durations (``72h``) and sizes (``10Gi``) as written in manifests."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from meridian_operator.api.fields import Sentence

DURATION_PATTERN: Final = r"^([0-9]{1,9}ms|[0-9]{1,8}s|[0-9]{1,7}m|[0-9]{1,5}h|[0-9]{1,4}d)+$"
"""Bounded to years: anything longer is a typo and would overflow elsewhere."""
SIZE_PATTERN: Final = r"^[0-9]{1,12}(Ki|Mi|Gi|Ti)?$"
UNLIMITED: Final = "-1"
"""In retention, in place of a duration or size."""

_MILLIS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def duration_ms(text: str) -> int:
    """Milliseconds in a duration such as ``1h30m``.

    :raises ValueError: ``text`` is not a duration.
    """
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write for example 500ms, 30s, 72h or 7d")
    return sum(int(number) * _MILLIS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h|d)", text))


def size_bytes(text: str) -> int:
    """Bytes in a size such as ``10Gi``.

    :raises ValueError: ``text`` is not a size.
    """
    found = re.fullmatch(r"([0-9]{1,12})(Ki|Mi|Gi|Ti)?", text)
    if found is None:
        raise ValueError(f"{text!r} is not a size: write for example 512Mi or 10Gi")
    return int(found[1]) * _BYTES[found[2] or ""]


def _checked_duration(text: str) -> str:
    duration_ms(text)
    return text


def _checked_size(text: str) -> str:
    size_bytes(text)
    return text


Duration = Annotated[
    str,
    Field(pattern=DURATION_PATTERN, max_length=32),
    Sentence("must be a duration such as 500ms, 30s, 72h or 7d, at most 9999 days"),
    AfterValidator(_checked_duration),
]
Size = Annotated[
    str,
    Field(pattern=SIZE_PATTERN, max_length=16),
    Sentence("must be a size in bytes, or with a unit such as 512Mi or 10Gi"),
    AfterValidator(_checked_size),
]
