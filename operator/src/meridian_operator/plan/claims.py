# SPDX-License-Identifier: Apache-2.0
"""Several objects may name the same topic or subscription: the oldest is in control, and only it touches a region."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Claim(NamedTuple):
    """An object that names the topic or subscription. Claims sort by age."""

    created: str
    namespace: str
    name: str
    leaving: bool = False
    """The object is being deleted."""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_of(self, namespace: str, name: str) -> bool:
        return (self.namespace, self.name) == (namespace, name)


def ruler(claims: Iterable[Claim]) -> Claim | None:
    """The claim that is in control; None if there are no claims."""
    return min(claims, default=None)


def heir(claims: Iterable[Claim], namespace: str, name: str) -> Claim | None:
    """The claim that takes control when the given object is deleted; None: no other object has one."""
    return min((one for one in claims if not one.leaving and not one.is_of(namespace, name)), default=None)
