# SPDX-License-Identifier: Apache-2.0
"""Digests of the grants between one voter and one holder, to renew them without naming each stream (R26).

Ten thousand shares are renewed every two seconds although nothing about them changes. So both ends keep the asks that
were granted, divided into parts, with a digest of each part. A renewal carries the digests. Where the voter's own is
the same, the renewal is what a ``LeaseAsk`` with just those names would have been, and the answer what its answer would
have been, because equal digests are equal sets. Where it differs, both empty that part, and its streams are asked for
by name, as at first.

So a digest never proves more than a request by name did. The invariant, in the terms of ``leases.py``:

    A holder counts a renewal for a stream only if its voter, after it was asked, renewed its promise for exactly that
    stream, in that term, to that life of the holder, among those voters, with that home, and had it on disk.

- A digest is over all of that: ``AskItem``, keyed with the name of the holder's life.
- The voter keeps only grants that this life of it made by name and has on disk. A voter that starts anew begins with
  none, whatever it finds on its disk. What is granted to another, given back, or asked for with another term, mark or
  home is removed at that moment.
- Before it renews, the voter looks at each promise of the part: does it know the same of who votes, and is it the
  same topic and subscription, in whose log it is written? If not, or if its time is over, the part differs. And it
  writes a line into a log that a later broker of its region would have taken over, as for any renewal.
- The holder counts it for grants that it kept when it asked, and has kept since. What was removed and came back
  between question and answer came back after the question, and is counted from another one.
- Nothing of it depends on the order, the number or the connection of messages. A question that is late, or comes twice,
  makes the voter's promise longer than anybody knows; an answer counts from the moment its question was put, once or
  more often. Lost ones make nothing longer. Ends that do not agree find out with the next question.
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
    """See the module's text. What an end keeps with each grant is its own affair."""

    def __init__(self, holder: str) -> None:
        """:param holder: the life of a broker that it is about."""
        self._key = blake2b(holder.encode(), digest_size=32).digest()
        self._prints: dict[Stream, int] = {}
        self.parts: dict[int, Part[Grant]] = {}
        """Those in which there is something."""

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
        """It is to be asked for by name; of no effect when it is not kept."""
        printed = self._prints.pop(stream, None)
        if printed is not None:
            part = self.parts[printed % PARTS]
            part.digest ^= printed
            del part.grants[stream]
            if not part.grants:
                assert part.digest == 0
                del self.parts[printed % PARTS]

    def empty(self, index: int) -> list[Grant]:
        """All that was in a part."""
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
        words = (*item.stream, item.home, str(item.term), str(item.mark))
        text = "".join(f"{len(word)}:{word}" for word in words)
        return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES, key=self._key).digest(), "big")
