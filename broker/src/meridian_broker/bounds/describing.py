# SPDX-License-Identifier: Apache-2.0
"""Limits on `POST /meridian/v1/describe`, which programs call every few seconds for everything that they watch.

`admin/meridian/describing.py` checks against these.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Entries, Items, Milliseconds, Subscriptions, Topics

DESCRIBED_TOPICS: Final[Topics] = 1000
"""Topics in one request. Others get a turn of the event loop after each."""

DESCRIBED_SUBSCRIPTIONS: Final[Subscriptions] = 1000
"""Subscriptions in one request, across all its topics."""

DESCRIBE_MS: Final[Milliseconds] = 1000
"""The answer ends after this time, with the topics described by then; the caller asks for the rest. So one request
takes no longer, however slow the metadata store is."""

DESCRIBED_WALK: Final[Entries] = 2000
"""Entries behind a cursor that are counted one by one; everything farther ahead counts as backlog. One subscription's
statistics count 100,000."""

DESCRIBE_REMEMBERED: Final[Items] = 10_000
"""Lists of partitioned topics by namespace, and schemas by topic, kept in memory, this many of each: some megabytes."""
