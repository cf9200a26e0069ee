# SPDX-License-Identifier: Apache-2.0
"""The keys of this process. Their files are reloaded while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from meridian_broker.gateway.authentication import Authentication, Claims
from meridian_broker.gateway.followed_files import FollowedFiles
from meridian_broker.gateway.key_files import BadKey, exposure, read_peer_secrets
from meridian_broker.gateway.token_keys import (
    PUBLIC_SUFFIX,
    SECRET_SUFFIX,
    TokenKey,
    key_paths,
    read_public_keys,
    read_secret_keys,
)
from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.settings import Settings

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two checks of the files. A removed key is refused after two checks at most."""


class Keys:
    """Read when the broker starts, so that an unusable file ends the start."""

    def __init__(self, settings: Settings) -> None:
        """:raises SettingsError: a file cannot be read, or does not hold a key."""
        asked = settings.authentication
        self._settings = settings
        try:
            self._peers = FollowedFiles(self._peer_files, self._read_peers)
            self._tokens = FollowedFiles(self._token_files, self._read_tokens)
        except BadKey as error:
            raise SettingsError(str(error)) from None
        self.peer_secrets = self._peers.first
        """The first one is used where the other region knows it too."""
        roles = frozenset(role.strip() for role in asked.super_user_roles.split(",") if role.strip())
        self.authentication = Authentication(
            self._tokens.first if asked.authentication_enabled else None,
            roles,
            asked.token_audience or settings.region.cluster_name,
            Claims(asked.token_auth_claim, asked.token_audience_claim, bool(asked.token_audience)),
        )
        self._exposed: set[str] = set()
        self._warn()

    async def follow_tokens(self, changed: Callable[[tuple[TokenKey, ...]], None]) -> None:
        """Check the files of token keys once. :param changed: called with the keys that are in force from now on.

        :raises BadKey: they changed and cannot be used; the previous keys stay in force.
        """
        keys = await asyncio.to_thread(self._tokens.look)
        if keys is not None:
            log.info("token keys reloaded, %d in force: %s", len(keys), ", ".join(key.id for key in keys))
            self._warn()
            self.authentication.use(keys)
            changed(keys)

    async def follow_peers(self) -> None:
        """Check the file of peer secrets once. Links that proved a removed secret end at their next keep-alive.

        :raises BadKey: it changed and cannot be used; the previous secret stays in force.
        """
        secrets = await asyncio.to_thread(self._peers.look)
        if secrets is not None:
            log.info("peer secrets reloaded, %d in force", len(secrets))
            self._warn()
            self.peer_secrets = secrets

    def _warn(self) -> None:
        """Log, once each, which secrets other users can read."""
        for problem in filter(None, map(exposure, secret_files(self._settings))):
            if problem not in self._exposed:
                self._exposed.add(problem)
                log.warning("%s", problem)

    def _token_files(self) -> list[Path]:
        asked = self._settings.authentication
        if not asked.authentication_enabled:
            return []
        places = ((asked.token_secret_key, SECRET_SUFFIX), (asked.token_public_key, PUBLIC_SUFFIX))
        return [file for place, suffix in places if place for file in key_paths(place, suffix)]

    def _read_tokens(self) -> tuple[TokenKey, ...]:
        asked = self._settings.authentication
        if not asked.authentication_enabled:
            return ()
        secret, public = asked.token_secret_key, asked.token_public_key
        return (read_secret_keys(secret) if secret else ()) + (
            read_public_keys(public, asked.token_public_alg) if public else ()
        )

    def _peer_files(self) -> list[Path]:
        file = self._settings.region.peer_token_file
        return [] if file is None else [file]

    def _read_peers(self) -> tuple[bytes, ...]:
        file = self._settings.region.peer_token_file
        return () if file is None else read_peer_secrets(file)


def secret_files(settings: Settings) -> list[Path]:
    """The files that only this broker should be able to read."""
    asked = settings.authentication
    files = [
        settings.region.peer_token_file,
        settings.metadata.metadata_store_password_file,
        settings.metadata.metadata_store_key_file_path,
        settings.tls.tls_key_file_path,
        settings.tls.broker_client_key_file_path,
    ]
    if asked.authentication_enabled and asked.token_secret_key:
        files += key_paths(asked.token_secret_key, SECRET_SUFFIX)
    return [file for file in files if file is not None]
