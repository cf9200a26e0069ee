# SPDX-License-Identifier: Apache-2.0
"""Schedules looks at objects.

Each object has one task, so it is never worked on twice at once. The task looks when its object or another one that
matters to it has changed, such as one of the same topic, and otherwise periodically. The first looks at objects that
exist when the operator starts are spread over a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.reporting import RESYNC_SECONDS, Answer
from meridian_operator.handlers.subject import Subject, Views
from meridian_operator.handlers.token_watch import TokenWatch
from meridian_operator.handlers.verdict_watch import VerdictWatch
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import Conflict, Gone, KubeError, Reference
from meridian_operator.plan.outcome import READY

START_SECONDS: Final = 5.0
"""Objects that exist when the operator starts get their first look within this time."""
SWEEP_SECONDS: Final = 300.0
"""How often the desk looks for objects whose deletion it missed, and for tokens that expire soon."""
ERROR_SECONDS: Final = 30.0
"""Delay before the next look after a failed one."""
_log = logging.getLogger(__name__)


class Desk:
    """Looks after all objects.

    :param namespaces: the watched namespaces; empty: all.
    """

    def __init__(self, world: World, namespaces: Sequence[str] = ()) -> None:
        self._world = world
        self._namespaces = namespaces or ("",)
        self._verdicts = VerdictWatch(world.kube, world.settings, world.verdicts)
        self._tokens = TokenWatch(world.kube, world.settings, world.tokens)
        self._sweeping = asyncio.create_task(self._sweep_now_and_then(), name="sweep")
        self._cares: dict[Reference, Care] = {}
        self._listeners: dict[str, set[Reference]] = {}
        """By what they listen to."""
        self._ending: set[asyncio.Task[None]] = set()

    def heard(self, subject: Subject[Any], change: str | None, body: Mapping[str, Any], views: Views) -> None:
        """An event about an object arrived from Kubernetes. Events about one object arrive in order; those about an
        object and about the one of that name created after it do not: kopf has a queue for each UID.

        :param change: kopf's event type; None: the object was listed at the start.
        """
        meta = body["metadata"]
        of = Reference(subject.kind.kind, subject.kind.plural, meta["namespace"], meta["name"])
        about = subject.known_as(body)
        if change == "DELETED":  # kopf's indices no longer have it
            self._world.gone.discard(meta["uid"])
        care = self._cares.get(of)
        if care is not None and care.uid != meta["uid"] and _version(body) < care.version:
            self._wake(about, of)  # about an object that is gone
            return
        if care is not None and (change == "DELETED" or care.uid != meta["uid"]):
            if care.uid != meta["uid"]:  # deleted and created again; that event was missed or is still to come
                self._world.gone.add(care.uid)
            self._end(of, care)
            care = None
        if change == "DELETED":
            self._wake(about, of)
        elif care is None:
            delay = self._world.random() * START_SECONDS if change is None else 0.0
            self._cares[of] = care = Care(of, subject, body, views, self._world, delay, self._tried, self._wake)
            for key in care.listens_to:
                self._listeners.setdefault(key, set()).add(of)
            self._wake(about, of)
        elif care.told(body):
            self._wake(about, of)

    def ready(self) -> Mapping[tuple[str, str, str], int]:
        """Number of objects by kind, and by status and reason of condition Ready."""
        return Counter((of.kind, *care.ready()) for of, care in self._cares.items())

    async def close(self) -> None:
        """Stop looking."""
        await self._verdicts.close()
        await self._tokens.close()
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        for of, care in list(self._cares.items()):
            self._end(of, care)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _tried(self) -> None:
        """Return once everything that looks need was read, or could not be."""
        await self._verdicts.tried()
        await self._tokens.tried()

    async def sweep(self) -> None:
        """Find objects whose deletion was missed. After a long interruption of a watch, kopf lists all objects again
        but does not report those that are gone: they would go on managing their topics.

        :raises KubeError: the objects were not listed.
        """
        for plural in {of.plural for of in self._cares}:
            before = {of: care for of, care in self._cares.items() if of.plural == plural}
            there = {uid for one in self._namespaces for uid in await self._world.kube.uids(plural, one)}
            for of, care in before.items():
                if care.uid not in there and self._cares.get(of) is care:
                    _log.info("%s: no longer exists; its deletion was missed", of)
                    self._world.gone.add(care.uid)
                    self._end(of, care)
                    self._wake(care.known_as, of)

    async def _sweep_now_and_then(self) -> None:
        while True:
            self._world.check_tokens()
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except KubeError as error:
                _log.warning("could not check for objects whose deletion was missed: %s", error)

    def _end(self, of: Reference, care: Care) -> None:
        care.task.cancel()
        self._ending.add(care.task)
        care.task.add_done_callback(self._ending.discard)
        del self._cares[of]
        for key in care.listens_to:
            others = self._listeners[key]
            others.discard(of)
            if not others:
                del self._listeners[key]

    def _wake(self, about: Iterable[str], but: Reference) -> None:
        """Look at the other objects that listen to this."""
        for of in {one for key in about for one in self._listeners.get(key, ()) if one != but}:
            self._cares[of].wake()


class Care:
    """Looks after one object for as long as it exists.

    :param begin: returns when the first look may begin.
    :param wake: makes the other objects that listen to this one be looked at.
    """

    def __init__(
        self,
        of: Reference,
        subject: Subject[Any],
        body: Mapping[str, Any],
        views: Views,
        world: World,
        delay: float,
        begin: Callable[[], Awaitable[None]],
        wake: Callable[[Iterable[str], Reference], None],
    ) -> None:
        self.of = of
        self._wake_others = wake
        self.known_as, self.listens_to = subject.known_as(body), subject.listens_to(body)
        self.uid = str(body["metadata"]["uid"])
        self.version = _version(body)
        """Of the first event: every event about an earlier object of this name has a lower one."""
        self._subject = subject
        self._body = body
        self._views = views
        self._world = world
        self._written = 0
        """The version at which the status was last written."""
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._run(delay, begin), name=str(of))

    def told(self, body: Mapping[str, Any]) -> bool:
        """Store the object's new version. Returns whether the change matters to other objects."""
        before = self._body
        if _version(body) < self._written:
            # The watch is behind. With the old status, the next look would write the new one again.
            body = {**body, "status": before.get("status") or {}}
        self._body = body
        if _wish(before) != _wish(body):
            self.wake()
        return _face(before) != _face(body)

    def ready(self) -> tuple[str, str]:
        """Status and reason of Ready, from the object's status."""
        found = _ready(self._body)
        return found.get("status", "Unknown"), found.get("reason", "")

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    async def _run(self, first: float, begin: Callable[[], Awaitable[None]]) -> None:
        await begin()
        delay: float | None = first
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            self._woken.clear()
            delay = await self._look()

    async def _look(self) -> float | None:
        """Look once. Returns the seconds until the next look; None: not until an event arrives."""
        body = self._body
        try:
            answer = await look(self._subject, body, self._views, self._world)
            await self._write(body, answer)
        except Gone:
            return None
        except Conflict:
            return 1.0
        except KubeError as error:
            _log.warning("%s: trying again in %.0f s: %s", self.of, ERROR_SECONDS, error)
            return ERROR_SECONDS
        except Exception:
            # A bug that one object triggers must not end its task, let alone those of others.
            _log.exception("%s: reconciling failed, which is a bug; trying again in %.0f s", self.of, ERROR_SECONDS)
            return ERROR_SECONDS
        if answer.again_seconds < RESYNC_SECONDS:
            return answer.again_seconds
        return answer.again_seconds * (0.9 + 0.2 * self._world.random())

    async def _write(self, body: Mapping[str, Any], answer: Answer) -> None:
        kube, meta = self._world.kube, body["metadata"]
        if answer.status and (answer.pressing or self._world.may_write_numbers()):
            self._keep(await kube.write_status(self.of, self._body["metadata"], answer.status))
        for event in answer.events:
            say = _log.warning if event.warning else _log.info
            say("%s: %s: %s", self.of, event.reason, event.message)
            try:
                await kube.post(self.of, self.uid, event, self._world.now())
            except KubeError as error:  # for example because the namespace is being deleted; the log line above remains
                _log.warning("%s: the Event was not recorded: %s", self.of, error)
        if answer.finalizers is not None:
            await kube.write_finalizers(self.of, answer.finalizers, str(meta["resourceVersion"]))

    def _keep(self, written: Mapping[str, Any]) -> None:
        """Remember what was written: the watch may deliver it only after the next look."""
        if written.get("metadata", {}).get("uid") != self.uid:
            return
        before, self._written = self._body, _version(written)
        if _wish(written) == _wish(self._body):
            self._body = written
        else:  # a user changed the object first; that event is still to come
            self._body = {**self._body, "status": written.get("status") or {}}
        if _ready(before).get("status") != _ready(self._body).get("status"):
            self._wake_others(self.known_as, self.of)  # the event that is still to come brings nothing new


def _version(body: Mapping[str, Any]) -> int:
    """Versions of an object increase; 0: this one is not a number."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _wish(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """What users specify with an object, and its finalizers."""
    meta = body["metadata"]
    return tuple(meta.get(key) for key in ("generation", "deletionTimestamp", "annotations", "finalizers"))


def _face(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """What other objects depend on."""
    meta = body["metadata"]
    return meta.get("generation"), meta.get("deletionTimestamp"), _ready(body).get("status")


def _ready(body: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == READY), {})
