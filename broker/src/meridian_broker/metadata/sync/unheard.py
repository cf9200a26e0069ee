# SPDX-License-Identifier: Apache-2.0
"""Lists for people what an expelled region wrote and nobody can judge (R44).

That is a value from before the horizon, at a path of which nothing is known, that no mark of its writer covers. It is
not a repeat, so it is listed with the conflicts instead of being dropped in silence. If its region turns out to know of
every deletion and still has the value, a comparison takes it, and it is no longer listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meridian_broker.metadata.errors import Contended
from meridian_broker.metadata.store import Delete, MetadataStore, Put
from meridian_broker.metadata.sync import conflicts, paths
from meridian_broker.metadata.sync.converging import Verdict
from meridian_broker.metadata.sync.digests import forgotten
from meridian_broker.metadata.sync.events import Event
from meridian_broker.metadata.sync.kept import Waiting
from meridian_broker.metadata.sync.marks import read_mark
from meridian_broker.metadata.sync.reading import Seen, read
from meridian_broker.metadata.sync.stamped import Moment, moment

ATTEMPTS: Final = 64
"""How often the lists are read again because others changed them."""


async def list_unheard(
    store: MetadataStore, waiting: Waiting, events: Sequence[Event], verdicts: Sequence[Verdict], seen: Seen
) -> int:
    """List those of these events that nobody can judge; remove those that were applied since. Returns how many are new.

    :param seen: what was known of their paths before the verdicts.
    :raises Contended: others kept changing the lists.
    """
    horizon = seen.moment(paths.HORIZON)
    old = [
        (event, verdict)
        for event, verdict in zip(events, verdicts, strict=True)
        if event.state.value is not None
        and moment(event.state.stamp) <= horizon
        and seen.state(event.path) is None
        and (verdict is Verdict.STALE or (verdict is Verdict.APPLIED and waiting.is_listed(event.path)))
    ]
    for _ in range(ATTEMPTS if old else 0):
        places = [place for event, _ in old for place in (paths.conflict(event.path), paths.region(event.source))]
        now = await read(store, places)
        operations = [one for event, verdict in old for one in _listing(event, verdict, now, horizon)]
        if not operations or await store.transact([*now.checks().values()], operations):
            return sum(isinstance(one, Put) for one in operations)
    if old:
        raise Contended(f"listing {old[0][0].path}: others changed it {ATTEMPTS} times in the meantime")
    return 0


def _listing(event: Event, verdict: Verdict, now: Seen, horizon: Moment) -> list[Put | Delete]:
    where, of_writer = paths.conflict(event.path), paths.region(event.source)
    listed, mark = now.records[where], now.records[of_writer]
    if verdict is Verdict.STALE:
        is_heard = mark is None or moment(event.state.stamp) <= read_mark(of_writer, mark.value)[0]
        is_new = not is_heard and (listed is None or _is_later(event, conflicts.from_store(where, listed.value)))
        return [Put(where, conflicts.to_store(event.state, forgotten(horizon)))] if is_new else []
    is_it = listed is not None and conflicts.from_store(where, listed.value).lost.stamp == event.state.stamp
    return [Delete(where)] if is_it else []


def _is_later(event: Event, listed: conflicts.Conflict) -> bool:
    """Whether what is listed is older: an earlier value that nobody can judge, as the last one is what people may want
    back, or a conflict that was over before this value was written."""
    last = listed.won if listed.won.stamp.region else listed.lost
    return last.stamp < event.state.stamp
