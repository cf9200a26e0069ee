# SPDX-License-Identifier: Apache-2.0
"""File descriptors: as many as the system allows, and never all of them for clients.

A broker without free descriptors can open no segment and reach no other region. So each kind of connection gets a part
of the limit, and the rest is reserved for the ledgers, the metadata store and the links.
"""

from __future__ import annotations

import logging
import resource
from typing import Final, NamedTuple

from meridian_broker.bounds.http import HANDSHAKES, STRANGERS

log = logging.getLogger(__name__)

RESERVE_MAX: Final = 4096
"""Descriptors that the broker itself never needs more than."""
LIMIT_MAX: Final = 1 << 20
"""A higher limit, or none at all, counts as this."""


class ConnectionLimits(NamedTuple):
    """Most connections of each kind."""

    clients: int
    """To the Pulsar ports, by clients that have sent CONNECT."""
    strangers: int
    """To the Pulsar ports, by clients that have not sent CONNECT."""
    http: int
    handshakes: int
    """TLS handshakes on any port."""


def raise_limit() -> None:
    """Raise this process's limit of open files as far as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)


def limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, LIMIT_MAX)


def connection_limits(files: int, http_most: int) -> ConnectionLimits:
    """How many connections this limit of open files allows: half of it is reserved, at most ``RESERVE_MAX``.

    :param http_most: what the settings allow the HTTP ports; clients get the rest.
    """
    free = files - min(files // 2, RESERVE_MAX)
    http, strangers, handshakes = min(free // 4, http_most), min(free // 8, STRANGERS), min(free // 16, HANDSHAKES)
    return ConnectionLimits(free - http - strangers - handshakes, strangers, http, handshakes)
