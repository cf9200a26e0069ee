# SPDX-License-Identifier: Apache-2.0
"""Which of the waiting transactions may share one request to etcd."""

from __future__ import annotations

import asyncio
from collections import deque

from aetcd import rpc
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.engines.etcd.together import BYTES_MAX, WRITES_MAX, Wanted, next_writes

KEYS = st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), max_size=3)
TRANSACTIONS = st.tuples(KEYS, KEYS, st.booleans(), st.booleans(), st.sampled_from([1, 30_000]))


def wanted(loop: asyncio.AbstractEventLoop, checked: frozenset[bytes], written: frozenset[bytes], size: int) -> Wanted:
    put = rpc.RequestOp(request_put=rpc.PutRequest(key=b"k", value=bytes(size)))
    one = Wanted(rpc.TxnRequest(success=[put]), "", 0.0, loop.create_future())
    one.written, one.touched = written, written | checked
    return one


@given(st.lists(st.tuples(TRANSACTIONS, st.integers(1, 30)), max_size=8))
def test_a_request_is_equivalent_to_its_transactions_in_sequence(
    runs: list[tuple[tuple[frozenset[bytes], frozenset[bytes], bool, bool, int], int]],
) -> None:
    loop = asyncio.new_event_loop()
    try:
        everybody: list[Wanted] = []
        for (checked, written, alone, gone, size), count in runs:
            for number in range(count):
                # A run's first transaction writes keys of the others; each of the rest writes its own key.
                mine = written if number == 0 else frozenset([b"%d of %d" % (number, len(everybody))])
                one = wanted(loop, checked, mine, size)
                one.alone = alone
                if gone:
                    one.answer.cancel()
                everybody.append(one)
        waiting, sent = deque(everybody), []
        while waiting:
            some = next_writes(waiting)
            assert len(some) <= WRITES_MAX
            assert len(some) == 1 or not any(one.alone for one in some)
            assert len(some) == 1 or sum(one.request.ByteSize() for one in some) <= BYTES_MAX
            written_before: set[bytes] = set()
            for one in some:
                assert written_before.isdisjoint(one.touched)
                written_before |= one.written
            sent += some
        assert [id(one) for one in sent] == [id(one) for one in everybody if not one.answer.done()]
    finally:
        loop.close()
