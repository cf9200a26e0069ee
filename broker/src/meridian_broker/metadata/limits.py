# SPDX-License-Identifier: Apache-2.0
"""Limits that every metadata store enforces, and the path arithmetic that they share.

The limits are those of the strictest store (etcd's defaults, rounded down), so that data written to one store always
fits into another. Paths are printable ASCII; ``metadata.keys`` escapes everything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meridian_broker.metadata.store import Check, Delete, MetadataError, Put

MAX_VALUE_BYTES = 1 << 20
"""Largest value. etcd refuses requests over 1.5 MiB."""

MAX_OPERATIONS = 128
"""Most checks, and most operations, of one transaction. etcd's ``--max-txn-ops`` default."""

MAX_PATH_LENGTH = 1 << 15
"""Longest path in characters: the longest topic name, every byte of it escaped, fits."""

_PATH = re.compile(r"(?:/[!-.0-~]+)+")
_PREFIX = re.compile(r"/[!-~]*")


class BadRequest(MetadataError):
    """The caller asked for something no store can do. A bug in the caller, not in the store."""


def check_path(path: str) -> str:
    """Returns the path if it is valid.

    :raises BadRequest: it is empty, too long, not absolute, ends in ``/`` or is not printable ASCII.
    """
    if len(path) > MAX_PATH_LENGTH or _PATH.fullmatch(path) is None:
        raise BadRequest(
            f"{path[:80]!r} is not a metadata path: printable ASCII like /a/b, at most {MAX_PATH_LENGTH} long"
        )
    return path


def check_prefix(prefix: str) -> str:
    """The prefix itself, when it begins with ``/``; it may end anywhere.

    :raises BadRequest: it does not.
    """
    if len(prefix) > MAX_PATH_LENGTH or _PREFIX.fullmatch(prefix) is None:
        raise BadRequest(f"{prefix[:80]!r} is not a metadata prefix: it must begin with / and be printable ASCII")
    return prefix


def check_value(path: str, value: bytes) -> bytes:
    """:raises BadRequest: the value is over the limit."""
    if len(value) > MAX_VALUE_BYTES:
        raise BadRequest(f"the value for {path} has {len(value)} bytes, over the limit of {MAX_VALUE_BYTES}")
    return value


def check_transaction(checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
    """:raises BadRequest: too many parts, a path written twice, a bad path or value."""
    if max(len(checks), len(operations)) > MAX_OPERATIONS:
        raise BadRequest(
            f"{len(checks)} checks and {len(operations)} operations at once: the limit is {MAX_OPERATIONS} each"
        )
    for check in checks:
        check_path(check.path)
    written: set[str] = set()
    size = 0
    for operation in operations:
        if check_path(operation.path) in written:
            raise BadRequest(f"a transaction writes {operation.path} twice")
        written.add(operation.path)
        if isinstance(operation, Put):
            size += len(operation.value)
    if size > MAX_VALUE_BYTES:
        raise BadRequest(f"a transaction writes {size} bytes, over the limit of {MAX_VALUE_BYTES}")


def after_prefix(prefix: str) -> str:
    """The least string greater than every string that starts with ``prefix``."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def collect_children(base: str, page: Sequence[str], names: set[str]) -> str:
    """Add to ``names`` the names one level below ``base`` (which ends in ``/``) that a sorted page of paths shows.

    Returns where the next page begins: right after the last path, or after everything below the last child, so that a
    child with a million descendants costs one page.
    """
    at = base
    for path in page:
        name, separator, _ = path[len(base) :].partition("/")
        names.add(name)
        at = f"{base}{name}0" if separator else path + "\x00"  # "0" is the character after "/"
    return at
