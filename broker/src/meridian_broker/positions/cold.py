# SPDX-License-Identifier: Apache-2.0
"""Compact encoding of idle ack sets: one blob of bytes near the entropy bound.

Three temperatures. *Warm*: a bitmap for each ledger, for acks at full speed. *Cool*: only ledgers whose bitmap did not
change are encoded (``Claims``). *Cold*: no ledger changed, and all become one blob. Accessing a cold set splits the
blob again and decodes the bitmaps of the ledgers needed.

The bytes live in memory only and have no version.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.positions.claims import Claims, put_position, take_position
from meridian_broker.positions.position import Position
from meridian_broker.positions.varints import Reader, put_bytes, put_number

Links = list[tuple[int, Position]]

AT_ONCE: Final = 32
"""Ledgers of a set encoded per call. Each takes 0.1 ms, or 1.5 ms if its holes are few and scattered."""


def cool_claims(detail: dict[int, Claims]) -> bool:
    """Called once in a while. :returns: whether all may become one blob: nothing changed since the last call."""
    resting = [claims for claims in detail.values() if claims.rests()]
    warm = [claims for claims in resting if not claims.is_cold]
    if len(warm) <= AT_ONCE and len(resting) == len(detail) and all(claims.partial is None for claims in resting):
        return True
    for claims in warm[:AT_ONCE]:
        claims.set_cold(claims.cold_form(), claims.count())
    return False


def put_cold(detail: dict[int, Claims]) -> bytes:
    """Ledgers that are all idle, as one blob."""
    out = bytearray()
    put_number(out, sum(claims.count() for claims in detail.values()))
    put_number(out, len(detail))
    for ledger in sorted(detail):
        claims = detail[ledger]
        put_number(out, ledger)
        put_number(out, claims.count())
        put_number(out, 0 if claims.tail is None else claims.tail + 2)
        put_number(out, claims.link is not None)
        if claims.link is not None:
            put_position(out, claims.link)
        put_bytes(out, claims.cold_form())
    return bytes(out)


def count_cold(data: bytes) -> int:
    """The number of entry ids."""
    return Reader(data).number()


def take_cold(data: bytes) -> tuple[dict[int, Claims], Links | None]:
    """The ledgers and their links, taken apart again."""
    reader = Reader(data)
    reader.number()
    detail: dict[int, Claims] = {}
    links: Links = []
    for _ in range(reader.number()):
        ledger, count, tail = reader.number(), reader.number(), reader.number()
        claims = detail[ledger] = Claims(tail - 2 if tail else None)
        if reader.number():
            claims.link = take_position(reader)
            links.append((ledger, claims.link))
        claims.set_cold(reader.bytes(), count)
    return detail, links or None
