# SPDX-License-Identifier: Apache-2.0
"""Processor time of the wire room per command, best of several rounds.

No sockets: one buffer as a connection would deliver it (64 KiB reads for small frames), decoded again and again.
Compare only numbers from one machine; the smallest of several rounds is the one least disturbed by others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, frames, metadata, origin_fields

READ_BYTES = 64 * 1024
LEDGER = 750_000_000_000_123
SMALL, MIDDLE, LARGE = 100, 1024, 64 * 1024


def body_of(payload_bytes: int) -> bytes:
    view = pb.MessageMetadata(producer_name="meridian-0-17", sequence_id=123_456, publish_time=1_790_000_000_123)
    return metadata.build_body(view.SerializeToString(), b"x" * payload_bytes)


def chunks(stream: bytes) -> list[bytes]:
    return [stream[at : at + READ_BYTES] for at in range(0, len(stream), READ_BYTES)]


def decoding(frame: Callable[[int], bytes], count: int) -> tuple[Callable[[], object], int]:
    """A run that decodes ``count`` frames, delivered in reads of 64 KiB."""
    reads = chunks(b"".join(frame(n) for n in range(count)))

    def run() -> None:
        decoder = frames.FrameDecoder()
        seen = 0
        for read in reads:
            seen += len(decoder.feed(read))
        assert seen == count

    return run, count


def repeat(action: Callable[[int], object], count: int) -> tuple[Callable[[], object], int]:
    def run() -> None:
        for n in range(count):
            action(n)

    return run, count


def sent(body: bytes, number: int) -> bytes:
    return b"".join(encode.send(3, number, body))


def stamp(number: int) -> peer_pb2.OriginStamp:
    return peer_pb2.OriginStamp(
        region="west",
        ledger=LEDGER,
        entry=number,
        prev_ledger=LEDGER,
        prev_entry=number - 1,
        sent_prev_ledger=LEDGER,
        sent_prev_entry=number - 1,
        checksum=0xDEADBEEF,
        appended_metadata_bytes=70,
        messages=1,
        key_hash=7,
        publish_time_ms=1_790_000_000_123,
        flags=0,
        stored_time_ms=1_790_000_000_124,
    )


def cases(scale: int) -> Iterator[tuple[str, Callable[[], object], int]]:
    bodies = {size: body_of(size) for size in (SMALL, MIDDLE, LARGE)}
    for size, count in ((SMALL, 4000), (MIDDLE, 2000), (LARGE, 100)):
        yield (f"decode SEND {size} B", *decoding(partial(sent, bodies[size]), count * scale))
    body = bodies[SMALL]
    yield (
        "decode SEND 100 B, batch of 100",
        *decoding(lambda n: b"".join(encode.send(3, n, body, num_messages=100)), 2000 * scale),
    )
    yield (
        "decode SEND 100 B with origin",
        *decoding(lambda n: b"".join(encode.send(3, n, body, origin=stamp(n))), 2000 * scale),
    )
    yield ("decode ACK 1 id", *decoding(lambda n: encode.ack(3, 0, [(LEDGER, n)]), 2000 * scale))
    hundred = [(LEDGER, n) for n in range(100)]
    yield ("decode ACK 100 ids", *decoding(lambda _: encode.ack(3, 0, hundred), 40 * scale))
    yield ("decode FLOW", *decoding(lambda _: encode.flow(3, 500), 2000 * scale))
    yield (
        "decode SEND_RECEIPT",
        *decoding(lambda n: encode.send_receipt(3, n, LEDGER, n, n), 2000 * scale),
    )
    yield ("decode MESSAGE 1024 B", *decoding(lambda n: b"".join(encode.message(3, LEDGER, n, bodies[MIDDLE])), 1000))
    yield ("encode SEND_RECEIPT", *repeat(lambda n: encode.send_receipt(3, n, LEDGER, n, n), 4000 * scale))
    yield ("encode message id", *repeat(lambda n: encode.message_id(LEDGER, n), 4000 * scale))
    place = encode.message_id(LEDGER, 4711)
    yield ("encode MESSAGE header", *repeat(lambda n: encode.message_header(n & 1023, place, 1024), 4000 * scale))
    yield ("encode ACK 1 id", *repeat(lambda n: encode.ack(3, 0, ((LEDGER, n),)), 2000 * scale))
    yield ("scan metadata", *repeat(lambda _: metadata.scan(body), 2000 * scale))
    view = metadata.scan(body)
    yield ("key hash, no key", *repeat(lambda _: metadata.key_hash(view), 2000 * scale))
    for size in (SMALL, LARGE):
        yield (
            f"append replication {size} B",
            *repeat(partial(origin_fields.append_replication, bodies[size], "west", LEDGER), 500 * scale),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: numbers are rough")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    rounds, scale = (3, 1) if options.quick else (9, 5)
    results: dict[str, int] = {}
    for name, run, count in cases(scale):
        best = min(_processor_seconds(run) for _ in range(rounds))
        results[name] = round(best / count * 1e9)
        if not options.json:
            print(f"{name:36} {results[name]:>9,} ns")
    if options.json:
        json.dump({"unit": "ns of processor time per operation", "results": results}, sys.stdout, indent=2)
        print()


def _processor_seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
