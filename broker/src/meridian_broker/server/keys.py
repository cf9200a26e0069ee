# SPDX-License-Identifier: Apache-2.0
"""The keys of this process, out of their files."""

from __future__ import annotations

from meridian_broker.gateway.authentication import Authentication, Claims
from meridian_broker.gateway.key_files import BadKey, read_peer_secrets, read_secret_key
from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.settings import Settings


class Keys:
    """Read when the broker starts, so that a file that cannot be used ends the start."""

    def __init__(self, settings: Settings) -> None:
        """:raises SettingsError: a file cannot be read, or what it holds is no key."""
        asked, file = settings.authentication, settings.region.peer_token_file
        try:
            self.peer_secrets = () if file is None else read_peer_secrets(file)
            key = read_secret_key(asked.token_secret_key) if asked.authentication_enabled else None
        except BadKey as error:
            raise SettingsError(str(error)) from None
        roles = frozenset(role.strip() for role in asked.super_user_roles.split(",") if role.strip())
        self.authentication = Authentication(
            key,
            roles,
            asked.token_audience or settings.region.cluster_name,
            Claims(asked.token_auth_claim, asked.token_audience_claim, bool(asked.token_audience)),
        )
