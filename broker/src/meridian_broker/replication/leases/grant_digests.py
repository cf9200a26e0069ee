# SPDX-License-Identifier: Apache-2.0
"""Digests of the grants between one voter and one holder, to renew them without naming each stream (R26).

Ten thousand streams are renewed every two seconds although nothing about them changes. So both ends keep the granted
requests, divided into parts, with a digest of each part. A renewal carries the digests. Where the voter's own digest is
the same, the renewal has the effect of a ``LeaseAsk`` with exactly those names, and the answer that of its answer,
because equal digests mean equal sets. Where it differs, both ends empty that part, and its streams are requested by
name, as the first time.

So a digest never proves more than a request by name did. The invariant, in the terms of ``leases.py``:

    A holder counts a renewal for a stream only if its voter, after it was asked, renewed its promise for exactly that
    stream, in that term, to that run of the holder, among those voters, with that preferred holder, and had it on
    disk.

- A digest covers all of that: ``AskItem``, keyed with the name of the holder's run.
- The voter keeps only grants that it made by name in this run and has on disk. After a restart it begins with none,
  whatever is on its disk. A grant is removed the moment its stream is granted to another holder, released, or
  requested with another term, mark or preferred holder.
- Before it renews, the voter checks each promise of the part: are the known voters unchanged, and is the topic and
  subscription whose log holds the promise still the same one? If not, or if the promise has expired, the part differs.
  It also writes a line to a log that a later broker of its region would have taken over, as for any renewal.
- The holder counts a renewal only for grants that it had when it asked and has kept since. A grant that was removed
  and created again between question and answer is newer than the question, so it is counted from a later one.
- Correctness does not depend on the order or number of messages, or on the connection they use. A late or duplicate
  question only makes the voter's promise longer than the holder assumes. An answer counts from the moment its question
  was asked, however often it arrives. A lost message extends nothing. Ends that disagree find out with the next
  question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from meridian_broker.replication.leases.messages import AskItem, Stream

PARTS: Final = 128
"""Of ten thousand streams, a difference in one causes eighty to be requested by name. Part of the protocol."""
DIGEST_BYTES: Final = 16

Grant = TypeVar("Grant")


@dataclass(slots=True)
class Part(Generic[Grant]):
    """Some of the grants."""

    digest: int = 0
    """Digest of its content, independent of order."""
    grants: dict[Stream, Grant] = field(default_factory=dict)


class GrantDigests(Generic[Grant]):
    """See the module's docstring. Each end decides what it stores with a grant."""

    def __init__(self, holder: str) -> None:
        """:param holder: the run of the broker that holds the grants."""
        self._key = blake2b(holder.encode(), digest_size=32).digest()
        self._prints: dict[Stream, int] = {}
        self.parts: dict[int, Part[Grant]] = {}
        """The non-empty parts."""

    def __len__(self) -> int:
        return len(self._prints)

    def put(self, item: AskItem, grant: Grant) -> None:
        """The stream was granted; an earlier grant of it is replaced."""
        self.drop(item.stream)
        self._prints[item.stream] = printed = self._print(item)
        part = self.parts.setdefault(printed % PARTS, Part())
        part.digest ^= printed
        part.grants[item.stream] = grant

    def drop(self, stream: Stream) -> None:
        """The stream is to be asked for by name; no effect if it is not kept."""
        printed = self._prints.pop(stream, None)
        if printed is not None:
            part = self.parts[printed % PARTS]
            part.digest ^= printed
            del part.grants[stream]
            if not part.grants:
                assert part.digest == 0
                del self.parts[printed % PARTS]

    def empty(self, index: int) -> list[Grant]:
        """Remove and return all grants of a part."""
        part = self.parts.pop(index, None)
        if part is None:
            return []
        for stream in part.grants:
            del self._prints[stream]
        return list(part.grants.values())

    def digests(self) -> Iterator[tuple[int, int]]:
        """The digest of each non-empty part."""
        return ((index, part.digest) for index, part in sorted(self.parts.items()))

    def _print(self, item: AskItem) -> int:
        """Each word with its length before it, so that no two items read the same."""
        words = (*item.stream, item.preferred, str(item.term), str(item.mark))
        text = "".join(f"{len(word)}:{word}" for word in words)
        return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES, key=self._key).digest(), "big")
