# SPDX-License-Identifier: Apache-2.0
"""Metadata of a settings field beyond its type and default, and the error for invalid values."""

from __future__ import annotations

from dataclasses import field
from typing import Any


class SettingsError(Exception):
    """A setting cannot be used. The message names the key, its source and what is expected."""


def whole(default: int, minimum: int, maximum: int, *, key: str | None = None) -> Any:
    """A whole number with inclusive bounds; ``key`` when the snake_case name does not lead back to Pulsar's."""
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "key": key})
