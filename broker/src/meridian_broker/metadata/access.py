# SPDX-License-Identifier: Apache-2.0
"""Shared by all parts of the catalog: the store, the region's clock, the view, and optimistic writes.

There are no locks. A change is computed from what was read and written only if that is still current; otherwise it is
read and computed again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import AlreadyExists, Contended, Invalid, NotEmpty, NotFound, Overtaken
from meridian_broker.metadata.limits import MAX_OPERATIONS
from meridian_broker.metadata.records import decode
from meridian_broker.metadata.store import ABSENT, Change, Check, Delete, MetadataError, MetadataStore, Put, Record
from meridian_broker.metadata.trees import BASE, Leaves, Tree
from meridian_broker.metadata.view import Changed, View, split
from meridian_broker.positions.clock import HybridClock, Stamp
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError
from meridian_broker.wire.pulsar.topic_name import parse_namespace

ATTEMPTS = 64
"""How often a change is recomputed because another writer came first."""

ATTEMPTS_TO_SHOW = 8
"""How often our own write is read back while the watch keeps delivering changes."""

DELETED_TOGETHER = MAX_OPERATIONS // 4
"""Values of a tenant or namespace that are deleted in one transaction: this leaves room for what other regions have to
learn of each (``metadata.sync``)."""

T = TypeVar("T")
Changing = Callable[[Tree], Leaves]
"""Maps the current leaves to the desired ones. May raise to refuse."""


@dataclass(slots=True)
class Access:
    """Shared by the parts of one catalog."""

    store: MetadataStore
    clock: HybridClock
    view: View = field(default_factory=View)
    news: int = 0
    """Counts the updates of the view by the watch and by scans."""
    scans: int = 0
    """Counts the scans alone."""
    heard: int = 0
    """The highest version that the watch has delivered: it has delivered every write up to that one."""

    @property
    def region(self) -> str:
        return self.clock.region

    def stamp(self, replaced: Stamp | None) -> Stamp:
        """The stamp of a write over a value with this stamp (R40)."""
        return self.clock.next(replaced)

    async def tree(self, path: str) -> Tree:
        """``path`` and everything below it. Two reads; writers check the versions."""
        records = {leaf.removeprefix(path): record for leaf, record in await self.store.scan(path + "/")}
        base = await self.store.get(path)
        if base is not None:
            records[BASE] = base
        return Tree(path, records)

    def remembered(self, path: str) -> Tree:
        """As ``tree``, from the view, which may be behind."""
        return Tree(path, self.view.tree(path))

    async def change(
        self,
        path: str,
        changing: Changing,
        also: Sequence[Check] = (),
        deleted: Stamp | None = None,
        seen: Tree | None = None,
    ) -> None:
        """Change the tree at ``path`` to what ``changing`` returns, if every check in ``also`` holds at the same time.

        :param deleted: see ``Tree``.
        :param seen: what is probably there; the first attempt uses it instead of a read, and its transaction checks it.
            It alone never makes a change refused or skipped.
        :raises Contended: other writers kept changing it.
        :raises Invalid: the change is too large.
        """

        async def attempt() -> bool | None:
            nonlocal seen
            guess, seen = seen, None
            tree = (guess or await self.tree(path)).after(deleted)
            try:
                checks, operations = tree.writes(changing(tree), self.stamp)
            except MetadataError:
                if guess is None:
                    raise
                return None
            if not operations:
                return None if guess else True
            return await self.write(tree, [*checks, *also], operations) or None

        await self.retry(f"changing {path}", attempt)

    async def write(self, tree: Tree, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> bool:
        """A transaction; if it succeeds, the view is updated before the watch reports it."""
        if max(len(checks), len(operations)) > MAX_OPERATIONS:
            raise Invalid(
                f"{len(operations)} values below {tree.path} change at once; the limit is {MAX_OPERATIONS - 1}"
            )
        scans, is_known = self.scans, self.view.tree(tree.path) == tree.records
        done = await self.store.transact(checks, operations)
        if done is None:
            return False
        if not is_known or scans != self.scans:
            await self._show(tree.path)
        elif done.version > self.heard:  # else the watch has delivered it, and perhaps later ones
            self.view.apply(done.changes)
        return True

    async def _show(self, path: str) -> None:
        """Copy what the store holds at ``path`` into the view, which knew something else there or has been reloaded
        since.

        The result may be used only if the watch delivered nothing since the read began: it could have delivered a newer
        version, and would not do so again. If that happens every time, the watch will deliver our write anyway.
        """
        for _ in range(ATTEMPTS_TO_SHOW):
            news_before = self.news
            tree = await self.tree(path)
            if self.news == news_before:
                self.view.replace(tree)
                return

    def hear(self, changes: Sequence[Change]) -> list[Changed]:
        """Apply changes from the watch to the view. Returns what they concern."""
        self.news += 1
        versions = (one.record.version for one in changes if one.record is not None)
        self.heard = max(self.heard, *versions, 0)
        return self.view.apply(changes)

    async def refresh(self) -> None:
        """Reload the whole view from the store."""
        view = View.of(await self.store.scan(keys.GEO))
        view.follow(self.view)
        self.news += 1
        self.scans += 1
        self.view = view

    async def expect(self, checks: Sequence[Check]) -> None:
        """:raises Overtaken: not all of these hold, which may be why a transaction with them failed."""
        found = await self.store.get_many([check.path for check in checks])
        for check, record in zip(checks, found, strict=True):
            if (ABSENT if record is None else record.version) != check.version:
                raise Overtaken(f"{check.path} was changed meanwhile: repeat the request")

    async def retry(self, doing: str, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat an attempt until it returns something other than None.

        :raises Contended: it never does.
        """
        for _ in range(ATTEMPTS):
            result = await attempt()
            if result is not None:
                return result
        raise Contended(f"{doing}: other writers were faster {ATTEMPTS} times; try again later")

    async def value(self, path: str) -> tuple[Any, Stamp | None, int]:
        """Value, stamp and version at a path; None, None and 0 if it does not exist."""
        record = await self.store.get(path)
        if record is None:
            return None, None, 0
        return (*decode(path, record.value), record.version)

    async def everything(self) -> list[tuple[str, Any, Stamp | None]]:
        """Path, value and stamp of everything that regions agree on."""
        return [(path, *decode(path, record.value)) for path, record in await self.store.scan(keys.GEO)]

    async def base_of_namespace(self, name: str) -> Record:
        """The namespace's own record; writers that create something in the namespace check its version.

        :raises NotFound: it does not exist or is being deleted.
        """
        path = keys.namespace(check_namespace(name))
        record = await self.store.get(path)
        if record is None:
            raise NotFound(f"namespace {name} does not exist: create it first")
        if decode(path, record.value)[0].get("deleting"):
            raise NotFound(f"namespace {name} is being deleted")
        return record

    async def delete_in_two_steps(
        self,
        path: str,
        what: str,
        inhabitants: Callable[[], Awaitable[list[str]]],
        belongings: Sequence[str] = (),
    ) -> None:
        """Close a tenant or namespace to new members, check that it is empty, then remove it completely.

        Writers that create a member check the version of the base, which closing changes; so no member can be added
        between the check and the removal. If the broker dies half-way, it stays closed until deletion is repeated.

        :param belongings: paths and folders of paths that are deleted with it.
        :raises NotFound: it does not exist.
        :raises NotEmpty: it has members, and has been reopened.
        """
        await self.change(path, lambda tree: _with_deleting(tree, what, deleting=True))
        inside = await inhabitants()
        if inside:
            await self.change(path, lambda tree: _with_deleting(tree, what, deleting=False))
            raise NotEmpty(
                f"{what} holds {', '.join(inside[:3])}{' ...' if len(inside) > 3 else ''}: delete these first"
            )
        await self.remove_belongings(belongings)
        while len((tree := await self.tree(path)).records) > DELETED_TOGETHER:
            some = [leaf for leaf in tree.records if leaf != BASE][:DELETED_TOGETHER]
            await self.write(tree, [], [Delete(path + leaf) for leaf in some])
        await self.change(path, lambda _: {})

    async def remove_belongings(self, folders: Sequence[str], checks: Sequence[Check] = ()) -> None:
        """Remove everything in these paths and folders of paths, as long as the checks hold."""
        for folder in folders:
            found = [split(one) for one, _ in await self.store.scan(folder + "/")]
            for base in sorted({where[1] for where in found if where is not None}):
                while leaves := [*(tree := await self.tree(base)).records][:DELETED_TOGETHER]:
                    if not await self.write(tree, checks, [Delete(base + leaf) for leaf in leaves]):
                        return


def _with_deleting(tree: Tree, what: str, *, deleting: bool) -> Leaves:
    if not tree.exists:
        raise NotFound(f"{what} does not exist")
    return {**tree.leaves(), BASE: {"deleting": True} if deleting else {}}


def absent(tree: Tree, what: str) -> None:
    """:raises AlreadyExists: it exists."""
    if tree.exists:
        raise AlreadyExists(f"{what} exists already")


def check_name(name: str, what: str) -> str:
    """Check the name of a cluster or tenant. :raises Invalid: it is not a valid name."""
    try:
        parse_namespace(f"{name}/any")
    except InvalidTopicNameError:
        raise Invalid(
            f"{name!r} is not a valid {what} name: letters, digits and - = : . _ are allowed, and at least one of them"
        ) from None
    return name


def check_namespace(name: str) -> str:
    """Check a name ``tenant/namespace``. :raises Invalid: it is not a valid name."""
    try:
        parse_namespace(name)
    except InvalidTopicNameError as error:
        raise Invalid(str(error)) from None
    return name
