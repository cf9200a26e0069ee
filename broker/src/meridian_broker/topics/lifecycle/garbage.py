# SPDX-License-Identifier: Apache-2.0
"""Deletes ledgers that no topic names any more, where ledgers are listed beside the metadata.

A broker that dies between two steps leaves such a ledger behind: created and not recorded yet, or taken off the record
and not deleted yet. On a volume the next start finds them (`orphans`). A start that does not list all ledgers does not,
so brokers look for them from time to time.

A candidate is a day old, and its label names this region and a topic; neither the topic's record nor that of a
quarantined copy names the ledger. That alone does not prove that nobody needs it: clocks differ, and an owner may have
been suspended between the creation of a ledger and its record. So the candidate is *fenced* first, and the records are
read again. A ledger is recorded before anything is stored in it, and a fenced one confirms nothing more: if it is still
not named, it holds nothing that anybody was promised, and never will. An owner that records it afterwards fails at its
first entry and opens the topic again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.labels import Label
from meridian_broker.ledgers.periodic import each
from meridian_broker.ledgers.store import LedgerFenced, LedgerNotFound
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.topics.journal.topic_record import stamp_of
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.ledgers.storage import OldLedger
    from meridian_broker.ledgers.store import LedgerStore
    from meridian_broker.metadata.topic_catalog import Topics
    from meridian_broker.wire.pulsar.topic_name import TopicName

AGE_MS: Final = 24 * 3600 * 1000

log = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """An old ledger of a topic."""

    ledger_id: int
    fence: int
    incarnation: str


async def collect(topics: Topics, store: LedgerStore, old: Iterable[OldLedger], scheduler: Scheduler) -> None:
    """Delete those of these ledgers that nobody names.

    :param old: ledgers older than ``AGE_MS``, listed before this call.
    :raises SomeFailed: the ledgers of some topics could not be looked at or deleted.
    """
    by_topic: defaultdict[str, list[Candidate]] = defaultdict(list)
    for ledger in old:
        try:
            belonging = Label.decode(ledger.label).belonging
        except ValueError as error:
            log.warning(
                "cannot tell which topic ledger %d belongs to, so it is left alone: %s", ledger.ledger_id, error
            )
        else:
            by_topic[belonging.topic].append(Candidate(ledger.ledger_id, ledger.fence, belonging.incarnation))

    async def look(topic: str) -> None:
        await _delete_unnamed(topics, store, topic_name.parse(topic), by_topic[topic])

    await each(scheduler, by_topic, str, look)


async def _delete_unnamed(topics: Topics, store: LedgerStore, name: TopicName, candidates: Sequence[Candidate]) -> None:
    fenced = [one for one in await unnamed(topics, name, candidates) if await _fence(store, one)]
    if not fenced:
        return
    gone = await unnamed(topics, name, fenced)
    for one in gone:
        await store.delete(one.ledger_id)
        log.info("deleted ledger %d: %s does not name it", one.ledger_id, name)
    for one in set(fenced) - set(gone):
        log.warning(
            "%s recorded ledger %d only after it had been closed as unused; it continues in another one",
            name,
            one.ledger_id,
        )


async def _fence(store: LedgerStore, one: Candidate) -> bool:
    """Make sure that nothing more is confirmed in it. False: a later owner fenced it, or it is gone.

    :raises LedgerError: it is not known whether it is fenced.
    """
    try:
        await store.recover(one.ledger_id, one.fence)
    except (LedgerFenced, LedgerNotFound):
        return False
    return True


async def unnamed(topics: Topics, name: TopicName, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that neither the topic nor a quarantined copy of it names."""
    found = await topics.find(name)
    record = TopicRecord() if found is None else found[0]
    if record.deleting is not None:
        return []  # the deletion deletes them
    named = _named(record)
    left = [
        one
        for one in candidates
        if one.ledger_id not in named and (found is None or stamp_of(one.incarnation) <= stamp_of(record.incarnation))
    ]
    if not left:
        return []
    # Read after the topic's own record: its ledgers move from there to a copy's, and never back.
    aside = {ledger_id for copy in await topics.aside(name) for ledger_id in _named(copy)}
    return [one for one in left if one.ledger_id not in aside]


def _named(record: TopicRecord) -> set[int]:
    view = () if record.compacted is None else (record.compacted.ledger_id,)
    return {
        *(one.ledger_id for one in record.ledgers),
        *record.progress_ledgers,
        *record.obsolete_ledgers,
        *view,
    }
