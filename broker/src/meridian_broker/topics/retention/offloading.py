# SPDX-License-Identifier: Apache-2.0
"""Which ledgers of a topic are due to be copied to the object store, and which to leave where they were stored.

As in Pulsar, a threshold of bytes counts from the newest ledger back, and what lies beyond it is due; a threshold of
age counts from when a ledger was sealed. The last ledger, which may still be written, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import Span
    from meridian_broker.metadata.rules import Rules


def due(spans: Sequence[Span], rules: Rules, now_ms: int) -> list[int]:
    """The ledgers that are to have a copy by now, the oldest first.

    :param spans: all ledgers of a topic, in order.
    """
    most, age = rules.offload_threshold_bytes, rules.offload_threshold_seconds
    if most < 0 and age < 0:
        return []
    found, newer = [], 0
    for span in reversed(spans):
        newer += max(span.size, 0)
        is_over = 0 <= most < newer
        is_old = age >= 0 and now_ms - span.sealed_ms >= age * 1000
        if span is not spans[-1] and span.entries > 0 and (is_over or is_old):
            found.append(span.ledger_id)
    return found[::-1]


def before(spans: Sequence[Span], upto: Position) -> list[int]:
    """The ledgers that lie before a message, the oldest first."""
    return [span.ledger_id for span in spans[:-1] if span.entries > 0 and span.ledger_id < upto.ledger]


def first_not_copied(spans: Sequence[Span], is_copied: Callable[[int], bool]) -> Position:
    """The first entry without a copy; after the last ledger if all are copied."""
    for span in spans:
        if not is_copied(span.ledger_id):
            return Position(span.ledger_id, 0)
    return Position(spans[-1].ledger_id, max(spans[-1].entries, 0)) if spans else Position(-1, -1)
