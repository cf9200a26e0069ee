# SPDX-License-Identifier: Apache-2.0
"""Progress as bytes, and as digests of its parts.

A region writes progress to its log and sends it to the others as bytes. To learn what another region lacks, it compares
digests, one per part: an origin's ledger in an epoch. Only parts that differ are extracted and sent.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from hashlib import blake2b
from typing import Final, Self

from meridian_broker.positions import reports
from meridian_broker.positions.acks_by_region import extract_acks, put_acks, take_acks
from meridian_broker.positions.ackset import FLOOR
from meridian_broker.positions.beginning import UNKNOWN, Beginning
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.layered import NO_ACKS, LayeredAcks
from meridian_broker.positions.layers import Layers, Touched, check_order, known_of
from meridian_broker.positions.varints import Reader, put_bytes, put_number

FORMAT_VERSION: Final = 5
"""Each progress is written in the lowest format that can express it: format 1, like nearly all deltas, without the
subscription's beginning; format 3 only with a rewind that applies by time alone. A version that knows only older
formats ignores publish times and would never notice what such a rewind rules, so it must refuse the format. Format 4
adds reports of entries owed nowhere (R11); format 5, for deltas only, acks kept once for several seeks by time."""
REPORTS: Final = -2
"""The ledger under which ``digests`` shows the reports."""

DigestKey = tuple[Stamp, str, int]
"""``(epoch, origin region, ledger)``. The ledger may be ``FLOOR``; the region ``""`` is the rewind itself."""


class EncodedAcks(LayeredAcks):
    """Acks in layers, with reports: can be written, compared and split into parts."""

    __slots__ = ("reports",)

    def __init__(self) -> None:
        super().__init__()
        self.reports = reports.NONE
        """What each region reports as owed nowhere there. Replaced, never changed in place."""

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The first byte is the format's version. Canonical: equal progress, equal bytes. Exception: a delta that keeps
        acks once for all seeks by time is encoded, and decoded, in that form."""
        if isinstance(self._layers, Touched) and self._layers.timeless:
            out = bytearray((5,))
            put_bytes(out, self._layers.heads)
            put_acks(out, self._layers.timeless)
            return bytes(out + self._encode_layers())
        self._normalise()
        return bytes(self._encode_layers())

    def _encode_layers(self) -> bytearray:
        """Everything except the timeless acks."""
        if self.reports:
            out = bytearray((4,))
            reports.put(out, self.reports)
            self.beginning.put(out)
        elif self._needs_times():
            out = bytearray((3,))
            self.beginning.put(out)
        elif self.beginning == UNKNOWN:
            out = bytearray((1,))
        else:
            out = bytearray((2,))
            self.beginning.put(out)
        put_acks(out, self._base)
        put_number(out, len(self._layers or ()))
        for layer in self._layers or ():
            layer.put(out)
        return out

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """:raises ValueError: another format, or bytes that are not valid progress."""
        reader = Reader(data)
        version = reader.byte()
        if not 1 <= version <= FORMAT_VERSION:
            raise ValueError(unreadable("the progress", version, FORMAT_VERSION))
        if version == 5:
            return cls._decode_timeless(reader)
        result = cls()
        if version > 3:
            result.reports = reports.take(reader)
            if not result.reports:
                raise reader.broken("there are no reports")
        if version > 1:
            result.beginning = Beginning.take(reader)
            if result.beginning == UNKNOWN:
                if version == 2:
                    raise reader.broken("the beginning is missing")
                result.beginning = UNKNOWN
        result._base = {sys.intern(region): acks for region, acks in take_acks(reader).items()} or NO_ACKS
        layers = [Layer.take(reader) for _ in range(reader.count(6))]
        reader.end()
        if layers:
            check_order(layers)
            result._layers = Layers(layers)
        if version == 3 and not result._needs_times():
            raise reader.broken("no rewind applies by time alone")
        result._forget_overruled()
        return result

    @classmethod
    def _decode_timeless(cls, reader: Reader) -> Self:
        """Format 5 after its version byte: the known rewinds, the acks kept once for all of them, then the rest."""
        known = known_of(reader.bytes())
        timeless = {sys.intern(region): acks for region, acks in take_acks(reader).items()}
        rest = reader.rest()
        if not known.notes_once or not timeless or rest[:1] == b"\x05":
            raise reader.broken("the record of several seeks by time is empty")
        result = cls.decode(rest)
        touched = result._layers or ()
        if any(known.find(layer.epoch) is None for layer in touched):
            raise reader.broken("a rewind is not among those that are known")
        result._layers = Touched(known, touched)
        result._layers.timeless = timeless
        return result

    def _needs_times(self) -> bool:
        layers = self._layers
        return layers is not None and any(one.publish_time_ms is not None and not one.rules for one in layers)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def digests(self) -> dict[DigestKey, int]:
        """Stable 64-bit digests of all parts. Equal progress has equal digests; parts that differ must be exchanged.

        Parts of different incarnations never have equal digests.
        """
        self._normalise()
        result: dict[DigestKey, int] = {}
        if self.beginning is not UNKNOWN:
            result[ZERO, "", FLOOR] = self.beginning.digest()
        incarnation = self.beginning.bare().digest()
        if self.reports:
            result[ZERO, "", REPORTS] = reports.digest(self.reports) ^ incarnation
        for epoch, acks in self._by_epoch():
            for region, one in acks.items():
                for ledger, digest in one.digests().items():
                    result[epoch, region, ledger] = digest ^ incarnation
        for layer in self._layers or ():
            out = bytearray()
            layer.put_head(out)
            result[layer.epoch, "", FLOOR] = int.from_bytes(blake2b(out, digest_size=8).digest(), "big") ^ incarnation
        return result

    def digest(self, key: DigestKey) -> int:
        """One of ``digests``, 0 if there is no such part: for updating only digests of parts that changed."""
        epoch, region, ledger = key
        if not region:
            return self.digests().get(key, 0)
        acks = self.acks(epoch, region)
        digest = 0 if acks is None else acks.digest(ledger)
        return digest ^ self.beginning.bare().digest() if digest else 0

    def extract(self, keys: Collection[DigestKey]) -> Self:
        """The parts with these keys, as progress of its own. Keys without a part are ignored."""
        self._normalise()
        wanted: dict[Stamp, dict[str, set[int]]] = {}
        for epoch, region, ledger in keys:
            wanted.setdefault(epoch, {}).setdefault(region, set()).add(ledger)
        result = type(self)()
        whole = wanted.get(ZERO, {}).get("", ())
        result.beginning = self.beginning if FLOOR in whole else self.beginning.bare()
        result.reports = self.reports if REPORTS in whole else reports.NONE
        result._base = extract_acks(self._base, wanted.get(ZERO, {}))
        layers = []
        for layer in self._layers or ():
            if layer.epoch in wanted:
                part = layer.head()
                part.acks = extract_acks(layer.acks, wanted[layer.epoch])
                layers.append(part)
        result._layers = Layers(layers) or None
        result._forget_overruled()
        return result

    def _forget_overruled(self) -> None:
        if self._layers is None:
            return
        self._layers = self._layers.not_overruled()
        if not self._base_counts():
            self._base = NO_ACKS
