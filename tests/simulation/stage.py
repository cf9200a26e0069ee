# SPDX-License-Identifier: Apache-2.0
"""What the parts of the simulator see of each other: the stage, its regions and their brokers, and the watcher.

``World`` composes regions, clients and the model, which use each other through these protocols. So imports go one way:
brokers, links and clients know the stage and the watcher, the model knows the stage, and only ``world.World`` knows
them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import Origin, Position
from meridian_broker.replication.progress.messages import PeerMessage
from meridian_broker.replication.progress.waits import WaitResult
from simulation.bookie_volume import BookieVolume
from simulation.disks import Volume
from simulation.engine_disks import EngineVolume
from simulation.engine_loop import EngineLoop
from simulation.loop import Loop, Owner
from simulation.metadata import MetadataVolume
from simulation.network import Network, Process, Weather

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

AnyVolume = Volume | EngineVolume | BookieVolume
"""Where a region's ledgers are."""
Heard = Callable[[LedgerError | None], None]
"""Hears whether something became durable."""


class Asked(Protocol):
    """The answering end of a connection that another region made."""

    def heard(self, message: PeerMessage, /) -> None:
        """A message arrives."""

    def gone(self) -> None:
        """The connection ended."""


class ExchangeEnd(Protocol):
    """A broker's end of the progress exchange."""

    def asked(self, reply: Callable[[PeerMessage], None], close: Callable[[], None], /) -> Asked:
        """Another region's broker has connected. :param reply: puts a message on the connection."""


class Replicators(Protocol):
    """All replicators of a broker."""

    def nudge(self, remote: str, /) -> None:
        """Try to reach the region now."""


class Broker(Process, Protocol):
    """One run of a broker process."""

    @property
    def world(self) -> Stage: ...

    @property
    def home(self) -> Region: ...

    @property
    def name(self) -> str:
        """Its name among several brokers of a region; empty: it is the only one."""

    def delivers(self, topic: str, /) -> bool:
        """Whether what it delivers of a topic counts: it is the one that serves it."""

    @property
    def version(self) -> int:
        """Of the peer protocol."""

    @property
    def restores(self) -> int:
        """Restores of the region before this run."""

    @property
    def sent(self) -> dict[tuple[Subscription, Position], frozenset[Stamp]]:
        """The rewinds after which entries were sent to consumers."""

    @property
    def service(self) -> TopicService: ...

    @property
    def exchange(self) -> ExchangeEnd: ...

    @property
    def replication(self) -> Replicators: ...

    def mono_ms(self) -> int:
        """A monotonic clock."""

    async def sleep(self, seconds: float, /) -> None:
        """The loop that keeps the world's time."""

    def topic(self, name: str, /) -> Topic | None:
        """The open topic, for inspection."""

    async def open_topic(self, name: str, /) -> Topic:
        """Open a topic for a client."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str, /) -> None:
        """Start a task that ends with this run."""


class Region(Protocol):
    """What outlives a broker."""

    trimming: int
    """How many of its brokers are trimming."""
    trimming_for: set[Subscription]
    trimming_among: dict[str, frozenset[str]]

    @property
    def world(self) -> Stage: ...

    @property
    def name(self) -> str: ...

    @property
    def volume(self) -> AnyVolume: ...

    @property
    def metadata(self) -> MetadataVolume: ...

    @property
    def restores(self) -> int: ...

    @property
    def restored_us(self) -> int: ...

    @property
    def broker(self) -> Broker | None:
        """The latest broker, ready or not."""

    @property
    def earlier(self) -> Sequence[Broker]:
        """Brokers that still run although a later one has started."""

    @property
    def is_one(self) -> bool:
        """Whether every peer that has, or recently had, information from the region gets it from a broker that owns its
        subject."""

    @property
    def is_steady(self) -> bool:
        """Whether topics have had the same owners for a while, all of them running."""

    def serves(self, broker: Broker, topic: str, /) -> bool:
        """Whether this broker, and no other one, answers for the topic."""

    def reached(self, broker: str, /) -> Broker | None:
        """What accepts connections at the address of one of the region's brokers, or else at the region's."""

    def wall_ms(self) -> int:
        """Its clock."""

    def look_up(self, client: Owner, topic: str, then: Callable[[Broker | None], None], /) -> None:
        """Find the broker that serves a topic, like a client; None: ask again later."""

    def taker(self, topic: TopicContext, /) -> Broker | None:
        """The broker that has the topic open, if only one can."""

    def everyone(self) -> Sequence[Broker]:
        """Brokers that run."""

    def trimmers(self) -> Sequence[Broker]:
        """Brokers whose topics count when the region trims what is not needed."""

    def broker_of(self, topic: str, /) -> Broker | None:
        """The broker that serves a topic; None while none does."""

    def known_ledgers(self, topic: str, /) -> set[int]:
        """Ledgers with a topic's entries, named by this metadata or created after it."""

    def named_ledgers(self, topic: str, /) -> set[int]:
        """Ledgers with a topic's entries, according to the metadata."""


class Stage(Protocol):
    """Where everything happens: time, the network, the regions and the watcher."""

    payloads: int
    """How many entries producers created."""
    on_message: Callable[[str, str, PeerMessage], None] | None

    @property
    def loop(self) -> Loop: ...

    @property
    def weather(self) -> Weather: ...

    @property
    def network(self) -> Network: ...

    @property
    def engine(self) -> EngineLoop | None: ...

    @property
    def bookies(self) -> int:
        """Number of bookies that store the ledgers of regions with several brokers; 0: a disk stores them."""

    @property
    def draw(self) -> Callable[[int], int]:
        """Source of the brokers' random numbers."""

    @property
    def ledger_entries(self) -> int: ...

    @property
    def names(self) -> list[str]:
        """The names of all regions."""

    @property
    def regions(self) -> Mapping[str, Region]: ...

    @property
    def model(self) -> Watcher: ...

    @property
    def sent(self) -> Counter[str]:
        """How many messages of each type regions sent each other."""

    @property
    def gone(self) -> set[str]:
        """Regions that never come back."""

    @property
    def told(self) -> set[str]:
        """Topics whose regions were changed."""

    @property
    def outside(self) -> dict[str, set[str]]:
        """Topic -> regions that did not belong to it at some time."""

    @property
    def quotas(self) -> set[tuple[str, str]]:
        """(region, topic) where a backlog quota was set at some time."""

    @property
    def topic_of_ledger(self) -> dict[tuple[str, int], str]:
        """(region, ledger) -> topic, of every ledger that ever held entries."""

    def crash(self, region: str) -> None:
        """Power cut."""

    def trouble(self) -> None:
        """Something is being broken on purpose."""

    def calm(self) -> bool:
        """Whether nothing is wrong, nor was for a while."""

    def shown(self, origin: Origin, /) -> str:
        """An entry, as stories name it."""

    def number(self, region: str, ledger: int, /) -> int:
        """A ledger, as stories name it."""

    def homes_of(self, topic: str, /) -> Mapping[str, Region]:
        """The regions of a topic."""

    def broker(self, region: str, /) -> Broker | None:
        """The broker that serves there now."""

    def shadow_ledger_goes(self, home: Region, topic: str, ledger: int, /) -> None:
        """The region has dropped a ledger, which no shadow of the topic should need."""

    def base_goes(self, home: Region, base: str, /) -> None:
        """The region has recorded that it deletes a partitioned topic."""


class Stored(Protocol):
    """What regions store."""

    def of(self, home: Region, topic: str, /) -> list[tuple[Position, Origin, int]]:
        """A topic's entries, without markers: position, origin, messages."""

    def ledger(self, home: Region, ledger: int, /) -> Sequence[tuple[Origin | None, bytes, int]]:
        """A ledger's entries: origin (None: a marker), payload, messages."""


class Watcher(Protocol):
    """Is called with what clients, disks and other regions are told, and checks it."""

    @property
    def commands_us(self) -> dict[tuple[str, str], int]:
        """(topic, subscription) -> when its dispatch scope or takeovers last changed (R26)."""

    @property
    def logs(self) -> Stored:
        """What regions store."""

    def violate(self, kind: str, text: str, /) -> None:
        """A promise was broken."""

    # -- ledgers and metadata

    def ledger_made(self, region: str, ledger: int, /) -> None:
        """A ledger has this id from now on."""

    def ledger_deleted(self, home: Region, ledger: int, /) -> None:
        """A ledger is deleted with its topic, or because nothing needs it."""

    def damage_read(self, home: Region, ledger: int, entry: int, /) -> None:
        """The region opens a topic without a damaged record."""

    def topic_goes(self, region: str, topic: str, record: TopicRecord, /) -> None:
        """The region has recorded that it deletes the topic."""

    def partition_goes(self, home: Region, topic: str, record: TopicRecord, /) -> None:
        """The region has recorded that it deletes the topic of which this is a partition."""

    def is_quarantined(self, region: str, name: str, before: str, incarnation: str, /) -> None:
        """A region's copy of a topic is renamed."""

    def taken_back(self, home: Region, topic: str, /) -> None:
        """A topic without messages is removed as if it had never been created."""

    def published_behind(self, home: Region, topic: Topic, place: Position, /) -> int | None:
        """When the first entry stored after a position was published, in ms; None: nothing is stored there."""

    # -- links

    def said(self, teller: Broker, asker: Broker, message: PeerMessage, /) -> None:
        """A broker puts a message on a link that the asker made."""

    def barrier_begun(self, broker: Broker, topic_name: str, name: str, /) -> Callable[[WaitResult], None]:
        """The result hears how it ended."""

    def flush_begun(self, broker: Broker, topic_name: str, name: str, /) -> Callable[[WaitResult], None]:
        """The result hears how it ended."""

    def replicated(self, home: Region, topic: str, region: str, origin: Position, /) -> None:
        """A receipt is sent to a replicator."""

    def going_on(self, home: Region, topic: Topic, /) -> None:
        """The region tells a replicator how far it has everything."""

    def replica_place(self, home: Region, remote: str, topic: str, last: Position, /) -> None:
        """A remote reported how far it has everything of ours."""

    # -- clients

    def stored(self, home: Region, position: Position, /) -> None:
        """A receipt is sent."""

    def receipted(self, home: Region, topic: str, position: Position, payload: bytes, /) -> None:
        """A client has received its receipt."""

    def creation_asked(self, home: Region, topic: str, name: str, initial: Position, opened: Topic, /) -> None:
        """A client requests a subscription that does not exist."""

    def creation_seen(self, home: Region, topic: str, subscription: Subscription, /) -> None:
        """A region has just found or created it."""

    def creation_refused(self, topic: str, name: str, initial: Position, opened: Topic | None, /) -> None:
        """The client learns that it was not created; it may have been."""

    def acking(self, home: Region, topic: str, consumer: Consumer, bits: dict[Position, int], epoch: Stamp, /) -> Heard:
        """An acknowledgement of entries arrives."""

    def acking_up_to(
        self,
        home: Region,
        topic: str,
        consumer: Consumer,
        behind: Position,
        upto: Position,
        was_sent: Callable[[Position], bool],
        came_later: Callable[[Position], bool],
        seen: Collection[Position] | None,
        /,
    ) -> list[Heard]:
        """A cumulative acknowledgement arrives."""

    def delivering(
        self, broker: Broker, topic: str, subscription: Subscription, position: Position, entry: bytes, bits: int, /
    ) -> None:
        """An entry is sent to a client."""

    # -- planned stops

    def stopping(self, broker: Broker | None, topics: Collection[str] | None = None, /) -> Callable[[], None]:
        """A broker gracefully releases these topics, or all. The result is called once that has succeeded."""

    # -- what a region drops

    def expiring(self, home: Region, some: list[Subscription], before_ms: int, /) -> None:
        """The region begins to drop what is older."""

    def evicting(self, home: Region, topic: str, some: list[Subscription], upto: Position, /) -> None:
        """The region begins to drop everything up to there."""
