# SPDX-License-Identifier: Apache-2.0
"""Calls every waiting callback: an exception in one must not keep the others from being called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec

Args = ParamSpec("Args")


def notify_all(callbacks: Iterable[Callable[Args, object]], *args: Args.args, **kwargs: Args.kwargs) -> None:
    """Call each of them, even if an earlier one raised. The first exception is raised at the end.

    :raises Exception: the first one; the others are its notes.
    """
    first: Exception | None = None
    for callback in callbacks:
        try:
            callback(*args, **kwargs)
        except Exception as error:
            if first is None:
                first = error
            else:
                first.add_note(f"and another callback raised {error!r}")
    if first is not None:
        raise first
