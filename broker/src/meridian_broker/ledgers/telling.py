# SPDX-License-Identifier: Apache-2.0
"""Telling everybody who waits: the mistake of one must not leave the others in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec

Said = ParamSpec("Said")


def tell_each(callbacks: Iterable[Callable[Said, object]], *said: Said.args, **more: Said.kwargs) -> None:
    """Call every one, also where one before it raised. What was raised comes at the end, so that it is not hidden.

    :raises Exception: the first that was raised; others are its notes.
    """
    first: Exception | None = None
    for callback in callbacks:
        try:
            callback(*said, **more)
        except Exception as error:
            if first is None:
                first = error
            else:
                first.add_note(f"and another callback raised {error!r}")
    if first is not None:
        raise first
