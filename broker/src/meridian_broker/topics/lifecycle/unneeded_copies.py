# SPDX-License-Identifier: Apache-2.0
"""Finds offloaded ledgers that no topic names any more.

A topic's record stops naming a ledger before its copy is on record as one to be deleted; a broker that dies between the
two leaves the copy behind. The ledger was sealed and on record once, and is never named again; so nothing has to be
fenced, unlike ledgers that may still be written (``garbage.py``). One case is different: a topic that is opened with
metadata older than the copy puts the copy on record before its own record names the ledger again (``orphans.py``). So
only copies whose record has not changed for a day are looked at.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from meridian_broker.ledgers.labels import Label
from meridian_broker.ledgers.offloaded.records import State
from meridian_broker.topics.lifecycle.garbage import AGE_MS, Candidate, unnamed
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.ledgers.offloaded.records import Offloaded
    from meridian_broker.ledgers.store import LedgerStore
    from meridian_broker.metadata.topic_catalog import Topics

log = logging.getLogger(__name__)


async def collect(topics: Topics, records: list[Offloaded], store: LedgerStore, now_ms: int) -> None:
    """Delete those of these ledgers that nobody names, and that have been as they are for ``AGE_MS``.

    :raises LedgerError, MetadataError: that cannot be done now.
    """
    by_topic: defaultdict[str, list[Candidate]] = defaultdict(list)
    for record in records:
        if record.state is not State.DOOMED and now_ms - record.since_ms >= AGE_MS:
            try:
                belonging = Label.decode(record.label).belonging
            except ValueError:
                continue  # a version without labels stored it: it goes with its topic
            by_topic[belonging.topic].append(Candidate(record.ledger_id, 0, belonging.incarnation))
    for topic, candidates in by_topic.items():
        for one in await unnamed(topics, topic_name.parse(topic), candidates):
            await store.delete(one.ledger_id)
            log.info("deleted offloaded ledger %d: %s does not name it", one.ledger_id, topic)
