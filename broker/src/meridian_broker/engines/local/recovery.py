# SPDX-License-Identifier: Apache-2.0
"""From files to an index: the last checkpoint, then the tail of the log after it.

Segments after the checkpoint are never removed, so each names the one before it, down to the first. A segment that no
later one names was never finished, because its creation failed: it contains nothing confirmed. Only the last segment
may be torn. Everything found is made durable before it may be read, because after a kill the page cache can hold more
than the disk, and an entry that was delivered once must not vanish with the next power cut. That is why bytes not
covered by a mark are rewritten: if their sync failed before the kill, the kernel may wrongly consider them written.
"""

from __future__ import annotations

import logging

from meridian_broker.engines.local.checkpoint import (
    TEMPORARY_SUFFIX,
    Checkpoint,
    checkpoint_name,
    checkpoint_number,
    index_number,
    read_whole,
    unpack_checkpoint,
    write_whole,
)
from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.local.index import Ledger, Segment
from meridian_broker.engines.local.replay import Found, Replay, State
from meridian_broker.engines.local.segment import (
    ENTRY,
    SEGMENT_HEADER_BYTES,
    Record,
    Scanner,
    SegmentHeader,
    ledger_seed,
    segment_header,
    segment_name,
    segment_number,
    unpack_segment_header,
)
from meridian_broker.ledgers.store import LedgerError

_log = logging.getLogger(__name__)


def recover(files: FilePort, *, repair: bool) -> State:
    """Read the last checkpoint and the log's tail.

    :param repair: truncate torn tails, remove leftovers and make the rest durable. A second process that only reads
        must not.
    :raises SegmentFormatError: a newer broker wrote these files.
    """
    state = State()
    names = files.names()
    load_checkpoint(files, names, state)
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    covered = state.covered
    tail = [number for number in numbers if number > covered]
    found, leftovers = _chain(files, tail, state, covered)
    replay = Replay(state)
    for segment in found:
        length, marked = _take_in(files, replay, segment)
        if repair and length < _size(files, segment.number):
            _log.info("%s: truncated to %d bytes, the rest was never synced", segment_name(segment.number), length)
            files.truncate(segment_name(segment.number), length)
        if repair and not segment.attested:
            # The first mark already counts the header as durable, before it is.
            files.write_again(segment_name(segment.number), marked if marked > SEGMENT_HEADER_BYTES else 0)
        if repair and segment.broken_previous is not None:
            _give_header(files, state, segment.number, segment.broken_previous)
    replay.finish()
    if repair:
        released = [each for each in numbers if each <= covered and each not in state.segments]
        _remove_leftovers(files, state, [*leftovers, *released])
    last = max(state.segments, default=-1)
    state.next_segment = max([last, *numbers, covered]) + 1
    state.previous = (last, state.segments[last].length) if last >= 0 else (-1, 0)
    for sentence in state.damages:
        _log.error("%s. Entries lost with it, if any, cannot be read; all others can", sentence)
    return state


def load_checkpoint(files: FilePort, names: list[str], state: State) -> None:
    """Load the newest intact checkpoint."""
    numbers = sorted((number for name in names if (number := checkpoint_number(name)) is not None), reverse=True)
    for number in numbers:
        name = checkpoint_name(number)
        checkpoint = unpack_checkpoint(read_whole(files, name), name)
        if checkpoint is None and state.checkpoints:
            state.damages.append(f"{name} is damaged but not needed: a newer one is intact")
            state.unneeded.append(name)
            continue
        if checkpoint is None:
            state.damages.append(f"{name} is damaged: an older one is used, so more of the log is read")
            continue
        state.checkpoints[number] = checkpoint.covered
        if len(state.checkpoints) == 1:
            _take_over(checkpoint, names, state)
    if numbers and not state.checkpoints:
        state.rebuilding = True
        state.damages.append(
            "no checkpoint is intact: the index is rebuilt from the log; deleted ledgers may come back"
        )


def _take_over(checkpoint: Checkpoint, names: list[str], state: State) -> None:
    present = set(names)
    state.covered = checkpoint.covered
    state.deleted = dict.fromkeys(checkpoint.deleted)
    for number, length in checkpoint.segments.items():
        if segment_name(number) in present:
            state.segments[number] = Segment(number, length=length, indexed=True)
    for image in checkpoint.ledgers:
        ledger = Ledger(image.ledger_id, image.fence, ledger_seed(ENTRY, image.ledger_id), image.label)
        ledger.sealed = image.sealed
        ledger.confirmed = max(image.entries, 0)
        lost = sum(1 for run in image.runs if run.segment not in state.segments)
        if lost:
            state.damages.append(f"ledger {image.ledger_id} has lost entries: the segments of {lost} runs are missing")
        ledger.runs = [run for run in image.runs if run.segment in state.segments]
        for run in ledger.runs:
            state.segments[run.segment].runs[run] = ledger
        state.ledgers[image.ledger_id] = ledger


def _remove_leftovers(files: FilePort, state: State, segments: list[int]) -> None:
    """Unlink files that a crash left half created or half removed."""
    for number in segments:
        files.unlink(segment_name(number))
    for name in files.names():
        indexed = index_number(name)
        if name.endswith(TEMPORARY_SUFFIX) or (indexed is not None and indexed not in state.segments):
            files.unlink(name)
    files.sync_directory()


def _chain(files: FilePort, tail: list[int], state: State, covered: int) -> tuple[list[Found], list[int]]:
    """The valid segments of the tail and how far each is valid, oldest first; and the numbers of the others."""
    found: list[Found] = []
    leftovers: list[int] = []
    named: SegmentHeader | None = None
    for number in reversed(tail):
        name = segment_name(number)
        header = _header(files, number)
        size = _size(files, number)
        if named is not None and number > named.previous:
            leftovers.append(number)
            continue
        if named is not None and number < named.previous:
            if not state.rebuilding:
                state.damages.append(f"{segment_name(named.previous)} is missing")
            named = None
        broken = header is None
        if header is None:
            records, durable = _look_into(files, number, size)
            if not found and not records:
                leftovers.append(number)
                continue
            if found or durable:
                state.damages.append(f"the header of {name} is damaged")
            below = [other for other in tail if other < number]
            header = SegmentHeader(number, below[-1] if below else covered or -1, -1)
        end = size
        if named is not None and named.previous_length >= 0:
            end = named.previous_length
            if size < end:
                state.damages.append(f"{name} has {size} bytes instead of {end}: its end is lost")
                end = size
        attested = named is not None and named.previous_length >= 0
        found.append(Found(number, end, attested, header.previous if broken else None))
        named = header
    if named is not None and named.previous > covered and not state.rebuilding:
        state.damages.append(f"{segment_name(named.previous)} is missing")
    found.reverse()
    return found, leftovers


def _look_into(files: FilePort, number: int, size: int) -> tuple[bool, bool]:
    """For a file with a broken header: whether it contains records, and whether a mark says that it was once synced.

    If neither, the segment was just being created. If only records, the crash preserved them but not the header.
    """
    file = files.open(segment_name(number))
    try:
        scanner = Scanner(lambda offset, length: file.pread(length, offset), number, size, attested=False)
        records = any(isinstance(item, Record) for item in scanner.scan())
        return records, scanner.durable() > SEGMENT_HEADER_BYTES
    finally:
        file.close()


def _give_header(files: FilePort, state: State, number: int, previous: int) -> None:
    """Rewrite a segment that has a broken header, so that the next start can read it."""
    name = segment_name(number)
    before = state.segments.get(previous)
    header = SegmentHeader(number, previous, before.length if before is not None else 0)
    content = read_whole(files, name)[SEGMENT_HEADER_BYTES : state.segments[number].length]
    write_whole(files, name, [segment_header(header), content])


def _take_in(files: FilePort, replay: Replay, found: Found) -> tuple[int, int]:
    file = files.open(segment_name(found.number))
    try:
        return replay.segment(found, lambda offset, length: file.pread(length, offset))
    finally:
        file.close()


def _header(files: FilePort, number: int) -> SegmentHeader | None:
    name = segment_name(number)
    file = files.open(name)
    try:
        header = unpack_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0), name)
    finally:
        file.close()
    if header is not None and header.number != number:
        raise LedgerError(
            f"{name} has the header of segment {header.number}: it was renamed; give it its old name back"
        )
    return header


def _size(files: FilePort, number: int) -> int:
    file = files.open(segment_name(number))
    try:
        return file.size()
    finally:
        file.close()
