# SPDX-License-Identifier: Apache-2.0
"""Messages between two regions about progress: one value per peer command, and the limits of the exchange.

The exchange uses these values only. ``codec.py`` converts them to commands of the wire and back, so the
exchange itself never sees protobuf and tests read like transcripts. Progress and subscription records travel as the
bytes their owners encoded; only the receiver decodes them, and decides whether to accept them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from meridian_broker.bounds.regions import REGION_BROKERS
from meridian_broker.positions.encoded import DigestKey
from meridian_broker.positions.position import Position
from meridian_broker.replication.leases.messages import LeaseMessage

PROTOCOL_VERSION: Final = 6
"""Version of the peer commands. Versions N and N-1 interwork (docs/operations.md, upgrades)."""
OLDEST_VERSION: Final = 1
SUMMARY_VERSION: Final = 2
"""From this version on a peer understands a ``Summary``."""
PARTS_VERSION: Final = 3
"""From this version on it divides buckets of topics into parts, says in which of them something is in flux, and
compares how far it has the entries of a region that is away.
"""
RENEWAL_VERSION: Final = 4
"""From this version on leases are renewed without their names; to a peer before it, by name (R26)."""

BROKERS_VERSION: Final = 5
"""From this version on a peer finds the broker of a region of several that owns a topic; one before it knows regions of
one broker only."""

OWNERS_LEASES_VERSION: Final = 6
"""From this version on leases are asked for, and voted on, by the owners of topics (R26)."""

SubscriptionKey: TypeAlias = tuple[str, str]
"""``(topic, subscription)``."""


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Every queue of the exchange has its bound here; beyond it detail is dropped and healed by digests."""

    in_flight: int = 64
    """Unconfirmed DELTA per peer. Beyond it acks are joined into the pending one: with 25 ms of round trip and 10 ms of
    coalescing three are in flight, so 64 also covers a peer whose disk stalls for half a second."""
    pending_subscriptions: int = 10_000
    """Subscriptions with unsent progress per peer. One more is left to digests."""
    items_per_message: int = 256
    """Subscriptions in one DELTA or STATE, topics in one DIGEST."""
    message_bytes: int = 1 << 20
    """Progress and records in one message; a single larger item travels alone."""
    item_bytes: int = 4 << 20
    """Progress of one subscription that fits a frame (5 MiB); a larger one is not sent and status says so."""
    record_bytes: int = 512 << 10
    """Record of one subscription, beside its progress, likewise. Properties have up to 64 KiB, which JSON may inflate
    six times; earlier versions accepted more."""
    subscriptions_at_once: int = 20_000
    """Subscriptions examined for one DIGEST of a round, so that the round delays nothing: a few milliseconds. The
    topic that exceeds it is the last one."""
    subscriptions_per_digest: int = 4096
    """Subscriptions listed in one DIGEST; a topic with more is listed over several."""
    keys_inline: int = 256
    """Ledger digests that travel beside the subscription digests before asking costs less than sending."""
    keys_per_question: int = 1024
    """Ledger digests in one DIGEST, FETCH or BARRIER; more than that and the whole progress is asked for."""
    fetching: int = 64
    """Subscriptions asked for and not yet merged, per peer."""
    wanted: int = 10_000
    """Subscriptions known to differ and not yet asked for, per peer. One more waits for the next digest."""
    held_digests: int = 8
    """DIGEST that wait until the deltas sent before them are durable here, per peer."""
    waiters: int = 10_000
    """Barriers and flushes under way. One more flush is answered at once, as incomplete; one more barrier waits."""
    brokers: int = REGION_BROKERS
    """Brokers of one region that are peers."""
    topics_apart: int = 10_000
    """Topics held back because the peer has another incarnation, and topics with a deferred comparison, per peer."""
    tracked: int = 200_000
    """Subscriptions per peer whose lag is tracked."""
    troubles: int = 1000
    """Subscriptions whose reason for not syncing is remembered, per peer."""
    digest_skips: int = 3
    """Comparisons in a row that may be put off because a topic is in motion."""

    def objection(self, progress: bytes, record: bytes | None) -> str | None:
        """Why these cannot be sent in any message; a frame that the peer refuses would break the link each time it is
        sent.
        """
        if len(progress) > self.item_bytes:
            return f"progress of {len(progress)} bytes does not fit a message"
        if record is not None and len(record) > self.record_bytes:
            return f"a record of {len(record)} bytes does not fit a message: its properties are too large"
        return None


@dataclass(frozen=True, slots=True)
class Hello:
    """First on every link, answered on it."""

    version: int
    region: str
    next_delta: int
    """The number the sender's next DELTA will carry. Numbers only grow while the sender lives."""
    answer: bool = False
    leases: bool = False
    """The sender knows of leases: it votes on them."""
    broker: str = ""
    """The sender's id, if its region has several brokers."""
    asks_owners: bool = False
    """The link is one to the region, not to one of its brokers. If it has several, it carries ``Owners`` alone."""


class RemoteBroker(NamedTuple):
    """A broker of a region of several."""

    broker: str
    """Its id."""
    service_url: str
    service_url_tls: str
    """Empty: it has none."""


class NamespaceOwners(NamedTuple):
    """Who owns the topics of a namespace."""

    namespace: str
    borders: tuple[int, ...]
    """The borders of its bundles (``ownership/bundles.py``); empty: there is no such namespace."""
    owners: tuple[str, ...]
    """Of each bundle, the id of its broker; empty: nobody owns it."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Which brokers of the sender's region own which topics: all of it when a link asks for it, then what changes."""

    brokers: tuple[RemoteBroker, ...]
    """All that are alive."""
    namespaces: tuple[NamespaceOwners, ...]
    is_first: bool = False
    """What was sent before does not count any more, ..."""
    is_last: bool = False
    """... once this one is here."""


@dataclass(frozen=True, slots=True)
class DeltaItem:
    """Progress of one subscription that the receiver may not have."""

    topic: str
    subscription: str
    incarnation: str
    """Stamp of the topic's last deletion; another one at the receiver waits there (R8)."""
    progress: bytes
    record: bytes | None = None
    """The subscription's record where the receiver may lack it: first delta, change of the record, creation (R15)."""
    unreached: tuple[str, ...] = ()
    """Regions of the topic the sender has no link to: the receiver passes the item on to those (R19)."""
    passed_on: bool = False
    """Came from a third region and is not passed on again."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Progress offered; confirmed by a :class:`DeltaAck` once durable."""

    number: int
    items: tuple[DeltaItem, ...]


UNKNOWN_SUBSCRIPTION: Final = "UnknownSubscription"
"""The receiver lacks it and got no record: the sender answers with the record and the whole progress."""
OTHER_INCARNATION: Final = "OtherIncarnation"
"""One side has deleted the topic and the other not yet, or differently: nothing is merged until they agree (R8)."""
NOT_A_REGION: Final = "NotARegionOfTheTopic"
"""The sender is not among the topic's regions, as far as the receiver knows."""
NOT_OWNER: Final = "NotTheOwner"
"""Another broker of the receiver's region owns the topic."""
UNDECODABLE: Final = "Undecodable"
"""The bytes are not progress in a format that this version reads."""
REFUSED: Final = "Refused"
"""The receiver could not merge or store it; the reason says why."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One item of a DELTA that was not merged."""

    index: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeltaAck:
    """Every item of the DELTA is durable at the receiver, except the refused ones."""

    number: int
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """The digest of one ledger's part of a progress."""

    key: DigestKey
    digest: int


@dataclass(frozen=True, slots=True)
class SubscriptionDigest:
    subscription: str
    digest: int
    """Over record and progress together."""
    record: int
    """Over the record alone."""
    keys: tuple[KeyDigest, ...] | None = None
    """Per ledger; None: not listed, ask for them."""


@dataclass(frozen=True, slots=True)
class TopicDigest:
    topic: str
    incarnation: str
    digest: int
    """Over all replicated subscriptions of the topic."""
    in_flux: bool = False
    """Something is not durable yet, or came from a third region a moment ago: a difference may be a race, and equality
    does not mean that the sender has all of it on disk."""
    forced: bool = False
    """The sender has progress that it could not deliver: compare now, even with changes in flight."""
    subscriptions: tuple[SubscriptionDigest, ...] | None = None
    """None: not listed, ask for them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All topics shared with the receiver, in one number: the whole digest of a region at rest."""

    digest: int
    in_flux: bool = False
    """For some of them an equal number does not mean that the sender has everything on disk, see ``TopicDigest``."""
    buckets_in_flux: tuple[int, ...] = ()
    """In which buckets those are."""


@dataclass(frozen=True, slots=True)
class EndsSlice:
    """How far the sender has the entries of one origin, in some buckets of topics (``high_watermarks.py``)."""

    origin: str
    bits: int
    """There are two to the power of this many buckets: the first bits of the hash of a topic's name."""
    first: int
    numbers: tuple[int, ...]
    """Number of the first bucket, then of those that follow."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    topic: str
    incarnation: str
    end: Position
    """The last entry of the origin that was ever stored."""


@dataclass(frozen=True, slots=True)
class OriginEnds:
    """The sender's, in buckets that differ."""

    origin: str
    topics: tuple[TopicEnd, ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """State of the sender at a cut: all its deltas up to ``sent`` and the receiver's up to ``applied`` are in it."""

    sent: int
    applied: int
    topics: tuple[TopicDigest, ...]
    answer: bool = False
    """Sent because a digest came that differs, by a region without a link of its own: not answered again."""
    summary: Summary | None = None
    """For all topics, at the beginning of a round."""
    differing: tuple[int, ...] = ()
    """The answer to bucket digests: differing buckets with so many topics that the digests of their parts have to be
    compared first."""
    ends: EndsSlice | None = None
    """Unrelated to progress, so it is never held back for it."""


@dataclass(frozen=True, slots=True)
class Question:
    """The next details that the receiver of a DIGEST wants."""

    topic: str
    subscription: str | None = None
    """None: list the topic's subscriptions."""
    state: bool = False
    """False: list the subscription's ledger digests. True: send the state."""
    keys: tuple[DigestKey, ...] | None = None
    """Only these ledgers (none of them: the record alone); None: everything."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The asker's numbers of the parts of one bucket."""

    bucket: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    questions: tuple[Question, ...]
    buckets: tuple[int, ...] = ()
    """The asker's numbers of all buckets of topics: asks for digests of the topics in buckets that differ."""
    parts: tuple[Parts, ...] = ()
    """The same of parts of buckets."""
    buckets_in_flux: tuple[int, ...] = ()
    """Buckets for which an equal number does not mean that the asker has everything on disk."""


@dataclass(frozen=True, slots=True)
class StateItem:
    topic: str
    subscription: str
    incarnation: str
    record: bytes
    progress: bytes


@dataclass(frozen=True, slots=True)
class State:
    """Answer to a FETCH."""

    items: tuple[StateItem, ...]
    ends: OriginEnds | None = None
    """Answer to an ``EndsSlice``."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Asks for everything that the receiver knows about this subscription and the sender does not, now (R20)."""

    number: int
    topic: str
    subscription: str
    incarnation: str
    keys: tuple[KeyDigest, ...] | None
    """The sender's state, per ledger; None: too much to list, send everything."""
    wants_record: bool = False
    """The sender does not have the subscription at all."""


@dataclass(frozen=True, slots=True)
class BarrierDone:
    number: int
    progress: bytes = b""
    """Empty: nothing the asker lacks."""
    record: bytes | None = None
    reason: str = ""
    """Not empty: could not be answered, and why."""


PeerMessage: TypeAlias = (
    Hello | Owners | Delta | DeltaAck | Digest | Fetch | State | Barrier | BarrierDone | LeaseMessage
)
