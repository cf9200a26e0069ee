# SPDX-License-Identifier: Apache-2.0
"""Settings of clients' tokens, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meridian_broker.server.setting_fields import SettingsError

PublicAlgorithm = Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings:
    """How clients authenticate. Key files are read again within a few seconds when they change. Changing a setting,
    such as the algorithm of public keys, needs a restart."""

    authentication_enabled: bool = False
    """Clients and users of the admin API must present a signed token (a JSON Web Token). Probes and metrics stay
    open."""

    token_secret_key: str = ""
    """The secret key that signs tokens, at least 32 bytes: `file:///PATH` or a path. `meridian tokens
    create-secret-key` makes one, `meridian tokens create` a token. A directory holds several keys, 16 at most, in files
    that end in `.key`, so that keys can be replaced without rejecting any client (docs/security.md). The name of such a
    file, without `.key`, is the key's id: a token that names it (`kid`) is checked with this key, any other token with
    each key."""

    token_public_key: str = ""
    """The public key of a pair whose private key signs tokens, in PEM or DER: `file:///PATH` or a path.
    `meridian tokens create-key-pair` creates a pair. Or a directory, as for `tokenSecretKey`, with files that end in
    `.pem`. Tokens may be signed with any key of either setting."""

    token_public_alg: PublicAlgorithm = "RS256"
    """How tokens are signed with that pair and with all others in the directory. RS needs an RSA key of 2048 bits or
    more, ES256 one on the curve P-256, ES384 on P-384, ES512 on P-521."""

    token_auth_claim: str = "sub"
    """Claim of a token that names the role."""

    token_audience_claim: str = "aud"
    """Claim of a token that names where it is valid: a string or a list of strings."""

    token_audience: str = ""
    """Required value of that claim. Empty: tokens with the claim need the name of this region in it (`meridian tokens
    create --region`), tokens without it are valid everywhere. Set: tokens without it are refused."""

    broker_client_authentication_parameters: str = ""
    """The token that this broker shows to regions that run Apache Pulsar, as `file:///PATH`. The file is read on every
    connection. Empty: none. Brokers of Meridian authenticate each other by `peerTokenFile`."""

    super_user_roles: str = ""
    """Roles that may use the whole admin API, separated by commas. Others may connect and look up what their clients
    need; `authorizationEnabled` decides what else they may do."""

    authorization_enabled: bool = False
    """Roles need permissions: to produce or consume, on a topic or its namespace; and a tenant's admin roles may do
    everything in their tenant, over the admin API as well. Off: every role may produce and consume everywhere, and
    `superUserRoles` alone administer. Needs `authenticationEnabled` (docs/security.md)."""

    @property
    def broker_client_token_file(self) -> Path | None:
        """Where the token for regions of Apache Pulsar is."""
        shown = self.broker_client_authentication_parameters
        return Path(shown.removeprefix("file://")) if shown else None

    def check(self) -> None:
        """:raises SettingsError: tokens are asked for, and nothing can check them; a token is not in a file; or roles
        need permissions, and nobody has a role."""
        shown = self.broker_client_authentication_parameters
        if shown and not shown.startswith("file:///"):
            raise SettingsError("brokerClientAuthenticationParameters: give the token in a file, as file:///PATH")
        if self.authorization_enabled and not self.authentication_enabled:
            raise SettingsError(
                "authorizationEnabled=true: set authenticationEnabled too: without it clients have no roles"
            )
        if self.authentication_enabled and not (self.token_secret_key or self.token_public_key):
            raise SettingsError(
                "authenticationEnabled=true: set tokenSecretKey or tokenPublicKey too (meridian tokens "
                "create-secret-key makes a key)"
            )
