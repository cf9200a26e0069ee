# SPDX-License-Identifier: Apache-2.0
"""A journal of events with time and place: written by all actors, read by the judge, printed on failure.

Times are seconds of one monotonic clock: clients, faults and judge share a process.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MESSAGE_KINDS = ("published", "receipt", "delivered", "acknowledged", "up to", "refused", "again please")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at: float
    kind: str
    region: str = ""
    topic: str = ""
    subscription: str = ""
    body: str = ""
    visit: int = 0
    """The consumer's visit that it belongs to."""
    note: str = ""
    place: tuple[int, int, int] = (-1, -1, -1)
    """The message's id in that region: ledger, entry, index in its batch."""

    def told(self, since: float) -> str:
        """The event as a line of text."""
        what = " ".join(part for part in (self.subscription, self.kind, self.body, self.note) if part)
        visit = f" (consumer {self.visit})" if self.visit else ""
        place = "" if self.place[0] < 0 else " at {}:{}:{}".format(*self.place)
        return f"{self.at - since:9.3f} s  {self.region or '-':<6} {what}{place}{visit}"


@dataclass
class Visit:
    """One stay of a consumer in a region."""

    number: int
    region: str
    began: float
    ended: float = math.inf
    closed: bool = False
    """The broker confirmed that it was closed: its acknowledgements are stored."""


@dataclass
class Rewind:
    """A requested seek, skip or clearing of a backlog."""

    region: str
    topic: str
    subscription: str
    kind: str
    """time, earliest, message, skip, clear or recreate."""
    began: float
    ended: float = math.inf
    answered: bool = False
    """The broker confirmed it."""
    since: float = 0.0
    """For a seek to a time: it applies to messages published then or later (seconds of the journal's clock)."""


@dataclass
class Journal:
    """Thread-safe: lists are only appended to."""

    events: list[Event] = field(default_factory=list)
    visits: dict[int, Visit] = field(default_factory=dict)
    rewinds: list[Rewind] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, kind: str, region: str = "", **more: object) -> float:
        """Record something; returns when."""
        now = time.monotonic()
        self.events.append(Event(now, kind, region, **more))  # type: ignore[arg-type]
        return now

    def visit(self, region: str) -> Visit:
        """A consumer arrives in a region."""
        with self._lock:
            number = len(self.visits) + 1
            visit = self.visits[number] = Visit(number, region, time.monotonic())
        return visit

    def rewind(self, region: str, topic: str, subscription: str, kind: str, since: float = 0.0) -> Rewind:
        """A rewind is about to be requested."""
        asked = Rewind(region, topic, subscription, kind, time.monotonic(), since=since)
        self.rewinds.append(asked)
        self.write(kind, region, topic=topic, subscription=subscription, note="asked for")
        return asked

    def done(self, asked: Rewind, answered: bool, why: str = "") -> None:
        """The request was answered."""
        asked.ended = time.monotonic()
        asked.answered = answered
        note = "done" if answered else f"not answered: {why}"
        self.write(asked.kind, asked.region, topic=asked.topic, subscription=asked.subscription, note=note)

    def story(self, topic: str, subscription: str, body: str) -> Iterator[str]:
        """The timeline of one message on one subscription, with everything else that may affect it, including events of
        other messages in its batch."""
        events = [
            one
            for one in sorted(self.events, key=lambda one: one.at)
            if one.topic in ("", topic) and one.subscription in ("", subscription)
        ]
        entries = {one.place[:2] for one in events if one.body == body and one.place[0] >= 0}
        for event in events:
            if event.body in ("", body) or event.place[:2] in entries:
                yield event.told(self.began)


@dataclass
class Disturbed:
    """When which region or link was disturbed."""

    spans: dict[tuple[str, ...], list[tuple[float, float]]] = field(default_factory=dict)
    _open: dict[tuple[str, ...], float] = field(default_factory=dict)

    def begin(self, *what: str) -> None:
        self._open.setdefault(tuple(sorted(what)), time.monotonic())

    def end(self, *what: str) -> None:
        began = self._open.pop(tuple(sorted(what)), None)
        if began is not None:
            self.spans.setdefault(tuple(sorted(what)), []).append((began, time.monotonic()))

    def calm(self, since: float, until: float, *what: str) -> bool:
        """Was a region, or two regions and their link, undisturbed all that time?"""
        asked: Iterable[tuple[str, ...]] = [tuple(sorted(what)), *((one,) for one in what)]
        for one in asked:
            spans = [*self.spans.get(one, ()), *([(self._open[one], math.inf)] if one in self._open else ())]
            if any(began <= until and since <= ended for began, ended in spans):
                return False
        return True
