# SPDX-License-Identifier: Apache-2.0
"""Metadata of a settings field beyond its type and default, and the error for invalid values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

DYNAMIC: Final[Mapping[str, Any]] = {"dynamic": True}
"""Marks a setting that can be changed while brokers run: its users read it again, or follow ``LiveSettings``."""


class SettingsError(Exception):
    """A setting cannot be used. The message names the key, its source and what is expected."""


def whole(default: int, minimum: int, maximum: int, *, key: str | None = None, dynamic: bool = False) -> Any:
    """A whole number with inclusive bounds.

    :param key: if it cannot be derived from the snake_case name.
    :param dynamic: see ``DYNAMIC``.
    """
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "key": key, "dynamic": dynamic})
