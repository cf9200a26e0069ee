# SPDX-License-Identifier: Apache-2.0
"""How a region votes on topics that it does not host (R26).

With a topic in two regions, neither can know that the other one is dead. A third region, the *witness*, has a vote but
none of the topic's messages. It keeps what it promised, and what it knows of who votes, in a progress log of its own,
with an owner like any topic's: so its votes are durable before they are given, and a broker that was replaced can give
none. A broker opens it before it gives any vote, those on its own topics included.

A stream that was not asked about for ``FORGET_MS`` is forgotten when the log is rolled over: by then a region that knew
less was asked for its vote countless times.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.metadata.store import ABSENT, MetadataError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.replication.leases import quorums
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.reconfiguration import Subject
from meridian_broker.topics.dispatch_scope import votes
from meridian_broker.topics.dispatch_scope.votes import Ballot
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.journal.changes import Kind, ProgressLogError
from meridian_broker.topics.journal.progress_ledgers import Damaged
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.journal.topic_record import TopicMetadata
from meridian_broker.topics.lifecycle import orphans
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.ports import Leasing
    from meridian_broker.topics.service.registry import TopicRegistry

NAME: Final = "persistent://pulsar/system/witness"
"""Not a topic: its record is in a namespace that does not exist, so no list shows it."""
FORGET_MS: Final = 30 * 24 * 3600 * 1000
RETRY_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Record:
    known: VoterSets
    ballots: dict[str, Ballot] = field(default_factory=dict)
    asked_ms: int = 0


class WitnessBasis:
    """What a witness votes on (``VoteBasis``)."""

    __slots__ = ("_known", "_record", "_store", "_subject")

    def __init__(self, store: WitnessStore, record: _Record, subject: Subject) -> None:
        self._store = store
        self._record = record
        self._known = record.known
        self._subject = subject

    def still_valid(self) -> bool:
        """Whether this region still knows the same, from the same record."""
        return self._record.known is self._known and self._store.is_open_at(self._subject, self._record)


class WitnessStore:
    """See the module's text. One per broker."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._parts = registry.parts
        self._leasing: Leasing | None = None
        self._log: ProgressLog | None = None
        self._opening = False
        self._records: dict[Subject, _Record] = {}

    def bind(self, leasing: Leasing) -> None:
        """Open the store, and report its votes to ``leasing``, which needs this store and is constructed after it.

        :raises RuntimeError: leases were bound before.
        """
        if self._leasing is not None:
            raise RuntimeError("the witness's store is already bound to leases")
        self._leasing = leasing
        self.open_soon()

    @property
    def is_open(self) -> bool:
        return self._log is not None and self._log.failure is None

    def known(self, subject: Subject) -> VoterSets | None:
        """Who votes on a subscription's streams; None: this region is not known to be its witness."""
        if not self.is_open:
            self.open_soon()
            return None
        record = self._records.get(subject)
        if record is None:
            return None
        record.asked_ms = self._parts.scheduler.now_ms()
        return record.known

    def hear(self, subject: Subject, told: VoterSets, heard: Callable[[VoterSets], None]) -> None:
        """Join what others know. ``heard`` gets the result once it is on disk."""
        writer = self._log
        if writer is None or not self.is_open:
            self.open_soon()
            return
        record = self._records.get(subject)
        known = told if record is None else record.known.joined(told)
        if record is None:
            record = self._records[subject] = _Record(known)
        elif record.known == known:
            writer.when_durable(lambda error: heard(known) if error is None else None)
            return
        record.known, record.asked_ms = known, self._parts.scheduler.now_ms()
        self._write(writer, subject, {}, lambda error: heard(known) if error is None else None)

    def write(self, subject: Subject, ballots: dict[str, Ballot], done: Done) -> None:
        """Votes that are to be durable before they are given."""
        record, writer = self._records.get(subject), self._log
        if record is not None and writer is not None:
            record.ballots.update(ballots)
            self._write(writer, subject, ballots, done)

    def votes(self, subject: Subject) -> Mapping[str, Ballot]:
        """What was written of a subscription's streams, by origin."""
        record = self._records.get(subject)
        return {} if record is None else record.ballots

    def basis(self, subject: Subject) -> WitnessBasis | None:
        """What is known of who votes on its streams; None: this region is not known to be its witness."""
        record = self._records.get(subject)
        return None if record is None else WitnessBasis(self, record, subject)

    def is_open_at(self, subject: Subject, record: _Record) -> bool:
        """Whether this record is still in force, with no copy of the topic here; if so, it counts as just asked."""
        topic, registry = subject[0], self._registry
        if self._records.get(subject) is not record or topic in registry.topics or not registry.is_served(topic):
            return False
        record.asked_ms = self._parts.scheduler.now_ms()
        return True

    def confirm(self, confirmed: Callable[[], None]) -> None:
        """Call ``confirmed`` once something was written: no later broker has opened the store."""
        if self._log is not None:
            self._log.append(Kind.VOTES, "", b"", lambda error: confirmed() if error is None else None)

    def _write(self, writer: ProgressLog, subject: Subject, ballots: dict[str, Ballot], done: Done) -> None:
        writer.append(Kind.VOTES, subject[0], self._encode(subject, ballots), done)

    def _encode(self, subject: Subject, ballots: dict[str, Ballot]) -> bytes:
        record = self._records[subject]
        fields = {
            "subscription": subject[1],
            "voters": quorums.to_json(record.known),
            "ballots": ballots,
            "asked": record.asked_ms,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def _snapshot(self) -> Iterator[tuple[Kind, str, bytes]]:
        now = self._parts.scheduler.now_ms()
        for subject, record in list(self._records.items()):
            if now - record.asked_ms > FORGET_MS:
                del self._records[subject]
            else:
                yield Kind.VOTES, subject[0], self._encode(subject, record.ballots)

    # -- opening

    def open_soon(self) -> None:
        """Open the store, unless it is being opened or no leases are bound yet."""
        leasing = self._leasing
        if leasing is not None and not self.is_open and not self._opening and not self._registry.closing:
            self._opening = True
            self._parts.scheduler.spawn(self._open(leasing), "open the witness's votes")

    async def _open(self, leasing: Leasing) -> None:
        parts = self._parts
        name = topic_name.parse(NAME)
        metadata = TopicMetadata(parts.catalog, name, parts.new_lock(), parts.scheduler)
        try:
            fence = await parts.ownership.acquire(name)
            if not await metadata.acquire(fence):
                await parts.catalog.topics.put(name, TopicRecord(owner=fence), ABSENT)
                await metadata.acquire(fence)
            store = ProgressLog(parts.store, metadata, fence, parts.scheduler, self._snapshot)
            adopted = await orphans.adopt(parts, name, metadata)
            records: dict[Subject, _Record] = {}
            await store.open(list(metadata.record.progress_ledgers), adopted.progress)
            lost: list[Damaged] = []
            async for changes in store.changes(lost.append):
                for change in changes:
                    if change.subscription:
                        _replay(records, change.subscription, change.payload)
        except (LedgerError, MetadataError, TopicError, ProgressLogError) as error:
            log.warning("this region cannot be a witness now, will retry: %s", error)
            parts.scheduler.later(RETRY_SECONDS, self._retry_opening)
            return
        if lost:
            pause = leasing.promise_ms / 1000
            log.error(
                "%d votes of the witness are damaged: it will vote again in %.0f s, once they have expired",
                len(lost),
                pause,
            )
            await parts.scheduler.answer(lambda over: parts.scheduler.later(pause, lambda: over(None)))
        self._records = records  # what could not be written before is forgotten
        for (topic, subscription), record in records.items():
            for origin, ballot in record.ballots.items():
                leasing.found((topic, subscription, origin), *ballot)
        parts.labels.forget(NAME)
        self._log, self._opening = store, False

    def _retry_opening(self) -> None:
        self._opening = False

    async def close(self) -> None:
        """Seal what is being written."""
        if self._log is not None:
            await self._log.close()


def _replay(records: dict[Subject, _Record], topic: str, payload: bytes) -> None:
    """A record that was written. :raises ProgressLogError: it is not a valid record."""
    try:
        fields = json.loads(payload)
        subject = (topic, str(fields["subscription"]))
        told = quorums.from_json(fields["voters"])
        record = records.setdefault(subject, _Record(told))
        record.known = record.known.joined(told)
        record.asked_ms = max(record.asked_ms, int(fields["asked"]))
        record.ballots.update(votes.from_json(fields["ballots"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProgressLogError(f"{payload[:80]!r} is not a witness's record: {error}") from error
