# SPDX-License-Identifier: Apache-2.0
"""What voters were asked, and when: an answer counts from the moment before its question was sent."""

from __future__ import annotations

from meridian_broker.replication.leases.host import LeaseHost
from meridian_broker.replication.leases.messages import ITEMS_MAX, LeaseAsk
from meridian_broker.replication.leases.request import LeaseRequest


class Questions:
    """The numbered questions of one holder."""

    def __init__(self, host: LeaseHost, holder: str, duration_ms: int) -> None:
        """:param duration_ms: how long after its question an answer may count."""
        self._host = host
        self._holder = holder
        self._duration_ms = duration_ms
        self.last = 0
        """The newest number."""
        self._asked_ms: dict[int, int] = {}
        """When each number was asked, as far back as it may still count."""

    def asked_ms(self, number: int) -> int | None:
        """When the question was sent; None: too long ago, or never."""
        return self._asked_ms.get(number)

    def next_number(self, now_ms: int) -> int:
        """The number of a question sent now."""
        self.last += 1
        self._asked_ms[self.last] = now_ms
        while len(self._asked_ms) > 1 and now_ms - next(iter(self._asked_ms.values())) > self._duration_ms:
            del self._asked_ms[next(iter(self._asked_ms))]
        return self.last

    def ask(self, number: int, asking: dict[str, list[LeaseRequest]]) -> None:
        """Make requests by name."""
        for peer, requests in sorted(asking.items()):
            if not self._host.can_ask(peer):
                continue
            for some in range(0, len(requests), ITEMS_MAX):
                part = tuple(request.item for request in requests[some : some + ITEMS_MAX])
                self._host.send(peer, LeaseAsk(number, self._holder, self._duration_ms, part))
