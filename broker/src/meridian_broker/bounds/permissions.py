# SPDX-License-Identifier: Apache-2.0
"""Limits on permissions. Every broker of a region has all of them in memory.

`metadata/permissions.py` checks against these.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes, Items, Names

ROLE_BYTES: Final[Bytes] = 1 << 10
"""Name of a role that gets a permission. With every byte escaped, it fits after the longest topic name in a path of the
metadata store."""

ROLES_PER_OBJECT: Final[Names] = 1000
"""Roles with permissions on one namespace, or on one topic. All of them are read for each change of one."""

GRANTS_PER_NAMESPACE: Final[Items] = 10_000
"""Roles with permissions on topics of one namespace, each counted once for each topic. Permissions may be granted on
topics that do not exist."""
