# SPDX-License-Identifier: Apache-2.0
"""Limits on connections whose client is not identified yet: to an HTTP port, and to every TLS port.

`admin/http/connections.py`, `admin/http/requests.py` and `gateway/tls_listeners.py` check against these.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes, Clients, Headers, Seconds

HEADER_SECONDS: Final[Seconds] = 10.0
"""From the first byte of a request, or from the connection, to the end of its headers."""

BODY_SECONDS: Final[Seconds] = 60.0
"""From the end of the headers to the end of the body."""

IDLE_SECONDS: Final[Seconds] = 60.0
"""How long a connection stays open without a request."""

STALLED_SECONDS: Final[Seconds] = 120.0
"""How long a client may read nothing of an answer. The streams of an export have the same limit."""

HEADER_BYTES: Final[Bytes] = 64 << 10
"""Request line and headers together."""

HEADERS: Final[Headers] = 100
"""Headers of one request."""

BODY_BYTES: Final[Bytes] = 256 << 10
"""Body of a request."""

LARGE_BODY_BYTES: Final[Bytes] = 2 << 20
"""The same where a body is a schema, quoted as JSON, the progress of a subscription, or a list of shadows."""

PROBES: Final[Clients] = 64
"""Connections to `probeServicePort`, half of them from one address. Probes are few and short."""

STRANGERS: Final[Clients] = 1000
"""Connections to the Pulsar ports without a CONNECT, or an eighth of those that the limit of open files allows. One
more ends the oldest: a client sends CONNECT at once."""

HANDSHAKES: Final[Clients] = 1000
"""TLS handshakes in progress at all ports, or a sixteenth of the connections that the limit of open files allows; half
of them from one address. One more ends the oldest: each takes milliseconds."""

HANDSHAKE_SECONDS: Final[Seconds] = 10.0
"""From the connection to the end of the TLS handshake, which takes two round trips."""
