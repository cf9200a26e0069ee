# SPDX-License-Identifier: Apache-2.0
"""What every part of an open topic shares: its name, its storage, its rules, and whether it is still served.

The parts of a topic - admission, compaction, subscriptions, backfill and the rest - get this context instead of the
topic itself, so each of them can be read, and made in a test, without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from meridian_broker.ledgers.retired_indexes import Late
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import NotAllowed, TopicError, TopicFenced, TopicTerminated
from meridian_broker.topics.policies import bounds
from meridian_broker.topics.reopening import Failing
from meridian_broker.topics.shadows import Elsewhere, OnRecord
from meridian_broker.topics.turns import Turns

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.positions import HybridClock, Position, Progress, Stamp
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.topics.journal.progress_log import ProgressLog
    from meridian_broker.topics.journal.topic_record import TopicMetadata
    from meridian_broker.topics.limits import TopicLimits
    from meridian_broker.topics.ports import Exchange, Leasing, Snapshots


class WindingDown(Enum):
    """How far a topic is wound down before a move (``service/winding_down.py``)."""

    NOT = "not"
    """It is served."""
    DISPATCHES_NOTHING = "dispatches nothing"
    """It dispatches nothing any more."""
    IGNORES_MESSAGES = "ignores messages"
    """It also ignores messages that arrive: clients send them again to the next owner."""


@dataclass(frozen=True, kw_only=True)
class TopicSetup:
    """What the broker knows about a topic when it opens it. The defaults describe a topic of one region, without a
    record."""

    rules: Rules = field(default_factory=Rules)
    metadata: TopicMetadata | None = None
    regions: Callable[[], frozenset[str]] | None = None
    """The topic's current regions, including this one; None: this one only."""
    leasing: Leasing | None = None
    partitions: int | None = None
    """Number of partitions of the partitioned topic that this is a partition of; None for other topics."""
    created: Stamp | None = None
    """Stamp of the creation of the topic, or of its partitioned topic; None: not known."""
    base_incarnation: str = ""
    """Stamp of the last deletion of the partitioned topic it belongs to (R8)."""
    keeps_quotas: bool = True
    """Backlog quotas are enforced."""
    shadow_of: str | None = None
    """The topic of which it is a read-only view; None: it is not a view."""
    shadows: OnRecord = dict
    """Its own shadows."""
    shadows_elsewhere: Elsewhere | None = None
    """Those that other brokers of the region may serve; None: there are no other brokers."""


class TopicContext:
    """See the module's text. One per open topic or partition."""

    def __init__(
        self,
        name: str,
        partition: int,
        region: str,
        incarnation: str,
        log: TopicLog,
        progress_log: ProgressLog,
        scheduler: Scheduler,
        clock: HybridClock,
        limits: TopicLimits,
        exchange: Exchange | None,
        setup: TopicSetup,
    ) -> None:
        self.name = name
        self.partition = partition
        """-1: the topic is not a partition of another."""
        self.region = region
        self.incarnation = incarnation
        """Stamp of its last deletion (R8)."""
        self.log = log
        """Its messages."""
        self.progress_log = progress_log
        """Its subscriptions' records and progress."""
        self.scheduler = scheduler
        self.turns = Turns(scheduler)
        self.clock = clock
        self.limits = limits
        self.exchange = exchange
        self.late = Late()
        self.unread = Failing()
        """Subscriptions for which the storage lately failed a read."""
        self.rules = setup.rules
        """Its rules: its own policies, its namespace's, the broker's settings."""
        self.bounds = bounds(limits, self.rules)
        self.metadata = setup.metadata
        self.partitions = setup.partitions
        self.created = setup.created
        self.base_incarnation = setup.base_incarnation
        self.regions = setup.regions or (lambda: frozenset((region,)))
        """Its regions, this one included."""
        self.followed: frozenset[str] = frozenset()
        """Its regions at the last call of ``follow_regions``: the same object while they do not change."""
        self.leasing = setup.leasing
        self.votes: dict[str, dict[str, tuple[str, int, int]]] = {}
        """Subscription -> origin -> what this region voted: holder, term, milliseconds (R26)."""
        self.snapshots: Snapshots | None = None
        """Takes snapshots of its subscriptions' positions (PIP-33), and reads the markers of other regions; None: there
        are no other regions."""
        self.remotes: set[str] = set()
        """Regions a replicator runs to."""
        self.keeps_quotas = setup.keeps_quotas
        self.shadow_of = setup.shadow_of
        """The topic whose log it reads; None: it has a log of its own."""
        self.is_ended = False
        """It takes no more messages."""
        self.terminated: Position | None = None
        """Its last entry, if it was terminated; None: it goes on."""
        self.ends: Mapping[str, Position] = {}
        """Per other region, the last of its entries before that end."""
        self.winding_down = WindingDown.NOT
        self.failure: str | None = None
        """Why it is not served any more; None: it is."""
        self.reopens = True
        """Whether it is reopened after a failure. False once it is closed on purpose."""
        self.last_used_ms = scheduler.now_ms()
        """When a client came or left, or a message came."""
        self.is_leaving = False
        """Its deletion is being put on record: it serves the clients that it has, and admits no others."""
        self._when_fenced: list[Callable[[str], None]] = []

    # -- the fence -----------------------------------------------------------------------------------------------

    def fence(self, reason: str, *, for_good: bool = False) -> None:
        """Stop serving: disconnect all clients. The broker then reopens the topic, unless it is fenced ``for_good``."""
        if for_good:
            self.reopens = False
        if self.failure is not None:
            return
        self.failure = reason
        for callback in self._when_fenced:
            callback(reason)

    def when_fenced(self, callback: Callable[[str], None]) -> None:
        """``callback`` is called with the reason, once, after those registered before it."""
        self._when_fenced.append(callback)

    def check_open(self) -> None:
        """:raises TopicFenced: it is not served now."""
        if self.failure is not None:
            raise TopicFenced(f"{self.name} is not served now ({self.failure}): look it up again")

    def check_admits(self) -> None:
        """:raises TopicFenced: no client is admitted now."""
        self.check_open()
        if self.is_leaving:
            raise TopicFenced(f"{self.name} is being deleted: look it up again")

    def read_only(self, doing: str) -> NotAllowed:
        """Why something cannot be done to a shadow, which stores no messages.

        :param doing: a verb and what belongs to it, as in "publish to".
        """
        return NotAllowed(f"{self.name} is a shadow of {self.shadow_of}, and read only: {doing} {self.shadow_of}")

    def check_own_log(self, doing: str) -> None:
        """:raises NotAllowed: it is a shadow. For ``doing`` see ``read_only``."""
        if self.shadow_of is not None:
            raise self.read_only(doing)

    def used(self) -> None:
        """A client came or left."""
        self.last_used_ms = self.scheduler.now_ms()

    # -- what it stops doing --------------------------------------------------------------------------------------

    def wind_down(self, how_far: WindingDown) -> None:
        """The topic is about to move, or the broker to stop."""
        self.winding_down = how_far

    def begin_leaving(self) -> None:
        """Its deletion is about to be put on record: admit no clients."""
        self.is_leaving = True

    def stay(self) -> None:
        """The deletion failed: admit clients again."""
        self.is_leaving = False

    def begin_termination(self) -> None:
        """Accept no more messages."""
        self.is_ended = True

    def resume(self) -> None:
        """The termination failed: accept messages again."""
        self.is_ended = False

    def ended(self, last: Position, ends: Mapping[str, Position]) -> None:
        """The termination is on record.

        :param last: its last entry.
        :param ends: per other region, the last of its entries before that one.
        """
        self.is_ended, self.terminated, self.ends = True, last, ends

    def follow_regions(self) -> None:
        """Look up its regions now."""
        regions = self.regions()
        if regions != self.followed:
            self.followed = regions

    def move_by(self, snapshots: Snapshots | None) -> None:
        """From now on these take snapshots of its subscriptions; None: it has no other regions."""
        self.snapshots = snapshots

    def skipped_for(self, remote: str) -> Skipped | None:
        """What an operator skipped of the backlog of a region; None: nothing."""
        return None if self.metadata is None else self.metadata.record.skipped.get(remote)

    def refusal(self) -> TopicTerminated:
        """Why nothing can be published to a terminated topic."""
        return TopicTerminated(f"{self.name} was terminated in {self.region}: it accepts no more messages")

    # -- work ----------------------------------------------------------------------------------------------------

    def serve(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run work that a client waits for. If it fails, the topic is fenced: the client comes back and is served
        again, where a task that ended in silence would leave it waiting.

        :param work: called when the task begins: one that is cancelled before then leaves no coroutine unawaited.
        """
        self.scheduler.spawn(self._or_fence(work, name), name)

    async def _or_fence(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        try:
            await work()
        except (LedgerError, MetadataError, TopicError) as error:
            self.fence(f"failed to {name}: {error}")
        except Exception as error:
            self.fence(f"failed to {name}: {error!r}")
            raise

    def tell_others(
        self, subscription: str, delta: Progress, *, record_changed: bool = False, entries: int = 0
    ) -> None:
        """Tell the other regions what changed, once it is on disk, with everything written before it.

        In snapshot mode they get records only: what is acknowledged travels by snapshots.
        """
        replaced = self.snapshots is not None and self.snapshots.replace_exchange_of(subscription)
        if self.exchange is not None and (record_changed or not replaced):
            durable = self.progress_log.when_durable
            self.exchange.local_change(
                self.name, subscription, delta, durable, record_changed=record_changed, entries=entries
            )
