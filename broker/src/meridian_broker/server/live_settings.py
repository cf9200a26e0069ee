# SPDX-License-Identifier: Apache-2.0
"""Settings that are changed while brokers run, for all brokers of a region.

All changes are one record in the region's metadata; they override each broker's own settings. A change is checked as a
settings file is (``Settings.build``), together with all earlier changes, and is written only if the record is still the
one that was checked: so two people cannot combine settings that contradict each other.

Every broker follows the record. Brokers may have different settings of their own, or run different versions: each
ignores the changes that it cannot use, logs that, and applies the others.

Settings that can be changed are marked where they are declared (``setting_fields.DYNAMIC``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, MetadataError, MetadataStore, Record, VersionConflict
from meridian_broker.server.settings import BY_KEY, Settings, SettingsError, unknown

RETRY_SECONDS: Final = 1.0
ATTEMPTS: Final = 8
"""How often a change is tried while others change settings at the same time."""
VALUE_MAX: Final = 4096
"""Longest value: longer than any useful one."""

log = logging.getLogger(__name__)


class LiveSettings:
    """See the module's text. ``await load`` first; then ``follow`` is a task of the broker."""

    def __init__(self, own: Settings, store: MetadataStore) -> None:
        """:param own: this broker's own settings, from its file, environment and command line."""
        self._own = own
        self._store = store
        self._followers: list[Callable[[Settings], None]] = []
        self.current = own
        """The settings in force."""
        self.changed: Mapping[str, str] = {}
        """The changes in this region that are in force here."""

    @property
    def names(self) -> list[str]:
        """The settings that can be changed, sorted."""
        return sorted(key for key, setting in BY_KEY.items() if setting.is_dynamic)

    def in_force(self) -> dict[str, str]:
        """Every setting and its value."""
        return self.current.pairs()

    def subscribe(self, follower: Callable[[Settings], None]) -> None:
        """Call back after each change, with the settings in force."""
        self._followers.append(follower)

    async def load(self) -> None:
        """Read the changes. :raises MetadataError: the store does not answer, or the record cannot be read."""
        self._take_over(_values(await self._store.get(keys.SETTINGS)))

    async def follow(self) -> NoReturn:
        """Follow changes until cancelled. A failed watch is restarted."""
        while True:
            with suppress(MetadataError):
                async for _ in self._store.watch(keys.SETTINGS):
                    await self._reload()
            await asyncio.sleep(RETRY_SECONDS)

    async def _reload(self) -> None:
        try:
            await self.load()
        except MetadataError as error:
            log.warning("cannot read changed settings; keeping the current ones, will retry: %s", error)
            raise

    async def change(self, key: str, value: str | None) -> None:
        """Change a setting for all brokers of the region; None: back to each broker's own value.

        :raises Invalid: there is no such setting, it cannot be changed, or the value cannot be used.
        :raises MetadataError: it is unknown whether it was changed.
        """
        if value is not None:
            _check(key, value)
        for attempt in range(ATTEMPTS):
            record = await self._store.get(keys.SETTINGS)
            found = _values(record)
            if value is None and key not in found:
                _check(key, "")
                return
            usable = self._usable(found)[0]
            for changes in (found, usable):
                changes.pop(key, None)
                if value is not None:
                    changes[key] = value
            try:
                self._with(usable)
            except SettingsError as error:
                raise Invalid(str(error)) from None
            try:
                version = ABSENT if record is None else record.version
                await self._store.put(keys.SETTINGS, encode(found), expected=version)
                break
            except VersionConflict:
                if attempt == ATTEMPTS - 1:
                    raise
        log.info("changed for the whole region: %s %s", key, "is each broker's own" if value is None else f"= {value}")
        self._take_over(found)

    def _with(self, changed: Mapping[str, str]) -> Settings:
        """:raises SettingsError: they cannot be used with this broker's own."""
        own = {key: (text, "own settings") for key, text in self._own.pairs().items()}
        return Settings.build(own | {key: (text, "changed at run time") for key, text in changed.items()})

    def _take_over(self, found: Mapping[str, str]) -> None:
        usable, refusals = self._usable(found)
        for refusal in refusals:
            log.error("this broker ignores a setting that was changed at run time: %s", refusal)
        self.changed = usable
        settings = self._with(usable)
        if settings == self.current:
            return
        self.current = settings
        for follower in self._followers:
            follower(settings)

    def _usable(self, found: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """The changes that this broker can use together, and why it cannot use the others."""
        try:
            self._with(found)
        except SettingsError:
            pass
        else:
            return dict(found), []
        usable: dict[str, str] = {}
        refusals: list[str] = []
        for key, value in sorted(found.items()):
            try:
                self._with({**usable, key: value})
            except SettingsError as error:
                refusals.append(str(error))
            else:
                usable[key] = value
        return usable, refusals


def _check(key: str, value: str) -> None:
    """:raises Invalid: there is no such setting, it cannot be changed, or the value is too long."""
    if (setting := BY_KEY.get(key)) is None:
        raise Invalid(unknown(key, "configuration"))
    if not setting.is_dynamic:
        raise Invalid(f"{key} cannot be changed while brokers run: change the brokers' own settings and restart them")
    if len(value) > VALUE_MAX:
        raise Invalid(f"{key}: the value has {len(value)} characters, expected at most {VALUE_MAX}")


def _values(record: Record | None) -> dict[str, str]:
    """:raises MetadataError: the record cannot be read."""
    if record is None:
        return {}
    found = decode(keys.SETTINGS, record.value)[0]
    if not isinstance(found, dict):
        raise MetadataError(f"{keys.SETTINGS} holds {found!r}: expected an object")
    return {str(key): str(value) for key, value in found.items()}
