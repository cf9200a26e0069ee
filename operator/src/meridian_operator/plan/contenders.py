# SPDX-License-Identifier: Apache-2.0
"""Several objects may name the same topic or subscription: the oldest manages it, and no other touches a region.

They may be of different kinds, so an object is identified by its UID: one of another kind may have the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Contender(NamedTuple):
    """An object that names the topic or subscription. Contenders sort by age."""

    created: str
    namespace: str
    name: str
    kind: str
    uid: str
    leaving: bool = False
    """The object is being deleted."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def ruler(contenders: Iterable[Contender]) -> Contender | None:
    """The one that manages it; None if there are none."""
    return min(contenders, default=None)


def heir(contenders: Iterable[Contender], uid: str) -> Contender | None:
    """The contender that takes over when the given object is deleted; None: there is no other."""
    return min((one for one in contenders if not one.leaving and one.uid != uid), default=None)
