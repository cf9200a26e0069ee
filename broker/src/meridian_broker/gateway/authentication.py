# SPDX-License-Identifier: Apache-2.0
"""Who a client is: signed tokens (JSON Web Tokens, RFC 7519), as Pulsar's token authentication has them.

A token is signed with the region's secret key and names a role, its subject. Nothing about clients is stored. Brokers
of other regions show the peer token instead (R7). A token is never logged and never part of an error.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

import jwt

ALGORITHMS: Final = ["HS256", "HS384", "HS512"]
METHOD: Final = "token"
"""Name of this method in CONNECT."""
PEER_ROLE: Final = "meridian-peer"
"""Role of brokers of other regions on the admin API."""
SHORTEST_KEY: Final = 32
LARGEST_TOKEN: Final = 16 * 1024
"""Bytes: more is no token, and is not decoded."""


class NotAuthenticated(Exception):
    """The client did not show who it is. The message says what is missing and is fit for the client."""


class BadKey(Exception):
    """The file of the secret key cannot be used."""


def read_secret_key(place: str) -> bytes:
    """The key in a file; ``file:///path`` or a path. Its bytes are the key, without any encoding, as in Pulsar.

    :raises BadKey: it cannot be read, or is too short to keep anybody out.
    """
    path = Path(place.removeprefix("file://"))
    try:
        key = path.read_bytes()
    except OSError as error:
        raise BadKey(f"tokenSecretKey: cannot read {path}: {error.strerror}") from error
    if len(key) < SHORTEST_KEY:
        raise BadKey(f"tokenSecretKey: {path} holds {len(key)} bytes: a key has {SHORTEST_KEY} or more")
    return key


class Authentication:
    """Checks tokens. Without a key everybody is welcome, and nameless."""

    def __init__(self, secret_key: bytes | None, super_users: frozenset[str], peer_token: bytes | None) -> None:
        self._key = secret_key
        self._super_users = super_users
        self._peer_token = peer_token

    @property
    def required(self) -> bool:
        """Must clients show a token?"""
        return self._key is not None

    def role(self, token: bytes) -> str:
        """The role that a token names.

        :raises NotAuthenticated: it is none of ours, changed, not valid yet, or expired.
        """
        if self._key is None:
            return ""
        if len(token) > LARGEST_TOKEN:
            raise NotAuthenticated("this is no token: it is too long")
        try:
            claims = jwt.decode(token, self._key, algorithms=ALGORITHMS, options={"require": ["sub"]})
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("the token has expired: get a new one") from None
        except jwt.PyJWTError as error:
            raise NotAuthenticated(f"the token is not signed with this region's key, or damaged: {error}") from None
        return str(claims["sub"])

    def is_peer(self, token: bytes) -> bool:
        """Does this token show a broker of another region?"""
        return self._peer_token is not None and hmac.compare_digest(token, self._peer_token)

    def is_super_user(self, role: str) -> bool:
        """May this role use the whole admin API?"""
        return not self.required or role == PEER_ROLE or role in self._super_users


def make_token(secret_key: bytes, role: str, expires: int | None = None) -> str:
    """A token for a role. ``expires`` is in seconds since 1970; None: never."""
    claims: dict[str, object] = {"sub": role}
    if expires is not None:
        claims["exp"] = expires
    return jwt.encode(claims, secret_key, algorithm=ALGORITHMS[0])
