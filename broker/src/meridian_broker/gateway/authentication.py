# SPDX-License-Identifier: Apache-2.0
"""Client authentication by signed tokens (JSON Web Tokens, RFC 7519), as in Pulsar's token authentication.

A token is signed with one of the region's keys and names a role, its subject. Nothing about clients is stored. Brokers
of other regions have no role: a connection is a peer's because it proved the peer secret (R7), never because of a name
in a token. A token is never logged and never part of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from meridian_broker.gateway.token_keys import TokenKey

METHOD: Final = "token"
"""Name of this method in CONNECT."""
RESERVED_ROLES: Final = frozenset({"meridian-peer"})
"""Names that brokers use among themselves. No token may have one: tokens are issued under names that users choose."""
SCOPE_CLAIM: Final = "meridian_scope"
"""Claim that limits what a token is valid for. The name is our own: ``scope`` is used by other issuers."""
ADMIN_SCOPE: Final = "admin"
"""The admin API, but neither producing nor consuming."""
EXPORT_SCOPE: Final = "export"
"""Of the admin API only the export, which the verifier reads."""
SCOPES: Final = {ADMIN_SCOPE: "admin API", EXPORT_SCOPE: "export"}
"""Description of each scope. Scopes narrow what a token's role may do and never widen it: an issuer may let users
choose claims."""
LARGEST_TOKEN: Final = 16 * 1024
"""Bytes: anything larger is not a token, and is not decoded."""

_SENTENCES: Final = {
    "ExpiredSignatureError": "the token has expired: get a new one",
    "ImmatureSignatureError": "the token is not valid yet",
    "MissingRequiredClaimError": "the token names no role: it has no subject",
    "InvalidSubjectError": "the token names no role: its subject is not a string",
    "PyJWTError": "this is not a token, or it is damaged",
}
"""Messages for client and log, by PyJWT's error. PyJWT's own texts quote the token, which may hold arbitrary text."""


class NotAuthenticated(Exception):
    """The client did not authenticate. The message says what is missing and may be sent to the client."""


class Granted(NamedTuple):
    """The content of a valid token."""

    role: str
    expires: int | None = None
    """Seconds since 1970; None: never."""
    key: TokenKey | None = None
    """The key that signed it; None if no token is required."""
    scope: str | None = None
    """One of ``SCOPES``, the token's only use; None: everything that its role may do."""


NAMELESS: Final = Granted("")
"""The grant for every client when no token is required."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Names of the claims that are checked, as in Pulsar's settings."""

    role: str = "sub"
    audience: str = "aud"
    needs_audience: bool = False
    """Refuse tokens that are not limited to specific regions."""


class Authentication:
    """Checks tokens. Without keys no token is required, and every client is admitted without a name."""

    def __init__(
        self,
        keys: tuple[TokenKey, ...] | None,
        super_users: frozenset[str],
        audience: str,
        claims: Claims = Claims(),
    ) -> None:
        """
        :param keys: keys that may sign tokens; None: no token is required.
        :param audience: required audience of tokens that are bound to one; usually the region's name.
        """
        if keys is not None:
            import jwt  # noqa: F401  # large: only brokers that check tokens load it, and before they serve
        self._keys = keys
        self._super_users = super_users
        self._audience = audience
        self._claims = claims

    @property
    def required(self) -> bool:
        """Whether clients must present a token."""
        return self._keys is not None

    def use(self, keys: tuple[TokenKey, ...]) -> None:
        """From now on tokens must be signed with one of these keys."""
        self._keys = keys

    def check(self, token: bytes) -> Granted:
        """Check a token and return its content.

        :raises NotAuthenticated: it is not signed with our key, was changed, is not valid yet, has expired, or is for
            another region.
        """
        if self._keys is None:
            return NAMELESS
        if len(token) > LARGEST_TOKEN:
            raise NotAuthenticated("this is not a token: it is too long")
        import jwt

        try:
            key, said = self._verified(token, self._keys)
        except jwt.PyJWTError as error:
            sentence = next(_SENTENCES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _SENTENCES)
            raise NotAuthenticated(sentence) from None
        self._check_audience(said.get(self._claims.audience))
        scope = said.get(SCOPE_CLAIM)
        if not (scope is None or (isinstance(scope, str) and scope in SCOPES)):
            known = " and ".join(SCOPES)
            raise NotAuthenticated(f"the token's {SCOPE_CLAIM} is unknown to this version, which knows {known}")
        expires = said.get("exp")
        return Granted(self._role(said), None if expires is None else int(expires), key, scope)

    def _verified(self, token: bytes, keys: tuple[TokenKey, ...]) -> tuple[TokenKey, dict[str, Any]]:
        """The key that signed the token, and the token's claims.

        The token's algorithm and key id only select among our keys; an id that names none of them, as other issuers
        write it, is ignored.
        """
        import jwt

        header = jwt.get_unverified_header(token)
        fitting = [key for key in keys if header.get("alg") in key.algorithms]
        if not fitting:
            known = sorted({algorithm for key in keys for algorithm in key.algorithms})
            raise NotAuthenticated(f"the token is signed with an algorithm other than {', '.join(known)}")
        named = [key for key in fitting if "kid" in header and key.id == header["kid"]]
        checks: Any = {"verify_aud": False, "require": [self._claims.role]}
        for key in named or fitting:
            try:
                return key, jwt.decode(token, key.checker, algorithms=list(key.algorithms), options=checks)
            except jwt.InvalidSignatureError:
                continue
        raise NotAuthenticated("the token is not signed with this region's key")

    def _role(self, said: dict[str, Any]) -> str:
        role = said.get(self._claims.role)
        if not isinstance(role, str) or not role:
            raise NotAuthenticated(f"the token names no role: its claim {self._claims.role} is missing or empty")
        if role in RESERVED_ROLES:
            raise NotAuthenticated(f"the token's subject {role} is reserved for brokers: get one with another subject")
        return role

    def _check_audience(self, named: object) -> None:
        if named is None and not self._claims.needs_audience:
            return
        if self._audience not in (named if isinstance(named, list) else [named]):
            raise NotAuthenticated(
                f"the token is not for {self._audience}: get one whose claim {self._claims.audience} names it"
            )

    def is_super_user(self, role: str) -> bool:
        """May this role use the whole admin API?"""
        return not self.required or role in self._super_users
